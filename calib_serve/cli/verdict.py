"""A verdict on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from calib_serve.judgement import Verdict

__all__ = ["show_verdict"]

_COLORS = {"calibrated": "green", "no_error_found": "cyan", "too_little": "yellow", "off": "red"}


def show_verdict(console: Console, verdict: Verdict, *, every: bool = False) -> None:
    """Print what a calibration brings, the headline in its colour, what changed and what to do first.

    ``every``: the reasons, the tests and all that is to do as well.
    """
    if verdict.gain:
        console.print(verdict.gain, style="bold", markup=False)
    console.print(verdict.headline, style=f"bold {_COLORS[verdict.level]}", markup=False)
    tests = [test.says() for test in verdict.tests if not test.alone]
    why = (*verdict.reasons, *tests) if every else ()
    for sentence in (*why, *verdict.changed, *(verdict.do if every else verdict.do[:1])):
        console.print(f"- {sentence}", markup=False)
