"""The words of PromQL that rules, alerts and dashboards share.

A replica's labels are dropped and every other one is kept: opposite errors of staging and production must not
cancel. So nothing here aggregates ``by``.
"""

from __future__ import annotations

import math

__all__ = [
    "HALF_NORMAL", "LEAST", "REPLICA", "REPLICA_LABELS", "SAME", "SCRAPE", "SUM", "WINDOWS", "bin_column",
    "in_ledger", "recorded", "watch_window",
]  # fmt: skip

LEDGER_LABELS = ("ledger", "edition")
"""What tells sums that processes read from ledgers: ``watch.series`` declares them."""

REPLICA_LABELS = (
    "instance",
    "job",
    "pod",
    "container",
    "endpoint",
    "service",
    "node",
    "hostname",
    "worker",
    *LEDGER_LABELS,
)
"""What tells the replicas of one deployment apart, as scrapes add it, and the ledgers that they count in."""

REPLICA = ", ".join(REPLICA_LABELS)
SCRAPE = ", ".join(REPLICA_LABELS[: -len(LEDGER_LABELS)])
SUM = f"sum without ({REPLICA})"
SAME = f"max without ({REPLICA})"
"""Of gauges that all replicas on one ledger publish alike."""
LEAST = f"min without ({REPLICA})"

WINDOWS = {"1h": ("1h", "1m"), "24h": ("24h:2m", "2m"), "7d": ("7d:15m", "4m")}
"""The range that a window's rules read, and their interval. Longer ranges read one sample in minutes, not
all; no interval reaches the five minutes after which Prometheus takes a series for gone."""

HALF_NORMAL = math.sqrt(1 - 2 / math.pi)
"""The ECE's standard deviation over the gap's standard error: half-normal gaps, bins independent."""


def recorded(name: str, window: str) -> str:
    """A recorded number of a version.

    >>> recorded("ece", "24h")
    'model_version:calib_ece:24h'
    """
    return f"model_version:calib_{name}:{window}"


def bin_column(name: str, window: str) -> str:
    """A recorded number of each of its bins."""
    return f"model_version_bin:calib_{name}:{window}"


def in_ledger(name: str) -> str:
    """The recorded sum of a ledger: every process that shares it publishes the same one.

    >>> in_ledger("feedback")
    'ledger:calib_feedback_total:max'
    """
    return f"ledger:calib_{name}_total:max"


def watch_window(name: str, window: str, *, more: str = "") -> str:
    """What ``calib-serve watch`` says of its own window; all its replicas say the same."""
    return f"max without ({REPLICA}, window) (calib_window_{name}{{{more}window='{window}'}})"
