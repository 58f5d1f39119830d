"""What the dashboard asks of Prometheus, of the model version and window that are chosen in it."""

from __future__ import annotations

from calib_serve.monitoring.queries import REPLICA, SAME, bin_column, recorded, watch_window

__all__ = ["CONFIDENCE", "VERSION", "answer_time", "gauge", "number", "per_bin", "told", "windowed"]

VERSION = 'model="$model", version="$version"'


def told(name: str, window: str = "$window") -> str:
    """The recorded number."""
    return f"{recorded(name, window)}{{{VERSION}}}"


def per_bin(name: str) -> str:
    """A recorded column of the bins, whose names sort as numbers do: 00, 01, ..."""
    return f'label_replace({bin_column(name, "$window")}{{{VERSION}}}, "bin", "0$1", "bin", "(.)")'


def windowed(name: str, window: str = "$window", *, anyhow: bool = False) -> str:
    """What watch says of its window, where it counts the predictions; or ``anyhow``."""
    found, served = (watch_window(one, window, more=f"{VERSION}, ") for one in (name, "predictions"))
    return found if anyhow else f"({found} and {served} > 0)"


def number(name: str, gauge: str = "", window: str = "$window") -> str:
    """Watch's number, or the recorded one."""
    return f"({windowed(gauge or name, window)} or {told(name, window)})"


CONFIDENCE = f"(({windowed('accuracy')} + {windowed('gap')}) or ({told('accuracy')} + {told('signed_gap')}))"


def gauge(name: str) -> str:
    """A gauge or counter of the version that all replicas on one ledger publish alike."""
    return f"{SAME} (calib_{name}{{{VERSION}}})"


def answer_time(spent: str, count: str, drop: str = "") -> str:
    """Mean time of an answer over five minutes, from counters of time and of answers."""
    without = f"sum without ({REPLICA}{drop})"
    return f"{without} (rate({spent}[5m])) / ({without} (rate({count}[5m])) > 0)"
