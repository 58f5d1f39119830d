"""The command line: one file a noun, and each is imported when its command runs.

A command is a function of a frozen options class (``calib_serve.options``), from which its options, their
help and their checks come. It returns None or an exit code: 0 done, 1 a verdict or check says no, 2 wrong
use, 3 something else failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import calib_serve
from calib_serve.app._commands import COMMANDS

__all__ = ["main", "run"]


def run(arguments: Sequence[str]) -> int:
    """Run a command line, and return its exit code; an error becomes one line on stderr."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_overview())  # at once: nothing of any library
        return 0
    if arguments[0] == "--version":
        sys.stdout.write(f"calib-serve {calib_serve.__version__}\n")
        return 0
    from calib_serve.app._program import run_command

    return run_command(arguments)


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))


def _overview() -> str:
    lines = [
        "Usage: calib-serve COMMAND [OPTIONS]; calib-serve COMMAND --help shows an example and all options",
        "",
        "Make a deployed classifier's confidence mean what it says, and keep proving it.",
    ]
    for title, names in COMMANDS.items():
        lines += ["", title, *(f"  {name:<12}{summary}" for name, summary in names.items())]
    return "\n".join([*lines, "", "calib-serve --version; --install-completion for bash, zsh and fish", ""])
