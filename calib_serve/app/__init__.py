"""The command line: a file a noun, imported when its command runs.

A command is a function of a frozen options class (``calib_serve.core.options``), from which its options,
their help and their checks come. It returns None or an exit code: 0 done, 1 a verdict or check says no, 2
wrong use, 3 something else failed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import calib_serve

__all__ = ["COMMANDS", "main", "run"]

COMMANDS = {
    "Calibrate": {
        "quickstart": "Write a project to start from: a script, its configuration, and how to run it.",
        "schema": "Write down what the scores of a file are, for every other command.",
        "evaluate": "Judge scores: a verdict, every metric with its interval, and a page of it all.",
        "fit": "Fit a calibration, say what it changed, and write it as an artifact.",
        "methods": "Show what a method is for, and its options.",
        "compare": "Compare methods on held-out samples, or run a study of the papers.",
        "decide": "Add actions by cost, thresholds, sets and abstention, with guarantees.",
    },
    "Deploy": {
        "inspect": "Show what an artifact or archive holds, or where an archive can be calibrated.",
        "fuse": "Put a calibration into a model: onnx, torch, or a Triton repository.",
        "pack": "Pack a calibrated model as a TorchServe archive.",
        "serve": "Run TorchServe over calibrated archives.",
        "gateway": "Calibrate between clients and a server of the Open Inference Protocol.",
        "contract": "Say what confidence promises in production, and whether it can be kept.",
    },
    "Watch": {
        "watch": "Count predictions and labels, look for drift, publish metrics and a page.",
        "label": "Send labels that came back: a file, or a Kafka topic.",
        "refit": "Fit again on recent labels, promote the next version, or follow class shares.",
        "audit": "Compute the watch's numbers from logs in files or a database.",
        "export": "Write probabilities, monitoring rules, or tested versions for other programs.",
    },
    "Keep": {
        "doctor": "Say what would not work on this host, and what to do.",
        "keys": "Make and rotate the keys that sign receipts, and tokens.",
        "ledger": "Check and back up a ledger; take labels back.",
    },
}
"""The commands by what they are for, in the order that a user meets them."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line, and return its exit code; an error becomes one line on stderr."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_overview())  # at once: nothing of any library
        return 0
    if arguments[0] == "--version":
        sys.stdout.write(f"calib-serve {calib_serve.__version__}\n")
        return 0
    from calib_serve.app._command import run_command

    return run_command(arguments)


def main() -> None:
    """Run the command line of this process; what goes is one line, as errors are."""
    from calib_serve.core.errors import Deprecated

    shown = warnings.formatwarning
    warnings.formatwarning = lambda told, kind, *where: (
        f"calib-serve: {told}\n" if issubclass(kind, Deprecated) else shown(told, kind, *where)
    )
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
