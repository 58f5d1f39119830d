"""What the dashboard asks of Prometheus, for one model version and window."""

from __future__ import annotations

import runpy
from pathlib import Path

REPLICA = runpy.run_path(str(Path(__file__).parents[1] / "prometheus" / "make_rules.py"))["REPLICA"]
VERSION = 'model="$model", version="$version"'
SAME = f"max without ({REPLICA})"
SUM = f"sum without ({REPLICA})"
LEAST = f"min without ({REPLICA})"


def recorded(name: str, window: str = "$window") -> str:
    """The recorded number."""
    return f"model_version:calib_{name}:{window}{{{VERSION}}}"


def per_bin(name: str) -> str:
    """A recorded column of the bins, whose names sort as numbers do: 00, 01, ..."""
    column = f"model_version_bin:calib_{name}:$window{{{VERSION}}}"
    return f'label_replace({column}, "bin", "0$1", "bin", "(.)")'


def watch_window(name: str, window: str = "$window") -> str:
    """What watch says of its window."""
    return f'max without ({REPLICA}, window) (calib_window_{name}{{{VERSION}, window="{window}"}})'


def windowed(name: str, window: str = "$window") -> str:
    """What watch says of its window, where it counts the predictions."""
    return f"({watch_window(name, window)} and {watch_window('predictions', window)} > 0)"


def number(name: str, gauge: str = "", window: str = "$window") -> str:
    """Watch's number, or the recorded one."""
    return f"({windowed(gauge or name, window)} or {recorded(name, window)})"


CONFIDENCE = f"(({windowed('accuracy')} + {windowed('gap')}) or {recorded('mean_confidence')})"


def gauge(name: str) -> str:
    """A gauge or counter of the version that all replicas on one ledger publish alike."""
    return f"{SAME} (calib_{name}{{{VERSION}}})"


def answer_time(spent: str, count: str, drop: str = "") -> str:
    """Mean time of an answer over five minutes, from counters of time and of answers."""
    without = f"sum without ({REPLICA}{drop})"
    return f"{without} (rate({spent}[5m])) / ({without} (rate({count}[5m])) > 0)"
