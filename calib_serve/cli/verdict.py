"""A verdict on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from calib_serve.judgement import Verdict

__all__ = ["show_verdict"]

_COLORS = {"calibrated": "green", "no_error_found": "cyan", "too_little": "yellow", "off": "red"}


def show_verdict(console: Console, verdict: Verdict, *, reasons: bool = False) -> None:
    """The headline in its colour, then its reasons if asked for, what changed and what to do, a line each."""
    console.print(verdict.headline, style=f"bold {_COLORS[verdict.level]}", markup=False)
    for sentence in (*(verdict.reasons if reasons else ()), *verdict.changed, *verdict.do):
        console.print(f"- {sentence}", markup=False)
