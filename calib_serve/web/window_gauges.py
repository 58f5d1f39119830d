"""Gauges of a watch's windows: estimates, verdicts and contracts of each version."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from calib_serve.core.bins import Bins, psi
from calib_serve.monitor import (
    ClauseState,
    Kept,
    Number,
    Watch,
    Window,
    estimated_gap,
    rate_changes,
    source_gaps,
    window_rows,
)
from calib_serve.receipts import DAY, Key, Sums, Version
from calib_serve.web.limits import Limits
from calib_serve.web.monitoring.files import WINDOWS

Rows = dict[str, list[tuple[tuple[str, ...], float]]]

_SLICED = "24h"  # the window of segments and classes, and of numbers that nobody asked another one of
_AGAIN = "1h"  # says whether what is off in that one goes on
_GO_ON = ("debiased_ece_high", "confidence_psi")
"""The numbers of a shorter window, which say whether what an alert warns of goes on."""
_VERDICTS = {"off": 1.0, "no_error_found": 0.5, "calibrated": 0.0}
_STATES = {"kept": 1.0, "unknown": 0.0, "broken": -1.0}


class WindowGauges:
    """The window series of versions of ``watch``, made anew when their sums changed (``Kept``)."""

    def __init__(self, watch: Watch, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._watch, self._clock = watch, clock
        self._gaps: dict[Version, Mapping[tuple[str, Key], tuple[Sums, Number]]] = {}
        self._asked: tuple[str, ...] = (_SLICED,)
        self._kept = Kept(self._of, clock=clock)

    def ask(self, window: str) -> None:
        """Have the numbers of a window of ``monitoring.files.WINDOWS`` from now on."""
        if window not in self._asked:
            self._asked = (*self._asked, window)
            self._kept = Kept(self._of, clock=self._clock)

    def age(self) -> float:
        """Seconds since the oldest rows were made; NaN without any."""
        return self._kept.age()

    def rows(self, sums: Mapping[Version, Sums]) -> Rows:
        """Rows (labels, value) by series, of the versions whose rows are made by now.

        Args:
            sums: The sums of each version.
        """
        whole: Rows = defaultdict(list)
        self._gaps = {version: gaps for version, gaps in self._gaps.items() if version in sums}
        for rows in self._kept.of(sums).values():
            for name, more in rows.items():
                whole[name] += more
        return whole

    def _of(self, version: Version) -> Rows:
        rows: Rows = defaultdict(list)
        self._add_windows(rows, version)
        for clause in self._watch.contract_states(version):
            for series, values in _of_clause(clause).items():
                rows[series] += [((*version, clause.clause.name, *more), value) for more, value in values]
        return rows

    def _add_windows(self, rows: Rows, version: Version) -> None:
        watch, asked = self._watch, self._asked
        names = sorted({*asked, *(short for name in asked for short in WINDOWS[name][-1].split("|"))})
        found = watch.windows(version, {*names, "7d"})
        waits, watched = found["24h"].maturity.seconds > 0, watch.models.get(version)
        served = watch.windows_until_now(version, names) if waits else found
        of_bins = list(window_rows(watch, {name: found[name] for name in asked}, served))
        # Bins in which nothing is are left out, but for the last: no labels yet is 0 of them, and not none.
        there = {(bin_, name) for (_, _, bin_, name, *_), value in of_bins if value}
        there |= {(str(watch.ledger.bins - 1), name) for name in asked}
        # Weights that are all 1, as where every label is asked for, are their labels' number.
        sums = {name: found[name].sums for name in asked}
        even = {name for name, of in sums.items() if (of.labels == of.feedback.count).all()}
        rows["calib_window_sums"] += [
            (labels, value)
            for labels, value in of_bins
            if labels[2:4] in there and not (labels[4] == "feedback_weight" and labels[3] in even)
        ]
        for name in names:
            labels, window = (*version, name), found[name]
            rows["calib_window_provisional"].append((labels, float(window.provisional)))
            of = _numbers(window, served[name], watched.reference if watched else None)
            for number in of if name in asked else _GO_ON:
                rows[f"calib_window_{number}"].append((labels, of[number]))
        self._add_slices(rows, version, {name: found[name].slices for name in (_SLICED, _AGAIN)})
        if found["24h"].provisional or found["7d"].provisional:
            found = watch.windows(version, ("24h", "7d"), provisional=False)
        day, week = found["24h"], found["7d"]
        for one in source_gaps(day.sums, day.by_name("source"), day.groups):
            rows["calib_source_gap_difference"].append(((*version, one.name), one.difference))
            rows["calib_source_gap_difference_error"].append(((*version, one.name), one.se))
        # 1 where the latest day of the week is labelled at other rates than the days before.
        moved = bool(rate_changes(*week.split(DAY)).moved)
        rows["calib_label_rate_moved"].append((version, float(moved)))

    def _add_slices(self, rows: Rows, version: Version, slices: Mapping[str, Mapping[Key, Sums]]) -> None:
        """Add the gaps of the most served slices and of the worst ones, the same in each window."""
        before, gaps = self._gaps.get(version, {}), dict[tuple[str, Key], tuple[Sums, Number]]()
        for name, of in slices.items():
            for key, sums in of.items():
                if key.kind in ("segment", "class") and key.name:
                    known = before.get((name, key))
                    same = known is not None and known[0] == sums
                    gaps[name, key] = known if known and same else (sums, estimated_gap(sums))
        self._gaps[version] = gaps
        shown = _shown({key: one for (name, key), one in gaps.items() if name == _SLICED})
        for (name, key), (_, gap) in gaps.items():
            if shown.get(key) or (name == _SLICED and key in shown):
                labels = (*version, key.kind, key.name, name)
                rows["calib_slice_gap"].append((labels, gap.value))
                rows["calib_slice_gap_error"].append((labels, gap.se))


def _shown(gaps: Mapping[Key, tuple[Sums, Number]]) -> dict[Key, bool]:
    """The slices that have series, and whether they are off: of each kind the most served, and the worst.

    Off is what two standard errors do not explain: no alert is of less.
    """
    shown = dict[Key, bool]()
    for kind in ("segment", "class"):
        of = {key: one for key, one in gaps.items() if key.kind == kind}
        served = sorted(of, key=lambda key: (-of[key][0].predictions.sum(), key))
        off = {key: sure for key, (_, gap) in of.items() if (sure := abs(gap.value) - 2 * gap.se) > 0}
        most = served[: Limits.SLICES // 3]
        worst = sorted(off.keys() - most, key=lambda key: (-off[key], key))[: Limits.SLICES - len(most)]
        shown |= {key: key in off for key in (*most, *worst)}
    return shown


def _numbers(window: Window, served: Window, reference: Bins | None) -> Mapping[str, float]:
    found, counts = window.estimates, served.sums.predictions
    return {
        "begin_timestamp_seconds": window.since,
        "predictions": found.served,
        "accuracy": found.accuracy.value,
        "gap": found.gap.value,
        "ece": found.ece,
        "debiased_ece_low": found.debiased_ece.low,
        "debiased_ece_high": found.debiased_ece.high,
        "noise_floor": found.noise_floor,
        "coverage": found.coverage,
        "label_share": found.label_share,
        "confidence_psi": psi(counts, reference.count) if reference else math.nan,
        "immature_share": 1.0 if window.provisional else window.immature_share,
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
        "budget_left": one.budget_left,
        "runs_out_seconds": one.runs_out,
    }
    return {
        **{f"calib_contract_{name}": [((), value)] for name, value in numbers.items()},
        "calib_contract_burn_rate": [((name,), each.rate) for name, each in one.burn.items()],
        "calib_contract_burn_rate_low": [((name,), each.low) for name, each in one.burn.items()],
    }
