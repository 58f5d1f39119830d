"""What the page and the API say of clauses and shadows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from calib_serve.errors import MissingDependency
from calib_serve.names import as_duration
from calib_serve.pages import Cell, Fact, Said, Table
from calib_serve.watch.contracts import ClauseState
from calib_serve.watch.http.charts import budget_bar, digits, promise_bar
from calib_serve.watch.shadow import ShadowState
from calib_serve.watch.windows import duration
from calib_serve.words import UNKNOWN, count, percent, signed_points, span, when

try:
    from markupsafe import Markup
except ImportError as error:
    raise MissingDependency("jinja2", "watch") from error

__all__ = ["Card", "clause_cards", "clause_facts", "shadow_facts", "shadow_table", "shadows_say"]

_WORDS: Mapping[str, tuple[str, str]] = {
    "kept": ("Kept", "calibrated"),
    "broken": ("Broken", "off"),
    "unknown": ("Not yet known", "too_little"),
}
"""(word, level of its banner) of each state."""
_OF: Mapping[str, str] = {
    "act": "are right of what is acted on",
    "calibration": "is the error, less noise",
    "coverage": "are as sure as that",
}
_VERDICTS: Mapping[str, tuple[str, str]] = {
    "better": ("Better", "calibrated"),
    "no worse": ("No worse", "calibrated"),
    "worse": ("Worse", "off"),
    "unknown": ("Not yet known", "too_little"),
}


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


def clause_cards(states: Sequence[ClauseState], class_names: Sequence[str] = ()) -> list[Card]:
    """For the page, in the order of the contract."""
    return [_card(one, class_names) for one in states]


def _card(one: ClauseState, class_names: Sequence[str]) -> Card:
    word, level = _WORDS[one.state]
    since = f" since {when(one.said_at)}" if one.said_at is not None and one.state != "unknown" else ""
    rates = [
        (window, _rate(each.rate), _rate(each.low))
        for window, each in one.burn.items()
        if math.isfinite(each.rate)
    ]
    known = _OF[one.clause.kind] if math.isfinite(one.value) else ""
    return Card(
        one.clause.name,
        one.clause.says(class_names),
        Said(level, f"{word}{since}."),
        f"{one.why}." if one.why else "",
        # Numbers alone, no text of users.
        Markup(promise_bar(one)),  # noqa: S704
        Markup(budget_bar(one.budget_left)),  # noqa: S704
        (
            Fact(
                "Predictions" if one.clause.kind == "coverage" else "Labels",
                count(one.labels),
                "counted since this clause is watched",
            ),
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
    """For the page: what the labels say of each."""
    return [Said(_VERDICTS[one.verdict][1], one.says()) for one in states]


def shadow_table(states: Sequence[ShadowState]) -> Table:
    """For the page: the numbers of each."""
    heads = ("Artifact", "Verdict", "Labels", "Gain, with 95 % interval", "Accuracy, points", "Since")
    return Table("Shadows", heads, [_shadow(one) for one in states])


def _shadow(one: ShadowState) -> list[Cell]:
    word, level = _VERDICTS[one.verdict]
    gain = UNKNOWN if math.isnan(one.gain) else f"{one.gain:+.4f} ({_gains(one.low, one.high)})"
    return [
        Cell(one.tag),
        Cell(word, style=level),
        Cell(count(one.labels)),
        Cell(gain),
        Cell(signed_points(one.accuracy_difference, 2)),
        Cell(when(one.since)),
    ]


def _gains(low: float, high: float) -> str:
    return f"{low:+.4f} to {high:+.4f}" if math.isfinite(low) and math.isfinite(high) else UNKNOWN


def clause_facts(states: Sequence[ClauseState], class_names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The same as numbers, for JSON: null where something is not known."""
    return [
        {
            "clause": one.clause.name,
            "kind": one.clause.kind,
            "says": one.clause.says(class_names),
            "promise": one.clause.promise,
            "above": one.clause.above,
            "per_seconds": one.clause.per,
            "segment": one.clause.segment,
            "predicted": one.clause.predicted,
            "state": one.state,
            "said_at": one.said_at,
            "why": one.why,
            "labels": one.labels,
            "value": _known(one.value),
            "low": _known(one.low),
            "high": _known(one.high),
            "budget_left": _known(one.budget_left),
            "runs_out_seconds": _known(one.runs_out),
            "lasts": one.runs_out == math.inf,
            "burn": {
                window: {"rate": _known(each.rate), "low": _known(each.low)}
                for window, each in one.burn.items()
            },
        }
        for one in states
    ]


def shadow_facts(states: Sequence[ShadowState]) -> list[dict[str, Any]]:
    """The same of shadows."""
    return [
        {
            "tag": one.tag,
            "verdict": one.verdict,
            "says": one.says(),
            "labels": one.labels,
            "gain": _known(one.gain),
            "low": _known(one.low),
            "high": _known(one.high),
            "accuracy_difference": _known(one.accuracy_difference),
            "log_evidence": {name: _known(value) for name, value in one.log_evidence.items()},
            "since": _known(one.since),
        }
        for one in states
    ]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
