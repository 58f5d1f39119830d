"""Contracts and shadows on the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from calib_serve.core.text import UNKNOWN, count, percent, span, when
from calib_serve.monitor import ClauseState, ShadowState, duration
from calib_serve.report import Cell, Said, Table

_BURNS = ("1h", "6h", "3d")  # of which alerts are

_WORDS: Mapping[str, tuple[str, str]] = {
    "kept": ("Kept", "calibrated"),
    "broken": ("Broken", "off"),
    "unknown": ("Not yet known", "too_little"),
}
"""(word, level) of each state."""

_LEVELS: Mapping[str, str] = {
    "better": "calibrated",
    "no worse": "calibrated",
    "worse": "off",
    "unknown": "too_little",
}


def digits(one: ClauseState) -> int:
    """Count the digits of percent that tell promised errors apart: 1 for 98 %, 3 for 99.99 %."""
    return max(math.ceil(-math.log10(1 - one.clause.promise) - 1e-9) - 1, 1)


def contract_table(states: Sequence[ClauseState], class_names: Sequence[str]) -> Table:
    """A table of the promises and how they stand, for the page."""
    numbers = ("Promise", "State", "Labels", "Right", "At any time, 95 %", "Error budget left")
    heads = (*numbers, *(f"Burn rate {window}" for window in _BURNS))
    return Table("Contract", heads, [_clause(one, class_names) for one in states])


def _clause(one: ClauseState, class_names: Sequence[str]) -> list[Cell]:
    word, level = _WORDS[one.state]
    since = f"since {when(one.said_at)}" if one.said_at is not None else ""
    burns = [one.burn[window] for window in _BURNS]
    return [
        Cell(one.clause.says(class_names)),
        Cell(word, one.why or since, style=level),
        Cell(count(one.labels)),
        Cell(percent(one.value, digits(one))),
        Cell(span(one.low, one.high, digits(one))),
        Cell(_left(one.budget_left), _runs_out(one)),
        *(Cell(_rate(each.rate), f"at least {_rate(each.low)}" if each.low > 0 else "") for each in burns),
    ]


def _left(left: float) -> str:
    if left >= 0 or math.isnan(left):
        return percent(left, 0)
    return f"{percent(-left, 0)} overspent"


def _runs_out(one: ClauseState) -> str:
    if math.isnan(one.budget_left):
        return ""
    if one.budget_left <= 0:
        return "it is spent"
    if one.runs_out == math.inf:
        return "lasts at the present rate"
    return (
        f"runs out in {duration(one.runs_out)}"
        if math.isfinite(one.runs_out)
        else "for how long is not known"
    )


def _rate(rate: float) -> str:
    return f"{rate:.2g}" if math.isfinite(rate) else UNKNOWN


def shadows_say(states: Sequence[ShadowState]) -> list[Said]:
    """A sentence about each shadow, for the page."""
    return [Said(_LEVELS[one.verdict], one.says()) for one in states]
