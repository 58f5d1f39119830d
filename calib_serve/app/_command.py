"""The declaration of commands and of their options."""

# Without annotations of the future: those of a class below are read in the module of the class that inherits.
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnknownOptionError
from cyclopts.argument import ArgumentCollection

import calib_serve
from calib_serve.app import COMMANDS
from calib_serve.core.errors import CalibServeError, InputError, MissingDependency, OptionError
from calib_serve.core.options.base import PYTHON, SCHEMA, check
from calib_serve.core.options.data import SplitData

F = TypeVar("F", bound=Callable[..., Any])

Flat = Parameter(name="*")
"""The fields of an options class as the command's own options."""


def panel(title: str) -> Parameter:
    """Options shown in a part of the help of their own, otherwise as ``Flat`` shows them."""
    return Parameter(name="*", group=Group(title, sort_key=1))


OfData, OfOutput = panel("Data"), panel("Output")


class _Command(App):
    """A command whose options are shown as their fields are marked; a flag that is on has --no-OPTION."""

    def assemble_argument_collection(
        self, *, default_parameter: Parameter | None = None, parse_docstring: bool = False
    ) -> ArgumentCollection:
        """The arguments, without those marked PYTHON or SCHEMA."""
        found = super().assemble_argument_collection(
            default_parameter=default_parameter, parse_docstring=parse_docstring
        )
        for argument in found:
            # A flag that is on by default could otherwise only be said again.
            if argument.field_info.default is True:
                off = f"--no-{argument.name.removeprefix('--')}"
                argument.parameter = Parameter.combine(argument.parameter, Parameter(negative=off))
        # A field that is taken out here keeps its default; the class is built of the others.
        hidden = {PYTHON} if self.name == ("schema",) else {PYTHON, SCHEMA}
        found[:] = [one for one in found if hidden.isdisjoint(marks(one.field_info.annotation))]
        return found


def marks(annotation: Any) -> tuple[Any, ...]:
    """The marks of an option's field, such as PYTHON."""
    return getattr(annotation, "__metadata__", ())


def _default(value: Any) -> str | None:
    """The help's text of a default; None for an empty one."""
    if value is None or value is False or value in ([], (), ""):
        return None
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


# No --no-FLAG and --empty-LIST beside each option: they would double the help.
_PLAIN = Parameter(negative=(), show_env_var=False, show_default=_default)


@dataclass(frozen=True, kw_only=True)
class Json:
    """Options of a command that prints."""

    json: bool = False
    """Print JSON."""


@dataclass(frozen=True, kw_only=True)
class Replacing:
    """Options of a command that may replace an earlier output."""

    force: bool = False
    """Replace what is there."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """Options of a command that writes an artifact."""

    out: Annotated[Path, Parameter(name=("-o", "--out"))]
    """The folder to write."""


def command(name: str, example: str, *, details: str = "") -> App:
    """Make a command's app: its help shows the ``example``, then the summary and the ``details``."""
    summary = next(names[name] for names in COMMANDS.values() if name in names)
    return _Command(
        name=name,
        version_flags=(),  # "refit --version 2" means another version
        help=f"{summary}\n\n{details}".strip(),
        help_prologue=shown_example(example),
        help_format="plaintext",
        default_parameter=_PLAIN,
        result_action="return_value",
    )


def shown_example(example: str) -> str:
    """Command lines as the help begins with them."""
    return "\n".join(f"  {line}" for line in example.splitlines())


def subcommand(app: App) -> Callable[[F], F]:
    """Decorate a function as a command below ``app``; its docstring is the help."""

    def add(function: F) -> F:
        # Help is wrapped to the terminal: line ends of the source would break lines twice.
        paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        text = "\n\n".join(" ".join(one.split()) for one in paragraphs)
        app.command(function, name=function.__name__.strip("_"), help=text, help_prologue="")
        return function

    return add


class _OptionNames(dict[str, str]):
    """Names of a command's options by field: its class's check knows a field, and a user the flag."""

    def name(self, field: str) -> str:
        """The option's flag; KEY of --option where it has none."""
        no_flag = f"--option {field}" if "option" in self else f"--{field.replace('_', '-').rstrip('-')}"
        return self.get(field, no_flag)

    def note(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Note the names of a command's options; cyclopts calls it when the command line was read."""
        # Fields of two classes of one command have different names, so a field names one option.
        self.update({one.field_info.name: one.name for one in arguments})


def _check_whole(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Raise OptionError for a fraction where a whole number is wanted; cyclopts would round it."""
    for one in arguments:
        asked = _plain_types(one.hint)
        if int in asked and float not in asked:
            for token in one.tokens:
                fraction = re.fullmatch(r"[+-]?\d*\.\d*", token.value)
                check(fraction is None, one.field_info.name, f"is a whole number, got {token.value!r}")


def _plain_types(hint: Any) -> set[Any]:
    """The types that a hint is made of, such as int of ``tuple[int | None, ...] | None``."""
    inner = get_args(hint)
    return {hint}.union(*map(_plain_types, inner)) if inner else {hint}


def _split_at_commas(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Split the values of options that are tuples at commas; lists are repeated options."""
    for argument in arguments:
        if any(get_origin(hint) is tuple for hint in (argument.hint, *get_args(argument.hint))):
            argument.tokens[:] = [
                token.evolve(value=value.strip())
                for token in argument.tokens
                for value in token.value.split(",")
            ]


def pairs(given: Sequence[str], option: str) -> dict[str, Any]:
    """The values of KEY=VALUE options, each as YAML reads it; numbers with commas between are a list.

    >>> pairs(["ridge=0.1", "gamma=0,.5", "of=top"], "--option")
    {'ridge': 0.1, 'gamma': [0, 0.5], 'of': 'top'}
    """
    found = {}
    for one in given:
        key, is_pair, text = one.partition("=")
        if not (is_pair and key and text):
            raise InputError(f"{option} takes KEY=VALUE, got {one!r}")
        name = key.strip().replace("-", "_")
        if name in found:
            raise InputError(f"{option} gives {name} twice; give it once")
        found[name] = _value(text)
    return found


def named_columns(given: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """The columns of NAME=COLUMN options, by the names that are ``known``.

    >>> named_columns(["id=order_id"], ("id", "label"))
    {'id': 'order_id'}
    """
    found: dict[str, str] = {}
    for one in given:
        name, is_named, column = one.partition("=")
        fits = bool(is_named) and name in known and name not in found
        check(fits, "column", f"is NAME=COLUMN, once for each of {', '.join(known)}, got {one!r}")
        found[name] = column
    return found


def _value(text: str) -> Any:
    from calib_serve.scores import read_yaml

    if "," in text and text[0] not in "[{":
        return [_value(part.strip()) for part in text.split(",")]
    try:
        found = read_yaml(text.encode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise InputError(f"{text!r} cannot be read: {' '.join(str(error).split())}") from None
    if isinstance(found, str):  # YAML takes neither .5 nor 1e-3 for a number
        try:
            return float(found)
        except ValueError:
            return found
    return found


def refuse_existing(out: Path, *, unless: str = "remove it") -> None:
    """Raise InputError for an output that exists."""
    if out.exists():
        raise InputError(f"{out} exists; {unless}, or give another --out")


def program(asked: str | None = None) -> App:
    """Make the program: the command ``asked`` is imported, of the others only the summary is known."""
    app = App(
        name="calib-serve",
        version=calib_serve.__version__,
        help="Make a deployed classifier's confidence mean what it says, and keep proving it.",
        help_format="plaintext",
        result_action="return_value",
        config=[_split_at_commas, _check_whole],
    )
    app.register_install_completion_command(show=False)
    for title, names in COMMANDS.items():
        for name, summary in names.items():
            module = f"calib_serve.app.{name}"
            # The modules of other commands stay unread: each imports what it needs, torch among it.
            if name == asked:
                own = importlib.import_module(module).app
                own.group = title
                app.command(own, name=name)
            else:
                app.command(f"{module}:app", name=name, help=summary, group=title)
    return app


def run_command(arguments: Sequence[str]) -> int:
    """Run a command line, and return its exit code; an error becomes one line on stderr."""
    asked = next((word for word in arguments if not word.startswith("-")), None)
    given = _OptionNames()
    try:
        app = program(asked)
        app.config = [given.note, *app.config]
        code = app(arguments, exit_on_error=False, print_error=False)
    except (CycloptsError, CalibServeError, ModuleNotFoundError) as error:
        says, code = _explained(error, asked, given)
        sys.stderr.write(f"calib-serve: {says}\n")
        return code
    return code if isinstance(code, int) else 0


def _explained(error: Exception, asked: str | None, given: _OptionNames) -> tuple[str, int]:
    """The line and the exit code of an error; raises the error of a missing module of ours."""
    if isinstance(error, CycloptsError):
        return _misused(error, asked, given), 2
    if isinstance(error, OptionError):
        return f"{given.name(error.option)} {error.says}", 2
    if isinstance(error, CalibServeError):
        says = str(error)
        return f"{says}{_said_once(says, given)}", 2 if isinstance(error, InputError) else 3
    # A module of ours that is missing is a defect, and no extra that one could install.
    if (getattr(error, "name", None) or "").startswith("calib_serve"):
        raise error
    return str(MissingDependency(str(getattr(error, "name", error)))), 3


def _misused(error: CycloptsError, asked: str | None, given: _OptionNames) -> str:
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        names, command = " or ".join(error.argument.names), " ".join(error.command_chain or (asked or "",))
        return f"{command} needs {names}; see calib-serve {command} --help"
    says = " ".join(str(error).split())
    if not isinstance(error, UnknownOptionError):
        return says
    unknown = (error.token.keyword or "").partition("=")[0]
    if how := _said_once(unknown, given):
        return f"{asked} takes no {unknown}{how}"
    return says + f" A setting is given as --option {unknown.lstrip('-')}=VALUE." * ("option" in given)


def _said_once(says: str, given: _OptionNames) -> str:
    """How to give an option in ``says`` that a command reads in its --schema alone; '' where it has none."""
    named = {option.replace("-", "_") for option in re.findall(r"--([a-z][a-z-]+)", says)}
    by_schema = named.intersection(one.name for one in fields(SplitData)) - given.keys()
    if "schema" not in given or not by_schema:
        return ""
    return "; calib-serve schema DATA OPTIONS -o FILE writes it down, and --schema FILE takes it"
