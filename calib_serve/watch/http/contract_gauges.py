"""How contracts and shadows stand as gauges; ``calib_serve.monitoring`` makes rules and alerts of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from calib_serve.watch.contracts import ClauseState
from calib_serve.watch.ledger import Version
from calib_serve.watch.shadow import ShadowState

__all__ = ["contract_rows", "shadow_rows"]

Rows = dict[str, list[tuple[tuple[str, ...], float]]]

_STATES: Mapping[str, float] = {"kept": 1.0, "unknown": 0.0, "broken": -1.0}
_VERDICTS: Mapping[str, float] = {"better": 1.0, "no worse": 0.5, "unknown": 0.0, "worse": -1.0}


def contract_rows(version: Version, states: Sequence[ClauseState]) -> Rows:
    """(labels, value) by the name of the series, with those that are not known as NaN."""
    rows: Rows = defaultdict(list)
    for one in states:
        for name, value in (
            ("promise", one.clause.promise),
            ("value", one.value),
            ("low", one.low),
            ("high", one.high),
            ("state", _STATES[one.state]),
            ("labels", one.labels),
            ("budget_left", one.budget_left),
            ("runs_out_seconds", one.runs_out),
        ):
            rows[f"calib_contract_{name}"].append(((*version, one.clause.name), value))
        for window, burn in one.burn.items():
            for name, value in (("burn_rate", burn.rate), ("burn_rate_low", burn.low)):
                rows[f"calib_contract_{name}"].append(((*version, one.clause.name, window), value))
    return dict(rows)


def shadow_rows(version: Version, states: Sequence[ShadowState]) -> Rows:
    """The same of shadows."""
    rows: Rows = defaultdict(list)
    for one in states:
        for name, value in (
            ("labels", one.labels),
            ("gain", one.gain),
            ("gain_low", one.low),
            ("gain_high", one.high),
            ("verdict", _VERDICTS[one.verdict]),
        ):
            rows[f"calib_shadow_{name}"].append(((*version, one.tag), value))
    return dict(rows)
