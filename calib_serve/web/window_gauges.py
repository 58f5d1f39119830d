"""Gauges of a watch's windows: estimates, verdicts, contracts and shadows of each version."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from calib_serve.monitor import (
    WINDOWS,
    ClauseState,
    ShadowState,
    TrafficShares,
    Watch,
    Window,
    estimated_gap,
    rate_changes,
    source_gaps,
)
from calib_serve.receipts import DAY, Version

Rows = dict[str, list[tuple[tuple[str, ...], float]]]

FINITE_WINDOWS = tuple(name for name, seconds in WINDOWS.items() if math.isfinite(seconds))
"""The names of the windows that have series."""

_SLICES = "24h"  # the window of segments and classes
_VERDICTS = {"off": 1.0, "no_error_found": 0.5, "calibrated": 0.0}
_PROVISIONAL = ("predictions", "labels", "accuracy", "gap", "ece", "noise_floor")
_STATES = {"kept": 1.0, "unknown": 0.0, "broken": -1.0}
_SHADOWS = {"better": 1.0, "no worse": 0.5, "unknown": 0.0, "worse": -1.0}


class WindowGauges:
    """The window series of versions of ``watch``.

    Those of a version are kept for some seconds, and longer where there are so many versions that a scrape
    would take longer than a fifth of a second for them: then each renews the oldest, new ones first.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._lock = threading.Lock()
        self._made: dict[Version, tuple[float, Rows]] = {}

    def rows(self, versions: Sequence[Version]) -> dict[Version, Rows]:
        """Rows (labels, value) by series, for the versions whose rows are made by now."""
        with self._lock:
            self._made = {version: self._made[version] for version in versions if version in self._made}
            began = time.monotonic()
            oldest = sorted(versions, key=lambda v: self._made.get(v, (-math.inf, {}))[0])
            for i, version in enumerate(oldest):
                now = time.monotonic()
                known = self._made.get(version)
                # Kept for 15 s, as scrapes come from several servers; one scrape spends .2 s on windows.
                if (known and now - known[0] < 15.0) or (i and now - began > 0.2):
                    break
                self._made[version] = now, self._of(version)
            return {version: rows for version, (_, rows) in self._made.items()}

    def age(self) -> float:
        """Seconds since the oldest rows were made; NaN without rows."""
        with self._lock:
            return time.monotonic() - min((at for at, _ in self._made.values()), default=math.nan)

    def _of(self, version: Version) -> Rows:
        rows: Rows = defaultdict(list)
        found = self._watch.windows(version, FINITE_WINDOWS, provisional=False)
        for name, window in found.items():
            for number, value in _numbers(window).items():
                rows[f"calib_window_{number}"].append(((*version, name), value))
        waits = [name for name, w in found.items() if w.immature.labels.any() and not w.sums.labels.any()]
        for name, window in self._watch.windows(version, waits).items():
            numbers = _numbers(window)
            for number in _PROVISIONAL:
                rows[f"calib_provisional_{number}"].append(((*version, name), numbers[number]))
        for key, sums in found[_SLICES].slices.items():
            if key.kind in ("segment", "class") and key.name:
                gap = estimated_gap(sums)
                labels = (*version, key.kind, key.name)
                rows["calib_slice_gap"].append((labels, gap.value))
                rows["calib_slice_gap_error"].append((labels, gap.se))
        day = found[_SLICES]
        for one in source_gaps(day.sums, day.by_name("source"), day.groups):
            rows["calib_source_gap_difference"].append(((*version, one.name), one.difference))
            rows["calib_source_gap_difference_error"].append(((*version, one.name), one.se))
        for series, values in _shares(self._watch.class_shares(version, _SLICES)).items():
            rows[series] += [((*version, *more), value) for more, value in values]
        for clause in self._watch.contract_states(version):
            for series, values in _of_clause(clause).items():
                rows[series] += [((*version, clause.clause.name, *more), value) for more, value in values]
        for shadow in self._watch.shadow_states(version):
            for series, value in _of_shadow(shadow).items():
                rows[series].append(((*version, shadow.tag), value))
        # 1 where the latest day of the week is labelled at other rates than the days before.
        moved = bool(rate_changes(*found["7d"].split(DAY)).moved)
        rows["calib_label_rate_moved"].append((version, float(moved)))
        return dict(rows)


def _numbers(window: Window) -> Mapping[str, float]:
    found = window.estimates
    return {
        "predictions": found.served,
        "labels": found.labels,
        "labels_effective": found.effective,
        "accuracy": found.accuracy.value,
        "gap": found.gap.value,
        "gap_error": found.gap.se,
        "ece": found.ece,
        "debiased_ece": found.debiased_ece.value,
        "debiased_ece_low": found.debiased_ece.low,
        "debiased_ece_high": found.debiased_ece.high,
        "noise_floor": found.noise_floor,
        "brier": found.brier.value,
        "coverage": found.coverage,
        "immature_share": window.immature_share,
        "design_effect": found.design_effect,
        "verdict": _VERDICTS.get(window.verdict.level, math.nan),
    }


def _of_clause(one: ClauseState) -> Rows:
    """The series of a clause, by the rest of their names."""
    numbers = {
        "promise": one.clause.promise,
        "value": one.value,
        "low": one.low,
        "high": one.high,
        "state": _STATES[one.state],
        "labels": one.labels,
        "budget_left": one.budget_left,
        "runs_out_seconds": one.runs_out,
    }
    return {
        **{f"calib_contract_{name}": [((), value)] for name, value in numbers.items()},
        "calib_contract_burn_rate": [((name,), each.rate) for name, each in one.burn.items()],
        "calib_contract_burn_rate_low": [((name,), each.low) for name, each in one.burn.items()],
    }


def _of_shadow(state: ShadowState) -> Mapping[str, float]:
    return {
        "calib_shadow_labels": state.labels,
        "calib_shadow_gain": state.gain,
        "calib_shadow_gain_low": state.low,
        "calib_shadow_gain_high": state.high,
        "calib_shadow_verdict": _SHADOWS[state.verdict],
    }


def _shares(found: TrafficShares) -> Rows:
    """The class shares and the results of their tests; unknown shares are left out."""
    if found.kind == "unknown":
        return {}
    if found.kind == "other":  # the shares are of an explanation that does not hold
        return {"calib_class_shares_explain": [((), 0.0)]}
    return {
        "calib_class_share": [((one.name,), one.share) for one in found.classes],
        "calib_class_share_error": [((one.name,), one.error) for one in found.classes],
        "calib_class_shares_moved": [((), float(found.kind == "moved"))],
        "calib_class_shares_explain": [((), 1.0)],
    }
