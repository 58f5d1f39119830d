"""The command line: one file a command, and each imports what it needs when it runs.

A command's module imports typer and the standard library at its top, nothing heavier.
"""

from __future__ import annotations

import importlib
import sys

import typer

from calib_serve.errors import CalibServeError

app = typer.Typer(
    name="calib-serve",
    help="Make a deployed classifier's confidence mean what it says, and keep proving it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

_COMMANDS: tuple[tuple[str, str], ...] = (
    ("evaluate", "evaluate"),
    ("fit", "fit"),
    ("inspect", "inspect"),
    ("keys", "keys"),
    ("pack", "pack"),
    ("report", "report"),
    ("serve", "serve"),
)
"""(command, module in this package); the module's function ``run`` is the command."""

for _name, _module in _COMMANDS:
    app.command(_name)(importlib.import_module(f"{__name__}.{_module}").run)


def main() -> None:
    """Run the command line; our own errors become one line on stderr and exit code 2."""
    try:
        app()
    except CalibServeError as error:
        sys.stderr.write(f"calib-serve: {error}\n")
        sys.exit(2)
