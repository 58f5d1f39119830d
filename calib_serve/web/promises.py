"""Contracts and shadows on the page: promises and error budgets as bars of SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from calib_serve.core.names import as_duration
from calib_serve.core.text import UNKNOWN, count, percent, signed_points, span, when
from calib_serve.monitor import ClauseState, ShadowState, duration
from calib_serve.report import WIDE, Cell, Fact, Said, Table, picture

_EDGE = 6.0

_WORDS: Mapping[str, tuple[str, str]] = {
    "kept": ("Kept", "calibrated"),
    "broken": ("Broken", "off"),
    "unknown": ("Not yet known", "too_little"),
}
"""(word, level of its banner) of each state."""

_VERDICTS: Mapping[str, tuple[str, str]] = {
    "better": ("Better", "calibrated"),
    "no worse": ("No worse", "calibrated"),
    "worse": ("Worse", "off"),
    "unknown": ("Not yet known", "too_little"),
}


def digits(one: ClauseState) -> int:
    """Count the digits of percent that tell promised errors apart: 1 for 98 %, 3 for 99.99 %."""
    return max(math.ceil(-math.log10(1 - one.clause.promise) - 1e-9) - 1, 1)


@dataclass(frozen=True)
class _Scale:
    """Maps shares in [low, high] to the drawing."""

    low: float
    high: float

    @classmethod
    def around(cls, *shares: float, least: float) -> _Scale:
        known = [one for one in shares if math.isfinite(one)]
        span = max(max(known) - min(known), least)
        return cls(max(min(known) - 0.25 * span, 0.0), min(max(known) + 0.25 * span, 1.0))

    def x(self, share: float) -> float:
        inside = min(max((share - self.low) / (self.high - self.low), 0.0), 1.0)
        return round(_EDGE + inside * (WIDE - 2 * _EDGE), 2)


def _promise_bar(one: ClauseState) -> str:
    """An SVG bar of a value with its confidence sequence, and the promise; shaded where it is kept."""
    promise, places = one.clause.promise, digits(one)
    scale = _Scale.around(promise, one.value, one.low, one.high, least=2 * 10.0 ** -(places + 1))
    line, middle = scale.x(promise), (_EDGE + WIDE - _EDGE) / 2
    parts = [
        f'<rect class="floor" x="{line:g}" y="20" width="{WIDE - _EDGE - line:.2f}" height="22"/>',
        f'<line class="grid" x1="{_EDGE}" x2="{WIDE - _EDGE}" y1="31" y2="31"/>',
    ]
    if math.isfinite(one.low) and math.isfinite(one.high):
        low, high = scale.x(one.low), scale.x(one.high)
        parts.append(f'<rect class="bar" x="{low}" y="26" width="{max(high - low, 1):.2f}" height="10"/>')
        parts += [
            f'<line class="interval after" x1="{x}" x2="{x}" y1="24" y2="38"/>'
            for x in dict.fromkeys((low, high))
        ]
    if math.isfinite(one.value):
        parts.append(f'<circle class="dot after" cx="{scale.x(one.value)}" cy="31" r="4"/>')
    anchor = "start" if line < middle else "end"
    parts += [
        f'<line class="promise" x1="{line}" x2="{line}" y1="17" y2="44"/>',
        f'<text class="tick" x="{line}" y="12" text-anchor="{anchor}">{_promised(promise)}</text>',
        f'<text class="tick" x="{_EDGE}" y="56">{scale.low:.{places}%}</text>',
        f'<text class="tick" x="{WIDE - _EDGE}" y="56" text-anchor="end">{scale.high:.{places}%}</text>',
    ]
    return picture(_told(one), 60, parts)


def _promised(promise: float) -> str:
    return f"promised: {100 * promise:.10g} % or more"


def _told(one: ClauseState) -> str:
    told = _promised(one.clause.promise)
    if math.isfinite(one.value):
        told += f"; by labels {one.value:.{digits(one)}%}"
    if math.isfinite(one.low) and math.isfinite(one.high):
        told += f"; at any time between {one.low:.{digits(one)}%} and {one.high:.{digits(one)}%}"
    return told


def _budget_bar(left: float) -> str:
    """An SVG bar of the share of the error budget that is left; empty where it is unknown."""
    if math.isnan(left):
        return ""
    wide = WIDE - 2 * _EDGE
    parts = [f'<rect class="floor" x="{_EDGE}" y="2" width="{wide}" height="12"/>']
    if left > 0:
        parts.append(f'<rect class="left" x="{_EDGE}" y="2" width="{min(left, 1) * wide:.2f}" height="12"/>')
    else:
        parts.append(f'<rect class="spent" x="{_EDGE}" y="2" width="{wide}" height="12"/>')
    told = (
        f"{left:.0%} of the error budget is left"
        if left >= 0
        else f"the error budget is overspent by {-left:.0%}"
    )
    return picture(told, 16, parts)


class Card(NamedTuple):
    """A clause as the page shows it; ``bar`` and ``budget`` are SVG."""

    name: str
    says: str
    said: Said
    why: str
    bar: Markup
    budget: Markup
    facts: tuple[Fact, ...]
    burn: Table


def clause_card(one: ClauseState, class_names: Sequence[str]) -> Card:
    """Make the page's card of a clause."""
    word, level = _WORDS[one.state]
    since = f" since {when(one.said_at)}" if one.said_at is not None and one.state != "unknown" else ""
    rates = [
        (window, _rate(each.rate), _rate(each.low))
        for window, each in one.burn.items()
        if math.isfinite(each.rate)
    ]
    known = "are right of what is acted on" if math.isfinite(one.value) else ""
    return Card(
        one.clause.name,
        one.clause.says(class_names),
        Said(level, f"{word}{since}."),
        f"{one.why}." if one.why else "",
        # Numbers alone, no text of users.
        Markup(_promise_bar(one)),  # noqa: S704
        Markup(_budget_bar(one.budget_left)),  # noqa: S704
        (
            Fact("Labels", count(one.labels), "counted since this clause is watched"),
            Fact(f"Over {as_duration(one.clause.per)}", percent(one.value, digits(one)), known),
            Fact("At any time", span(one.low, one.high, digits(one)), "since it is watched, with 95 %"),
            Fact("Budget left", _left(one.budget_left), _runs_out(one)),
        ),
        Table("Burn rates", ("Window", "Burn rate", "At least, 95 %"), rates),
    )


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
    return [Said(_VERDICTS[one.verdict][1], one.says()) for one in states]


def shadow_table(states: Sequence[ShadowState]) -> Table:
    """A table of the shadows' numbers, for the page."""
    heads = ("Artifact", "Verdict", "Labels", "Gain, with 95 % interval", "Accuracy, points", "Since")
    return Table("Shadows", heads, [_shadow(one) for one in states])


def _shadow(one: ShadowState) -> list[Cell]:
    word, level = _VERDICTS[one.verdict]
    known = math.isfinite(one.low) and math.isfinite(one.high)
    ends = f"{one.low:+.4f} to {one.high:+.4f}" if known else UNKNOWN
    gain = UNKNOWN if math.isnan(one.gain) else f"{one.gain:+.4f} ({ends})"
    return [
        Cell(one.tag),
        Cell(word, style=level),
        Cell(count(one.labels)),
        Cell(gain),
        Cell(signed_points(one.accuracy_difference, 2)),
        Cell(when(one.since)),
    ]
