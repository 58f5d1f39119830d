"""Rows that a watch publishes wherever it runs: series, label values in the declared order, values.

Sums are absolute, read from the ledger: whoever shares it shows the same ones, under its name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from calib_serve.core.errors import REASONS
from calib_serve.ledger import Published
from calib_serve.receipts import PUBLISHED, Sums, Version, add_at, merge_slices

if TYPE_CHECKING:
    from calib_serve.monitor.watch import Watch

_STAGES = ("held", "ids", "keyring", "ledger", "samples", "scrape", "tokens")

Row = tuple[str, tuple[str, ...], float]
"""A series, the values of its labels, and its value."""


def sums_of(published: Published, versions: Sequence[Version], *, bins: int) -> dict[Version, Sums]:
    """The sums of some versions, zeros where nothing is counted, and the sums of all other versions.

    Args:
        published: Sums of the ledger.
        versions: Versions that are there in any case.
        bins: Number of bins of confidence.
    """
    found = dict.fromkeys(versions, Sums.zeros(bins))
    for version, sums in sorted(merge_slices(published.segments).items()):
        add_at(found, version, sums)
    return found


def sum_rows(
    sums: Mapping[Version, Sums], published: Published, *, of: tuple[str, ...] = ("predictions", "labels")
) -> Iterator[Row]:
    """Yield the declared sums, in every bin: a missing bin would drop out of PromQL's joins.

    Args:
        sums: Sums of each version.
        published: Sums of the ledger, for the labels of its series.
        of: Kinds of the sums.
    """
    own = tuple(published.labels.values())
    for one in (each for each in PUBLISHED if each.of in of):
        for version, each in sums.items():
            for place, value in enumerate(each[one.name].tolist()):
                yield one.name, (*version, str(place), *own), value


def detector_rows(watch: Watch, versions: Sequence[Version], published: Published) -> Iterator[Row]:
    """Yield the state of some versions' drift detectors; unknown values are left out.

    Args:
        watch: Watch whose ledger, feed and incidents are read.
        versions: Versions, in the order of the rows.
        published: Sums of the ledger, for the labels of its series.
    """
    feed, own = watch.feed, tuple(published.labels.values())
    progress, waiting = watch.ledger.progress(), watch.ledger.waiting()
    still = Counter((one.model, one.version) for one in watch.incidents() if one.open)
    for version in versions:
        known = progress.get(version)
        yield "calib_drift_alarms_total", (*version, *own), known.alarms if known else 0
        yield "calib_incidents_total", (*version, *own), known.incidents if known else 0
        yield "calib_feedback_late_total", (*version, *own), known.late if known else 0
        yield "calib_incidents_open", version, still[version]
        yield "calib_feedback_waiting", version, waiting.get(version, 0)
        numbers = {"calib_maturity_seconds": feed.maturity(version).seconds}
        if known:
            numbers["calib_drift_log_evidence"] = known.log_evidence
            numbers["calib_drift_log_threshold"] = known.log_threshold
        yield from ((name, version, value) for name, value in numbers.items() if math.isfinite(value))


def trouble_rows(watch: Watch) -> Iterator[Row]:
    """Yield refused labels, failures, and the results of checks."""
    for reason in REASONS:
        yield "calib_feedback_refused_total", (reason,), watch.intake.refused[reason]
    for stage in _STAGES:
        yield "calib_monitor_errors_total", (stage,), watch.counts.errors[stage]
    for name, wrong in watch.checks.reasons().items():
        yield "calib_check_ok", (name,), float(wrong is None)
