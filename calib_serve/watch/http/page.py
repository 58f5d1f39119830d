"""The page of ``watch``: HTML made on the server, that needs no script to be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calib_serve.bins import Bins
from calib_serve.errors import MissingDependency
from calib_serve.judgement import Verdict
from calib_serve.receipts import DAY
from calib_serve.watch.drift.statistics import auroc, expected_accuracy, psi
from calib_serve.watch.estimates import BinRow, Estimates, estimate
from calib_serve.watch.http import charts
from calib_serve.watch.http.promises import (
    between,
    clause_cards,
    count,
    interval,
    percent,
    plain,
    shadow_rows,
    signed,
    when,
)
from calib_serve.watch.incidents import Incident
from calib_serve.watch.label_rate import rate_changes
from calib_serve.watch.ledger import Dated, Key, Kind, Sums, Version
from calib_serve.watch.maturity import duration
from calib_serve.watch.service import Watch
from calib_serve.watch.sources import source_gaps
from calib_serve.watch.windows import WINDOWS, Window

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
except ImportError as error:
    raise MissingDependency("jinja2", "watch") from error

__all__ = ["STATIC", "render"]

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
_PAGES = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_VERSIONS = 30  # rows of versions: each costs a window to read
_CLASSES = 20  # rows of class shares: those that moved most
_STEPS = 48  # points of the curve, at most
_OTHERS = "others"
_DEFAULTS = ("24h", "7d", "all")


@dataclass(frozen=True)
class _Shown:
    """One slice of a window: its sums, the estimates from them, and what these come to."""

    sums: Sums
    found: Estimates
    verdict: Verdict

    @classmethod
    def of(cls, sums: Sums, window: Window) -> _Shown:
        found = estimate(sums)
        return cls(sums, found, window.judged(found))


def render(watch: Watch, *, model: str = "", version: str = "", segment: str = "", window: str = "") -> str:
    """The page's HTML for a model version (by default the most served), segment and window (by default all).

    Without ``window``, the latest day, or the next longer one whose labels say something.
    """
    counted = {v: _size(sums) for v, sums in watch.ledger.sums().items()}
    size = {**dict.fromkeys(watch.models, (0.0, 0.0)), **counted}
    versions = sorted(size, key=lambda v: (*(-n for n in size[v]), v))
    chosen: Version = (model, version) if (model, version) in size else versions[0]
    looked = _window(watch, chosen, window)
    named = sorted(key.name for key in looked.slices if key.kind == "segment" and key.name)
    segment = segment if segment in named else ""
    whole = _Shown(looked.sums, looked.estimates, looked.verdict)
    shown = _Shown.of(looked.slices[Key(*chosen, segment)], looked) if segment else whole
    watched = watch.models.get(chosen)
    reference = watched.reference if watched else None
    incidents = [one for one in watch.incidents() if (one.model, one.version) == chosen]
    names = watched.classes.names if watched else ()
    return _PAGES.get_template(
        "page.html"
    ).render(
        chosen=chosen,
        segment=segment,
        window=looked.name,
        windows=list(WINDOWS),
        verdict=shown.verdict,
        timing=_timing(watch, looked),
        unknown=_unknown(watch, looked, shown.found),
        open=[_incident(one) for one in incidents if one.open],
        wrong=[(name, reason) for name, reason in watch.checks.reasons().items() if reason is not None],
        numbers=_numbers(shown, looked, reference),
        bins=[_bin(row) for row in shown.found.bins if row.labels],
        # Numbers alone, no text of users.
        reliability=Markup(charts.reliability(shown.found.bins)),  # noqa: S704
        confidences=Markup(charts.confidences(shown.sums, reference)),  # noqa: S704
        curve=Markup(_curve(looked, segment, incidents)),  # noqa: S704
        narrow=Markup(_curve(looked, segment, incidents, narrow=True)),  # noqa: S704
        incidents=[_incident(one) for one in reversed(incidents[-10:])],
        clauses=clause_cards(watch.contract_states(chosen) if watched else [], names),
        shadows=shadow_rows(watch.shadow_states(chosen) if watched else []),
        versions=[_row(watch, v, looked) for v in versions[:_VERSIONS]],
        more=len(versions) - _VERSIONS,
        shares=_class_shares(watch, chosen, looked.name),
        segments=_slices(looked, "segment"),
        sources=_sources(looked),
        classes=[row | {"shown": _class_name(row["name"], names)} for row in _slices(looked, "class")],
    )


def _size(sums: Sums) -> tuple[float, float]:
    return float(sums.predictions.sum()), float(sums.labels.sum())


def _window(watch: Watch, version: Version, name: str) -> Window:
    """The window of this name; else the shortest of the usual ones that says something."""
    if name in WINDOWS:
        return watch.window(version, name)
    found = []
    for each in _DEFAULTS:
        found.append(watch.window(version, each))
        if found[-1].verdict.level != "too_little":
            return found[-1]
    labelled = [one for one in found if one.sums.labels.any()]
    return (labelled or found)[0]


def _timing(watch: Watch, window: Window) -> str:
    """Until when predictions are shown, and what is left out as too young."""
    if window.provisional:
        delays = watch.delays(window.version)
        known = "" if not math.isfinite(delays.known_at) else f", as it seems on {when(delays.known_at)}"
        return (
            f"Provisional: labels may still come, and wrong predictions may be told sooner. {delays.says} "
            f"Numbers are mature once the longest usual delay has been seen{known}, or by --maturity."
        )
    wait = duration(window.maturity.seconds)
    learned = "given" if window.maturity.given else "learned from earlier ones"
    said = f"Predictions made until {when(window.until)}"
    if not window.maturity.seconds:
        return f"{said}; labels are taken as they come."
    young = window.immature_share
    left = "" if math.isnan(young) else f" {young:.0%} of the predictions are younger and left out."
    return f"{said}: labels come within {wait} ({learned}).{left}"


def _unknown(watch: Watch, window: Window, found: Estimates) -> list[str]:
    """What labels cannot tell, and signs that they mislead."""
    said = []
    if found.labels and found.coverage < 1 and found.weighed_by == "predictions":
        said.append(found.bounds.says)
    if found.labels and found.label_share < 1:
        said.append(f"If labels were missing for what the outcome was: {found.worst.says}")
    week = (
        window
        if window.name == "7d" and not window.provisional
        else watch.window(window.version, "7d", provisional=False)
    )
    changes = rate_changes(*week.split(DAY))
    return [*said, changes.says] if changes.moved else said


def _row(watch: Watch, version: Version, shown_above: Window) -> dict[str, Any]:
    same = version == shown_above.version
    looked = shown_above if same else watch.window(version, shown_above.name)
    shown = _Shown(looked.sums, looked.estimates, looked.verdict)
    return {"model": version[0], "version": version[1], **_cells(shown)}


def _slices(window: Window, kind: Kind) -> list[dict[str, Any]]:
    found = [(key.name, sums) for key, sums in window.slices.items() if key.kind == kind and key.name]
    found.sort(key=lambda one: (*(-n for n in _size(one[1])), one[0]))
    return [{"name": name, **_cells(_Shown.of(sums, window))} for name, sums in found]


def _sources(window: Window) -> list[dict[str, Any]]:
    """Who sent the labels of this window, those first that say something else than the others do."""
    return [
        {
            "name": one.name,
            "labels": count(one.labels),
            "share": percent(one.share, 0),
            "gap": signed(one.gap),
            "others": signed(one.others),
            "difference": "n/a"
            if math.isnan(one.difference)
            else f"{one.difference * 100:+.1f} ({one.low * 100:.1f} to {one.high * 100:.1f})",
            "level": "off" if one.differs else "",
            "says": "says something else than the others" if one.differs else "",
        }
        for one in source_gaps(window.sums, window.by_name("source"), window.groups)
    ]


def _cells(shown: _Shown) -> dict[str, Any]:
    found = shown.found
    return {
        "predictions": count(found.served),
        "labels": count(found.labels),
        "accuracy": percent(found.accuracy.value),
        "gap": interval(found.gap),
        "ece": percent(found.ece),
        "coverage": percent(found.coverage, 0),
        "verdict": shown.verdict,
    }


def _class_shares(watch: Watch, version: Version, window: str) -> dict[str, Any]:
    """The class shares of the whole version, whatever segment is looked at."""
    if version not in watch.models:
        return {"says": "", "rows": [], "more": 0}
    found = watch.class_shares(version, window)
    moved = sorted(found.classes, key=lambda one: -abs(one.share - one.old))[:_CLASSES]
    rows = [
        {
            "name": one.name,
            "old": percent(one.old),
            "share": f"{percent(one.share)} ({100 * one.low:.1f} to {100 * one.high:.1f})",
            "expected": percent(one.expected),
            "labelled": "n/a"
            if math.isnan(one.labelled.value)
            else f"{percent(one.labelled.value)} ({between(one.labelled)})",
        }
        for one in found.classes
        if one in moved and found.kind != "other"
    ]
    return {"says": found.says, "rows": rows, "more": len(found.classes) - len(moved)}


def _class_name(name: str, names: Sequence[str]) -> str:
    return names[int(name)] if name.isdecimal() and int(name) < len(names) else name


def _numbers(shown: _Shown, window: Window, reference: Bins | None) -> list[tuple[str, str, str]]:
    """(name, value, what it means) of each tile."""
    e, expected = shown.found, expected_accuracy(shown.sums)
    served = shown.sums.predictions if shown.sums.predictions.any() else shown.sums.labels
    shift = psi(served, reference.count) if reference else math.nan
    effective = f"tell as much as {count(e.effective)} drawn evenly" if e.labels else "counted, each once"
    return [
        ("Predictions", count(e.served), "served in this window"),
        ("Labels", count(e.labels), effective),
        (
            "Accuracy",
            percent(e.accuracy.value),
            f"{between(e.accuracy)}; confidence {percent(e.confidence)}",
        ),
        ("Gap", signed(e.gap.value), f"{between(e.gap)}: confidence minus accuracy"),
        (
            "ECE",
            percent(e.ece),
            f"chance alone would show {percent(e.noise_floor)}; debiased {percent(e.debiased_ece.value)}, "
            f"{between(e.debiased_ece)}",
        ),
        ("Coverage", percent(e.coverage, 0), "of predictions lie where there are enough labels"),
        ("Refinement AUROC", plain(auroc(shown.sums.feedback)), "right above wrong, by confidence"),
        ("Brier", plain(e.brier.value), "top label; smaller is better"),
        ("Confidence PSI", plain(shift), "against the reference; above 0.2 is a shift"),
        (
            "Expected accuracy",
            percent(expected.accuracy),
            f"± {percent(2 * expected.standard_error)}, without labels, while calibrated",
        ),
    ]


def _bin(row: BinRow) -> tuple[str, ...]:
    return (
        f"{row.lower:.0%} to {row.upper:.0%}",
        count(row.served),
        count(row.labels),
        percent(row.confidence),
        f"{percent(row.accuracy)} ({percent(row.low)} to {percent(row.high)})",
        "" if row.covered else "too few labels",
    )


def _curve(window: Window, segment: str, incidents: Sequence[Incident], *, narrow: bool = False) -> str:
    """The curve, also for screens on which the whole width would make its text too small."""
    rows = [one for one in window.dated if not segment or one.key.name == segment]
    if not rows:
        return charts.curve([], [], since=0, until=0, narrow=narrow)
    since = max(window.since, min(one.start for one in rows))
    until = max(one.start + one.width for one in rows)
    step = max((until - since) / (_STEPS // 2 if narrow else _STEPS), *(one.width for one in rows))
    points = [_point(rows, at, at + step) for at in np.arange(since, until, step).tolist()]
    marks = [one.onset if math.isfinite(one.onset) else one.opened for one in incidents]
    return charts.curve(points, marks, since=since, until=until, narrow=narrow)


def _point(rows: Sequence[Dated], start: float, end: float) -> charts.Point:
    inside = [one.sums for one in rows if start <= one.start < end]
    if not inside:
        return charts.Point(start, end, math.nan, math.nan, math.nan)
    total = inside[0]
    for more in inside[1:]:
        total = total + more
    ece = estimate(total).debiased_ece
    return charts.Point(start, end, ece.value, ece.low, ece.high)


def _incident(one: Incident) -> dict[str, Any]:
    bins = ", ".join(f"{b['low']:.0%} to {b['high']:.0%}" for b in one.bins[:4])
    classes = ", ".join(_OTHERS if c["predicted"] is None else str(c["predicted"]) for c in one.classes[:4])
    state = "open, " + one.trend if one.open else f"closed {when(one.closed or math.nan)} by {one.closed_by}"
    return {
        "id": one.id,
        "opened": when(one.opened),
        "onset": when(one.onset),
        "says": f"{one.direction}, {signed(one.gap)} so far",
        "where": bins + (f"; classes {classes}" if classes else ""),
        "labels": count(one.labels),
        "alarms": count(one.alarms),
        "state": state,
        "note": one.note,
        "open": one.open,
    }
