"""What the page and the API say of clauses and shadows, and numbers as the page writes them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from calib_serve.errors import MissingDependency
from calib_serve.names import as_duration
from calib_serve.watch.contracts import ClauseState
from calib_serve.watch.estimates import Number
from calib_serve.watch.http.charts import budget_bar, digits, promise_bar
from calib_serve.watch.maturity import duration
from calib_serve.watch.shadow import ShadowState

try:
    from markupsafe import Markup
except ImportError as error:
    raise MissingDependency("jinja2", "watch") from error

__all__ = [
    "between", "clause_cards", "clause_facts", "count", "interval", "percent", "plain",
    "shadow_facts", "shadow_rows", "signed", "when",
]  # fmt: skip

_WORDS: Mapping[str, tuple[str, str, str]] = {
    "kept": ("✓", "Kept", "calibrated"),
    "broken": ("✗", "Broken", "off"),
    "unknown": ("?", "Not yet known", ""),
}
"""(sign, word, style) of each state: none is told by its colour alone."""
_OF: Mapping[str, str] = {
    "act": "are right of what is acted on",
    "calibration": "is the error, less noise",
    "coverage": "are as sure as that",
}
_VERDICTS: Mapping[str, tuple[str, str]] = {
    "better": ("Better", "calibrated"),
    "no worse": ("No worse", "calibrated"),
    "worse": ("Worse", "off"),
    "unknown": ("Not yet known", ""),
}


def clause_cards(states: Sequence[ClauseState], class_names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """For the page, in the order of the contract."""
    return [_card(one, class_names) for one in states]


def _card(one: ClauseState, class_names: Sequence[str]) -> dict[str, Any]:
    sign, word, style = _WORDS[one.state]
    since = f" since {when(one.said_at)}" if one.said_at is not None and one.state != "unknown" else ""
    return {
        "name": one.clause.name,
        "says": one.clause.says(class_names),
        "sign": sign,
        "word": word + since,
        "style": style,
        "why": one.why,
        # Numbers alone, no text of users.
        "bar": Markup(promise_bar(one)),  # noqa: S704
        "budget": Markup(budget_bar(one.budget_left)),  # noqa: S704
        "numbers": [
            (
                "Predictions" if one.clause.kind == "coverage" else "Labels",
                count(one.labels),
                "counted since this clause is watched",
            ),
            (
                f"Over {as_duration(one.clause.per)}",
                percent(one.value, digits(one)),
                _OF[one.clause.kind] if math.isfinite(one.value) else "not known",
            ),
            ("At any time", _ends(one), "since it is watched, with 95 %"),
            ("Budget left", _left(one.budget_left), _runs_out(one)),
        ],
        "burn": [
            (window, _rate(each.rate), _rate(each.low))
            for window, each in one.burn.items()
            if math.isfinite(each.rate)
        ],
    }


def _ends(one: ClauseState) -> str:
    if not (math.isfinite(one.low) and math.isfinite(one.high)):
        return "n/a"
    return f"{one.low * 100:.{digits(one)}f} to {percent(one.high, digits(one))}"


def _left(left: float) -> str:
    if left >= 0 or math.isnan(left):
        return percent(left, 0)
    return f"{percent(-left, 0)} overspent"


def _runs_out(one: ClauseState) -> str:
    if math.isnan(one.budget_left):
        return "not known"
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
    return f"{rate:.2g}" if math.isfinite(rate) else "n/a"


def shadow_rows(states: Sequence[ShadowState]) -> list[dict[str, Any]]:
    """For the page."""
    rows = []
    for one in states:
        word, style = _VERDICTS[one.verdict]
        rows.append(
            {
                "tag": one.tag,
                "word": word,
                "style": style,
                "labels": count(one.labels),
                "gain": "n/a" if math.isnan(one.gain) else f"{one.gain:+.4f} ({_gains(one.low, one.high)})",
                "accuracy": "n/a"
                if math.isnan(one.accuracy_difference)
                else f"{one.accuracy_difference * 100:+.2f} points",
                "since": when(one.since),
                "says": one.says(),
            }
        )
    return rows


def _gains(low: float, high: float) -> str:
    return f"{low:+.4f} to {high:+.4f}" if math.isfinite(low) and math.isfinite(high) else "not known"


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


def when(seconds: float) -> str:
    """A moment, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds)) if math.isfinite(seconds) else "unknown"


def count(value: float) -> str:
    """A number of things."""
    return f"{value:,.0f}" if math.isfinite(value) else "n/a"


def percent(value: float, digits: int = 1) -> str:
    """A share in percent."""
    return "n/a" if math.isnan(value) else f"{value * 100:.{digits}f} %"


def signed(value: float) -> str:
    """A difference of shares, in points."""
    return "n/a" if math.isnan(value) else f"{value * 100:+.1f} points"


def between(number: Number) -> str:
    """The ends of an interval, in points."""
    if math.isnan(number.low):
        return "not known"
    return f"{number.low * 100:.1f} to {number.high * 100:.1f}"


def interval(number: Number) -> str:
    """A difference and its interval, in points."""
    return "n/a" if math.isnan(number.value) else f"{number.value * 100:+.1f} ({between(number)})"


def plain(value: float) -> str:
    """A number without a unit."""
    return "n/a" if math.isnan(value) else f"{value:.3f}"
