"""What the commands share: their list, where their options come from, and how values are written."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from cyclopts import App, Parameter
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Dict, Env

from calib_serve.app._commands import COMMANDS
from calib_serve.errors import InputError
from calib_serve.options.base import check

__all__ = [
    "Flat",
    "Json",
    "OfData",
    "OfOutput",
    "Output",
    "Rare",
    "Replacing",
    "command",
    "completed",
    "given_as",
    "pairs",
    "prepared",
    "refuse_existing",
    "refuse_left",
    "shown_as",
    "shown_example",
    "subcommand",
]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_CONFIGURED = ("fit", "serve", "watch", "gateway", "label")
"""The commands that take --config FILE.yaml, and CALIB_SERVE_COMMAND_OPTION from the environment."""

Flat = Parameter(name="*")
"""The fields of an options class as the command's own options."""


def shown_as(title: str) -> Parameter:
    """Return the same as ``Flat``, in a part of its own of the help."""
    return Parameter(name="*", group=title)


OfData, OfOutput = shown_as("Data"), shown_as("Output")


def _default(value: Any) -> str | None:
    """Return what the help says of a default; nothing of one that is nothing."""
    if value is None or value is False or value in ([], (), ""):
        return None
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


_PLAIN = Parameter(negative=(), show_env_var=False, show_default=_default)


@dataclass(frozen=True, kw_only=True)
class Json:
    """Options of a command that prints."""

    json: bool = False
    """Print JSON."""


@dataclass(frozen=True, kw_only=True)
class Replacing:
    """Options of a command that may replace what it wrote before."""

    force: bool = False
    """Replace what is there."""


@dataclass(frozen=True, kw_only=True)
class Rare:
    """Options of a command that has more of them than its help shows."""

    option: list[str] = field(default_factory=list)
    """A rare option, KEY=VALUE, as listed above."""


@dataclass(frozen=True, kw_only=True)
class Output(Replacing):
    """Options of a command that writes an artifact."""

    out: Annotated[Path, Parameter(name=("-o", "--out"))]
    """The folder to write."""


def command(name: str, example: str, *, details: str = "") -> App:
    """Return the app of a command: its help shows the ``example``, then the summary and the ``details``."""
    summary = next(names[name] for names in COMMANDS.values() if name in names)
    return App(
        name=name,
        help=f"{summary}\n\n{details}".strip(),
        help_prologue=shown_example(example),
        help_format="plaintext",
        default_parameter=_PLAIN,
        result_action="return_value",
    )


def shown_example(example: str) -> str:
    """Return command lines as the help of one begins with them."""
    return "\n".join(f"  {line}" for line in example.splitlines())


def subcommand(app: App, *, name: str | None = None) -> Callable[[F], F]:
    """Return a decorator that makes a function a command below ``app``; its docstring is the help."""

    def add(function: F) -> F:
        paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        text = "\n\n".join(" ".join(one.split()) for one in paragraphs)
        own = name or function.__name__
        app.command(function, name=own, help=text, help_prologue="")
        return function

    return add


def prepared(app: App, asked: str | None, arguments: Sequence[str]) -> list[str]:
    """Set where the options of the command ``asked`` come from, and return the arguments that are left.

    What is given on the command line wins over the environment, and that over the file of --config.
    """
    left, file = _without_config(arguments) if asked in _CONFIGURED else (list(arguments), None)
    sources: list[Any] = []
    if asked in _CONFIGURED:
        sources.append(Env("CALIB_SERVE_"))
    if file is not None:
        sources.append(Dict(_read_config(file), source=str(file), use_commands_as_keys=False))
    app.config = [*sources, _split_at_commas]
    return left


def given_as(option: str, arguments: Sequence[str]) -> str:
    """Return an option's name as it was given: on the command line, in the environment or in a file."""
    flag = f"--{option.replace('_', '-')}"
    flag = flag.rstrip("-")
    words = [word.partition("=")[0] for word in arguments]
    if flag in words:
        return flag
    if any(word.startswith(f"{option}=") for word in arguments):
        return f"--option {option}"
    variables = [f"CALIB_SERVE_{word.upper()}_{option.upper()}" for word in words[:1]]
    if found := [name for name in variables if name in os.environ]:
        return found[0]
    return f"{option} in {_without_config(arguments)[1]}" if "--config" in words else flag


def pairs(given: Sequence[str], option: str) -> dict[str, Any]:
    """Return the values of KEY=VALUE options, each as YAML reads it; numbers with commas between are a list.

    >>> pairs(["ridge=0.1", "gamma=0,.5", "of=top"], "--option")
    {'ridge': 0.1, 'gamma': [0, 0.5], 'of': 'top'}
    """
    found = {}
    for one in given:
        key, is_pair, text = one.partition("=")
        if not (is_pair and key and text):
            raise InputError(f"{option} takes KEY=VALUE, got {one!r}")
        found[key.strip().replace("-", "_")] = _value(text)
    return found


def _value(text: str) -> Any:
    from calib_serve.artifact.manifest import read_yaml

    if "," in text and text[0] not in "[{":
        return [_value(part.strip()) for part in text.split(",")]
    try:
        found = read_yaml(text.encode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise InputError(f"{text!r} cannot be read: {error}") from None
    if isinstance(found, str):  # YAML takes neither .5 nor 1e-3 for a number
        try:
            return float(found)
        except ValueError:
            return found
    return found


def completed(kind: type[T], held: Sequence[object], option: dict[str, Any]) -> T:
    """Return options of ``kind``: the fields that are ``held``, and those that are taken out of ``option``.

    ``held`` are options classes of the command; ``option`` holds its KEY=VALUE options, as ``pairs`` reads
    them, for fields that are seldom needed.
    """
    found = {one.name: getattr(part, one.name) for part in held for one in fields(part)}  # type: ignore[arg-type]
    of_kind = fields(kind)  # type: ignore[arg-type]
    values = {one.name: found[one.name] for one in of_kind if one.name in found}
    for one in of_kind:
        if one.name in option and one.name not in found:
            values[one.name] = _of_type(one, option.pop(one.name))
    return kind(**values)


def refuse_left(option: Mapping[str, Any], *kinds: type, held: Sequence[object]) -> None:
    """Raise InputError for a KEY=VALUE option that is none of these ``kinds``."""
    shown = {one.name for part in held for one in fields(part)}  # type: ignore[arg-type]
    rare = sorted({one.name for kind in kinds for one in fields(kind)} - shown)
    for name in option:
        also = f"; give it as --{name.replace('_', '-')}" if name in shown else ""
        raise InputError(f"--option takes one of {', '.join(rare)}, got {name!r}{also}")


def _of_type(field: Field[Any], value: Any) -> Any:
    """Return the value of a field, which must be of one of its types."""
    kinds = get_args(field.type) or (field.type,)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if bool in kinds:
        check(isinstance(value, bool), field.name, f"is true or false, got {value!r}")
    elif float in kinds:
        check(is_number, field.name, f"is a number, got {value!r}")
    elif int in kinds:
        check(is_number and value == int(value), field.name, f"is a whole number, got {value!r}")
        return int(value)
    elif not isinstance(value, str):
        return str(value)
    return value


def refuse_existing(out: Path, *, force: bool) -> None:
    """Raise InputError for an output that is there, unless it may be replaced."""
    if out.exists() and not force:
        raise InputError(f"{out} exists; give --force to replace it, or another --out")


def _read_config(file: Path) -> dict[str, Any]:
    """Read the options of a YAML file; dashes and underscores in their names are the same.

    A mapping stands for KEY=VALUE options.
    """
    from calib_serve.artifact.manifest import read_yaml
    from calib_serve.files import read_whole

    try:
        found = read_yaml(read_whole(file))
    except (OSError, ValueError) as error:
        raise InputError(f"--config: cannot read {file}: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise InputError(f"--config: {file} must hold options, NAME: VALUE a line")
    return {
        str(name).replace("_", "-"): [f"{key}={one}" for key, one in value.items()]
        if isinstance(value, dict)
        else value
        for name, value in found.items()
    }


def _without_config(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """The arguments without --config FILE, and that file."""
    left, file = [], None
    words = iter(arguments)
    for word in words:
        name, is_one, value = word.partition("=")
        if name != "--config":
            left.append(word)
            continue
        text = value if is_one else next(words, "")
        if not text:
            raise InputError("--config needs a file")
        file = Path(text)
    return left, file


def _split_at_commas(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Let an option that is a tuple take its values with commas between; a list is one that is repeated."""
    for argument in arguments:
        if not any(get_origin(hint) is tuple for hint in (argument.hint, *get_args(argument.hint))):
            continue
        argument.tokens[:] = [
            token.evolve(value=value.strip())
            for token in argument.tokens
            for value in (token.value.split(",") if token.source in ("cli", "env") else [token.value])
        ]
