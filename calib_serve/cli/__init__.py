"""The command line: one file a command, and each imports what it needs when it runs.

A command's module imports typer and the standard library at its top, nothing heavier.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

import calib_serve
from calib_serve.errors import CalibServeError, MissingDependency

app = typer.Typer(
    name="calib-serve",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

_COMMANDS: tuple[tuple[str, str], ...] = (
    ("apply", "apply"),
    ("audit", "audit"),
    ("collect", "collect"),
    ("compare", "compare"),
    ("contract", "contract"),
    ("decide", "decide"),
    ("demo", "demo"),
    ("doctor", "doctor"),
    ("evaluate", "evaluate"),
    ("export", "export"),
    ("fit", "fit"),
    ("fuse", "fuse"),
    ("gateway", "gateway"),
    ("inspect", "inspect"),
    ("keys", "keys"),
    ("label", "label"),
    ("ledger", "ledger"),
    ("pack", "pack"),
    ("prior", "prior"),
    ("promote", "promote"),
    ("quickstart", "quickstart"),
    ("refit", "refit"),
    ("report", "report"),
    ("serve", "serve"),
    ("study", "study"),
    ("tokens", "tokens"),
    ("watch", "watch"),
)
"""(command, module in this package); the module's ``run`` is the command, its ``group`` several."""


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"calib-serve {calib_serve.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Make a deployed classifier's confidence mean what it says, and keep proving it."""


for _name, _module in _COMMANDS:
    _command = importlib.import_module(f"{__name__}.{_module}")
    if hasattr(_command, "group"):
        app.add_typer(_command.group, name=_name)
    else:
        app.command(_name)(_command.run)


def main() -> None:
    """Run the command line; our own errors become one line on stderr and exit code 2."""
    try:
        app()
    except CalibServeError as error:
        sys.stderr.write(f"calib-serve: {error}\n")
        sys.exit(2)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("calib_serve"):
            raise
        sys.stderr.write(f"calib-serve: {MissingDependency(str(error.name))}\n")
        sys.exit(2)
