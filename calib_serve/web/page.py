"""The page of a watch: HTML made on the server, that needs no script to be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode

import numpy as np
from markupsafe import Markup

from calib_serve.core.bins import Bins, psi
from calib_serve.core.text import count, decimals, percent, signed_points, span, when
from calib_serve.metrics import Verdict
from calib_serve.monitor import (
    WINDOWS,
    Estimates,
    Incident,
    Number,
    Watch,
    Window,
    duration,
    rate_changes,
    source_gaps,
)
from calib_serve.receipts import DAY, Key, Kind, Sums, Version
from calib_serve.report import (
    Cell,
    Dot,
    DotSeries,
    Fact,
    Said,
    Step,
    Table,
    ece_by_time,
    environment,
    histogram,
    reliability_diagram,
    table_of_tests,
)
from calib_serve.web.promises import contract_table, shadows_say
from calib_serve.web.status import Status, drift, gap, status_of

_OTHERS = "others"
_DEFAULTS = ("24h", "7d", "all")
_HEADS = ("Predictions", "Labels", "Accuracy", "Gap, points", "ECE", "Coverage", "Verdict")


@dataclass(frozen=True)
class _Shown:
    """One slice of a window: its sums, its estimates, and its verdict."""

    sums: Sums
    found: Estimates
    verdict: Verdict

    @classmethod
    def of(cls, sums: Sums, window: Window) -> _Shown:
        return cls(sums, *window.judged(sums))


class _Look(NamedTuple):
    """The version, segment and window in view, and its address."""

    model: str
    version: str
    segment: str
    window: str

    @property
    def address(self) -> str:
        return f"?{urlencode(self._asdict())}"


def render_page(
    watch: Watch,
    *,
    model: str = "",
    version: str = "",
    segment: str = "",
    window: str = "",
) -> str:
    """Render the fleet, then a version (by default what serves most now), a segment and a window of it.

    Without ``window``, the latest day, or the next longer one whose labels say something.
    """
    with watch.ledger.moment():  # all of one moment
        return _rendered(watch, _Look(model, version, segment, window))


def _rendered(watch: Watch, asked: _Look) -> str:
    versions = _by_traffic(watch)
    if not versions:
        return environment("calib_serve.web").get_template("none.html").render()
    chosen: Version = asked[:2] if asked[:2] in versions else versions[0]
    every, checks = watch.incidents(), watch.checks.reasons()
    looked = _window(watch, chosen, asked.window)
    named = sorted(key.name for key in looked.slices if key.kind == "segment" and key.name)
    look = _Look(*chosen, asked.segment if asked.segment in named else "", looked.name)
    whole = _Shown(looked.sums, looked.estimates, looked.verdict)
    shown = _Shown.of(looked.slices[Key(*chosen, look.segment)], looked) if look.segment else whole
    watched = watch.models.get(chosen)
    reference = watched.reference if watched else None
    names = watched.classes.names if watched else ()
    incidents = [one for one in every if (one.model, one.version) == chosen]
    clauses = watch.contract_states(chosen)

    def state(one: Version, verdict: Verdict) -> Status:
        own = [each for each in every if (each.model, each.version) == one]
        states = clauses if one == chosen else watch.contract_states(one)
        return status_of(verdict, incidents=own, clauses=states, checks=checks)

    shadows = watch.shadow_states(chosen) if watched else []
    until, more = _timing(watch, looked)
    steps = _steps(looked, look.segment)
    of = watch.ledger.database
    marks = [one.onset if math.isfinite(one.onset) else one.opened for one in incidents]
    return (
        environment("calib_serve.web")
        .get_template("page.html")
        .render(
            look=look,
            windows=list(WINDOWS),
            wrong=[Said("off", f"Check {n}: {reason}") for n, reason in checks.items() if reason is not None],
            alarms=_alarms(every, look) if len(versions) > 1 else [],
            fleet=_fleet(watch, versions, looked, look, incidents=every, status=state),
            more=len(versions) - 30,
            status=state(chosen, shown.verdict),
            until=until,
            facts=_facts(shown.found, provisional=looked.provisional),
            # Charts are of numbers alone, no text of users.
            diagram=Markup(reliability_diagram([DotSeries("", "after", _dots(shown.found))])),  # noqa: S704
            said=[*shown.verdict.reasons, more, *_unknown(watch, looked, shown.found)],
            tests=table_of_tests(shown.verdict),
            bins=_bins(shown.found),
            numbers=_numbers(shown, reference),
            confidences=Markup(_confidences(shown.sums, reference)),  # noqa: S704
            curve=Markup(ece_by_time(steps, marks)),  # noqa: S704
            # For screens on which the whole width would make its text too small.
            narrow=Markup(ece_by_time(steps, marks, narrow=True)),  # noqa: S704
            clauses=contract_table(clauses, names),
            shadows=shadows_say(shadows),
            incidents=_incidents(incidents),
            segments=_slices(looked, "segment", "Segment", look),
            classes=_slices(looked, "class", "Class", look, names),
            sources=_sources(looked),
            ledger=f"Ledger {of.name}: {of.kind}, {of.extent()}.",
        )
    )


def _size(sums: Sums) -> tuple[float, float]:
    return float(sums.predictions.sum()), float(sums.labels.sum())


def _by_traffic(watch: Watch) -> list[Version]:
    """Every known version: first what serves most now, then what served most ever."""
    counted = {v: _size(sums) for v, sums in watch.ledger.sums().items()}
    size = {**dict.fromkeys(watch.models, (0.0, 0.0)), **counted}
    lately = watch.traffic()
    return sorted(size, key=lambda v: (-lately.get(v, 0), *(-n for n in size[v]), v))


def _window(watch: Watch, version: Version, name: str) -> Window:
    """The window of this name; else the shortest of the usual ones with a verdict."""
    if name in WINDOWS:
        return watch.window(version, name)
    found = []
    for each in _DEFAULTS:
        found.append(watch.window(version, each))
        if found[-1].verdict.level != "too_little":
            return found[-1]
    labelled = [one for one in found if one.sums.labels.any()]
    return (labelled or found)[0]


def _timing(watch: Watch, window: Window) -> tuple[str, str]:
    """The end of the shown time, and a note on predictions that are too young."""
    if window.provisional:
        at = watch.delays(window.version).known_at
        known = f", as it seems on {when(at)}" if math.isfinite(at) else ""
        return "Provisional: labels may still come.", (
            "Wrong predictions may be told sooner than right ones. "
            f"Numbers are mature once the longest usual delay has been seen{known}, or by --maturity."
        )
    until = f"Until {when(window.until)}"
    if not window.maturity.seconds:
        return until, "Labels are taken as they come."
    young = window.immature_share
    if not young:
        return until, "Every prediction has its label."
    learned = "given" if window.maturity.given else "learned from earlier ones"
    known = f"Labels come within {duration(window.maturity.seconds)} ({learned})."
    if not window.maturity.known:
        known = "It is not known yet how long labels take."
    return until, known + ("" if math.isnan(young) else f" {young:.0%} of the predictions wait for theirs.")


def _unknown(watch: Watch, window: Window, found: Estimates) -> list[str]:
    """Sentences on predictions without labels, and signs that labels mislead."""
    said = []
    if found.labels and round(found.coverage, 3) < 1 and found.weighed_by == "predictions":
        said.append(found.bounds.says())
    if found.labels and round(found.label_share, 3) < 1:
        said.append(f"If labels were missing for what the outcome was: {found.worst.says()}")
    week = (
        window
        if window.name == "7d" and not window.provisional
        else watch.window(window.version, "7d", provisional=False)
    )
    changes = rate_changes(*week.split(DAY))
    return [*said, changes.says] if changes.moved else said


def _facts(e: Estimates, *, provisional: bool) -> tuple[Fact, ...]:
    """The three figures below the verdict."""
    so_far = "provisional; " if provisional else ""
    return (
        Fact("ECE", percent(e.ece), f"{so_far}chance alone: {percent(e.noise_floor)}"),
        Fact("Accuracy", percent(e.accuracy.value), f"{so_far}confidence {percent(e.confidence)}"),
        Fact("Labels", count(e.labels), f"of {count(e.served)} predictions"),
    )


def _dots(e: Estimates) -> list[Dot]:
    total = sum(row.served for row in e.bins)
    return [
        Dot(row.confidence, row.accuracy, row.low, row.high, row.served / total, row.labels)
        for row in e.bins
        if row.labels
    ]


def _bins(e: Estimates) -> Table:
    heads = ("Confidence", "Predictions", "Labels", "Mean confidence", "Accuracy", "95 % interval", "Note")
    rows = [
        (
            f"{row.lower:.0%} to {row.upper:.0%}",
            count(row.served),
            count(row.labels),
            percent(row.confidence),
            percent(row.accuracy),
            span(row.low, row.high),
            "" if row.covered else "too few labels",
        )
        for row in e.bins
        if row.labels
    ]
    return Table("Bins", heads, rows)


def _numbers(shown: _Shown, reference: Bins | None) -> Table:
    """Every other number, with its meaning."""
    e = shown.found
    served = shown.sums.predictions if shown.sums.predictions.any() else shown.sums.labels
    shift = psi(served, reference.count) if reference else math.nan
    rows = [
        ("Predictions", count(e.served), "", "served in this window"),
        ("Accuracy", percent(e.accuracy.value), _ends(e.accuracy), "of what was served"),
        ("Gap, points", signed_points(e.gap.value), _ends(e.gap), "confidence less accuracy"),
        ("Debiased ECE", percent(e.debiased_ece.value), _ends(e.debiased_ece), "less what chance shows"),
        ("Coverage", percent(e.coverage, 0), "", "of predictions lie where there are enough labels"),
        ("Labels drawn evenly", count(e.effective), "", "that would tell as much"),
        ("Confidence PSI", decimals(shift), "", "against the reference; above 0.2 is a shift"),
    ]
    return Table("Numbers", ("Number", "Value", "95 % interval", "Meaning"), rows)


def _ends(number: Number) -> str:
    return span(number.low, number.high) if math.isfinite(number.low) else ""


def _confidences(sums: Sums, reference: Bins | None) -> str:
    served = sums.predictions if sums.predictions.any() else sums.feedback.count
    shares = (served / max(float(served.sum()), 1.0)).tolist()
    edges = np.linspace(0, 1, len(shares) + 1).tolist()
    return histogram(edges, shares, None if reference is None else (reference.count / reference.n).tolist())


def _steps(window: Window, segment: str) -> list[Step]:
    """Consecutive spans of time with enough labels each."""
    rows = window.steps(segment)
    # About 48 points, of 300 labels or more: with fewer, chance alone is large.
    # To two digits, as a label more must not move every step.
    enough = max(float(f"{sum(float(sums.labels.sum()) for _, _, sums in rows) / 48:.1e}"), 300)
    parts: list[tuple[float, float, Sums]] = []
    for start, width, sums in rows:
        first, before = start, Sums.zeros(sums.bins)
        if parts and (start < parts[-1][1] or float(parts[-1][2].labels.sum()) < enough):
            first, _, before = parts.pop()
        parts.append((first, start + width, before + sums))
    if len(parts) > 1 and float(parts[-1][2].labels.sum()) < enough:  # the last is rarely full
        (start, _, before), (_, end, last) = parts[-2:]
        parts[-2:] = [(start, end, before + last)]
    found = [(start, end, window.judged(sums)[0]) for start, end, sums in parts]
    return [Step(start, end, e.ece, e.noise_floor) for start, end, e in found if e.labels]


def _alarms(incidents: Sequence[Incident], look: _Look) -> list[Cell]:
    """The open incidents, the newest first, each with the address of its version's view."""
    return [
        Cell(f"{one.model} {one.version}", drift(one), href=_href(look, (one.model, one.version)))
        for one in [one for one in reversed(incidents) if one.open][:5]
    ]


def _href(look: _Look, version: Version) -> str:
    return look._replace(model=version[0], version=version[1], segment="").address


def _incidents(found: Sequence[Incident]) -> Table:
    """The latest incidents, the newest first."""
    heads = (
        *("Number", "What", "Began about", "Opened", "State", "Labels since", "Alarms"),
        *("Where", "Note"),
    )
    return Table("Incidents", heads, [_incident(one) for one in reversed(found[-10:])])


def _incident(one: Incident) -> list[Cell]:
    bins = ", ".join(f"{b['low']:.0%} to {b['high']:.0%}" for b in one.bins[:4])
    classes = ", ".join(_OTHERS if c["predicted"] is None else str(c["predicted"]) for c in one.classes[:4])
    closed = "open" if one.open else f"closed {when(one.closed or math.nan)} by {one.closed_by}"
    return [
        Cell(str(one.id)),
        Cell(f"{one.direction}, {gap(one)}", style="off" if one.open else ""),
        Cell(when(one.onset)),
        Cell(when(one.opened)),
        Cell(closed),
        Cell(count(one.labels)),
        Cell(count(one.alarms)),
        Cell(bins + (f"; classes {classes}" if classes else ""), style="text"),
        Cell(one.note, style="text"),
    ]


def _fleet(
    watch: Watch,
    versions: Sequence[Version],
    shown: Window,
    look: _Look,
    *,
    incidents: Sequence[Incident],
    status: Callable[[Version, Verdict], Status],
) -> Table:
    """Every version with its status: those with an open incident first, then what serves most now."""
    drifting = {(one.model, one.version) for one in incidents if one.open}
    rows = []
    # Thirty rows, as each costs a window to read.
    for one in sorted(versions, key=lambda v: v not in drifting)[:30]:
        window = shown if one == shown.version else watch.window(one, shown.name)
        said = status(one, window.verdict)
        first = Cell(
            " ".join(one),
            small="most served of late" if one == versions[0] else "",
            href=_href(look, one),
            current=one == shown.version and not look.segment,
        )
        word = Cell(said.word, "provisional" if window.provisional else "", style=said.level)
        rows.append([first, word, *_cells(_Shown(window.sums, window.estimates, window.verdict))[:5]])
    return Table("Versions", ("Version", "Status", *_HEADS[:5]), rows)


def _slices(window: Window, kind: Kind, head: str, look: _Look, names: Sequence[str] = ()) -> Table:
    """The slices of a kind, those with most predictions first; a segment links to its own view."""
    found = [(key.name, sums) for key, sums in window.slices.items() if key.kind == kind and key.name]
    found.sort(key=lambda one: (*(-n for n in _size(one[1])), one[0]))
    rows = []
    for name, sums in found:
        href = look._replace(segment=name).address if kind == "segment" else ""
        called = names[int(name)] if name.isdecimal() and int(name) < len(names) else name
        first = Cell(called, href=href, current=bool(href) and name == look.segment)
        rows.append([first, *_cells(_Shown.of(sums, window))])
    return Table(f"By {kind}", (head, *_HEADS), rows)


def _cells(shown: _Shown) -> list[Cell]:
    e = shown.found
    return [
        Cell(count(e.served)),
        Cell(count(e.labels)),
        Cell(percent(e.accuracy.value)),
        Cell(signed_points(e.gap.value), _ends(e.gap)),
        Cell(percent(e.ece)),
        Cell(percent(e.coverage, 0)),
        Cell(shown.verdict.headline, style=f"text {shown.verdict.level}"),
    ]


def _sources(window: Window) -> Table:
    """The sources of the window's labels, those that differ from the others first."""
    heads = ("Source", "Labels", "Share", "Gap", "Gap of the others", "Difference, points", "Note")
    rows = [
        [
            Cell(one.name),
            Cell(count(one.labels)),
            Cell(percent(one.share, 0)),
            Cell(signed_points(one.gap)),
            Cell(signed_points(one.others)),
            Cell(
                signed_points(one.difference),
                span(one.low, one.high) if math.isfinite(one.difference) else "",
            ),
            Cell("says something else than the others", style="text off") if one.differs else Cell(""),
        ]
        for one in source_gaps(window.sums, window.by_name("source"), window.groups)
    ]
    return Table("Sources of labels", heads, rows)
