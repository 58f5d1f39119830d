"""Runs a command: its options read, its errors explained."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, MissingArgumentError

import calib_serve
from calib_serve.app._command import Given, prepared
from calib_serve.app._commands import COMMANDS
from calib_serve.errors import CalibServeError, InputError, MissingDependency, OptionError

__all__ = ["program", "run_command"]


def program(asked: str | None = None) -> App:
    """Return the program; the command ``asked`` for is imported, of the others the summary alone is known."""
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
    given = Given()
    try:
        app = program(asked)
        tokens, given = prepared(app, asked, arguments)
        code = app(tokens, exit_on_error=False, print_error=False)
    except (CycloptsError, CalibServeError, ModuleNotFoundError) as error:
        says, code = _explained(error, asked, given)
        sys.stderr.write(f"calib-serve: {says}\n")
        return code
    return code if isinstance(code, int) else 0


def _explained(error: Exception, asked: str | None, given: Given) -> tuple[str, int]:
    """Return the line and the exit code of an error; raise one of a module of ours that is missing."""
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        names, command = " or ".join(error.argument.names), " ".join(error.command_chain or (asked or "",))
        return f"{command} needs {names}; see calib-serve {command} --help", 2
    if isinstance(error, CycloptsError):
        return " ".join(str(error).split()), 2
    if isinstance(error, OptionError):
        return f"{given.name(error.option)} {error.says}", 2
    if isinstance(error, CalibServeError):
        return str(error), 2 if isinstance(error, InputError) else 3
    if (getattr(error, "name", None) or "").startswith("calib_serve"):
        raise error
    return str(MissingDependency(str(getattr(error, "name", error)))), 3
