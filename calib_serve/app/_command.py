"""The declaration of commands, and the sources of their options."""

# Without annotations of the future: those of a class below are read in the module of the class that inherits.
import difflib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnknownOptionError
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Dict, Env

import calib_serve
from calib_serve.app import COMMANDS
from calib_serve.core.errors import CalibServeError, InputError, MissingDependency, OptionError
from calib_serve.core.options.base import PYTHON, SCHEMA, check
from calib_serve.core.options.data import SplitData

F = TypeVar("F", bound=Callable[..., Any])

# Those that a scheduler or a container runs; whatever else is typed by a person needs no file.
_CONFIGURED = ("fit", "serve", "watch", "gateway", "label")
"""The commands that take --config FILE.yaml, and CALIB_SERVE_COMMAND_OPTION from the environment."""

_PREFIX = "CALIB_SERVE_"
_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)|_PORT_[0-9]")
"""In names of variables that say where a service of this name is, such as calib-serve-watch."""

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
class Output(Replacing):
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
    """Names of options by field, as they were given: a flag, a variable, or a name in a file."""

    def name(self, field: str) -> str:
        """The option's name as given, else its flag; KEY of --option where it has no flag."""
        no_flag = f"--option {field}" if "option" in self else f"--{field.replace('_', '-').rstrip('-')}"
        return self.get(field, no_flag)

    def note(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Note the names of a command's options; cyclopts calls it when every source was read."""
        # Fields of two classes of one command have different names, so a field names one option.
        for one in arguments:
            field = one.field_info.name
            if not one.tokens:
                self[field] = one.name
            elif (last := one.tokens[-1]).source not in ("cli", "env"):
                self[field] = f"{field} in {last.source}"
            else:
                self[field] = last.keyword or one.name

    def check_whole(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Raise OptionError for a fraction where a whole number is wanted; cyclopts would round it."""
        for one in arguments:
            asked = {*get_args(one.hint), one.hint}
            if int in asked and float not in asked:
                for token in one.tokens:
                    fraction = re.fullmatch(r"[+-]?\d*\.\d*", token.value)
                    says = f"is a whole number, got {token.value!r}"
                    check(fraction is None, one.field_info.name, says)


def _prepared(app: App, asked: str | None, arguments: Sequence[str]) -> tuple[list[str], _OptionNames]:
    """Set the sources of the options of the command ``asked``.

    What is given on the command line wins over the environment, and that over the file of --config. Return
    the arguments that are left, and how each option was given, which is known once the app has run.
    """
    # Taken out by hand: the file must be read before cyclopts asks its sources.
    left, file = _without_config(arguments) if asked in _CONFIGURED else (list(arguments), None)
    sources: list[Any] = []
    if asked in _CONFIGURED:
        sources += [_check_variables, Env(_PREFIX)]
    if file is not None:
        sources.append(Dict(_read_config(file), source=str(file), use_commands_as_keys=False))
    given = _OptionNames()
    # The order counts: commas are split once every source has given its tokens, and before they are checked.
    app.config = [*sources, _split_at_commas, given.note, given.check_whole]
    return left, given


def _check_variables(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Raise InputError for a variable with this command's prefix that names no option."""
    prefix = f"{_PREFIX}{'_'.join(commands).upper()}_"
    for name in sorted(name for name in os.environ if name.startswith(prefix)):
        if _OF_KUBERNETES.search(name) or name == "CALIB_SERVE_LABEL_BUDGET":  # of TorchServe's workers
            continue
        try:
            arguments.match(name.removeprefix(prefix), transform=_of_variable, delimiter="_")
        except ValueError:
            known = [prefix + _of_variable(one) for argument in arguments for one in argument.names]
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; see calib-serve {' '.join(commands)} --help"
            raise InputError(f"the variable {name} names no option{hint}") from None


def _of_variable(option: str) -> str:
    return option.upper().replace("-", "_").lstrip("_")


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
        raise InputError(f"{text!r} cannot be read: {error}") from None
    if isinstance(found, str):  # YAML takes neither .5 nor 1e-3 for a number
        try:
            return float(found)
        except ValueError:
            return found
    return found


def refuse_existing(out: Path, *, force: bool) -> None:
    """Raise InputError for an output that exists, unless it may be replaced."""
    if out.exists() and not force:
        raise InputError(f"{out} exists; give --force to replace it, or another --out")


def _read_config(file: Path) -> dict[str, Any]:
    """Read the options of a YAML file; dashes and underscores in their names are the same.

    A mapping stands for KEY=VALUE options.
    """
    from calib_serve.core.files import read_whole
    from calib_serve.scores import read_yaml

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
    """Split the arguments into those without --config FILE, and that file."""
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
    """Split the values of options that are tuples at commas; lists are repeated options."""
    for argument in arguments:
        if not any(get_origin(hint) is tuple for hint in (argument.hint, *get_args(argument.hint))):
            continue
        argument.tokens[:] = [
            token.evolve(value=value.strip())
            for token in argument.tokens
            # In a file a list is a list, and a name in it may hold a comma.
            for value in (token.value.split(",") if token.source in ("cli", "env") else [token.value])
        ]


def program(asked: str | None = None) -> App:
    """Make the program: the command ``asked`` is imported, of the others only the summary is known."""
    app = App(
        name="calib-serve",
        version=calib_serve.__version__,
        help="Make a deployed classifier's confidence mean what it says, and keep proving it.",
        help_format="plaintext",
        result_action="return_value",
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
        tokens, given = _prepared(app, asked, arguments)
        code = app(tokens, exit_on_error=False, print_error=False)
    except (CycloptsError, CalibServeError, ModuleNotFoundError) as error:
        says, code = _explained(error, asked, given)
        sys.stderr.write(f"calib-serve: {says}\n")
        return code
    return code if isinstance(code, int) else 0


def _explained(error: Exception, asked: str | None, given: _OptionNames) -> tuple[str, int]:
    """The line and the exit code of an error; raises the error of a missing module of ours."""
    if isinstance(error, CycloptsError):
        return _misused(error, asked, given), 2
    # The check of a class knows a field; a user knows the flag, variable or file that it came from.
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
