"""The metrics file that tells TorchServe which series its workers may send.

Written again, after a change of ``calib_serve.watch.series``, by::

    python -c "from calib_serve.serve.metrics_file import *; print(metrics_file(), end='')" >metrics.yaml

in ``handlers/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from calib_serve.watch.series import SERIES

__all__ = ["metrics_file"]

_HEAD = """\
# Which metrics TorchServe keeps. Generated from calib_serve.watch.series; a test holds them equal.
# Labels are positional: their order here is the order in which the workers send the values.
"""
_HOST = ("Level", "Hostname")
_PER_MODEL = ("model_name", "model_version", "hostname")
_GPU = ("Level", "DeviceId", "Hostname")
_COUNTERS = (
    ("Requests2XX", "Count", _HOST),
    ("Requests4XX", "Count", _HOST),
    ("Requests5XX", "Count", _HOST),
    ("ts_inference_requests_total", "Count", _PER_MODEL),
    ("ts_inference_latency_microseconds", "Microseconds", _PER_MODEL),
    ("ts_queue_latency_microseconds", "Microseconds", _PER_MODEL),
)
_GAUGES = (
    ("QueueTime", "Milliseconds", _HOST),
    ("WorkerThreadTime", "Milliseconds", _HOST),
    ("WorkerLoadTime", "Milliseconds", ("WorkerName", *_HOST)),
    ("CPUUtilization", "Percent", _HOST),
    ("MemoryUsed", "Megabytes", _HOST),
    ("MemoryAvailable", "Megabytes", _HOST),
    ("MemoryUtilization", "Percent", _HOST),
    ("DiskUsage", "Gigabytes", _HOST),
    ("DiskUtilization", "Percent", _HOST),
    ("DiskAvailable", "Gigabytes", _HOST),
    ("GPUMemoryUtilization", "Percent", _GPU),
    ("GPUMemoryUsed", "Megabytes", _GPU),
    ("GPUUtilization", "Percent", _GPU),
)


def metrics_file() -> str:
    """The YAML text: TorchServe's own metrics, which it requires, and our series."""
    ours: dict[str, list[dict[str, Any]]] = {
        f"{kind}": [_entry(s.name, "Count", s.labels) for s in SERIES if s.kind == kind]
        for kind in ("counter", "gauge")
    }
    ours["gauge"] += [
        _entry(name, "ms", ("ModelName", "Level")) for name in ("HandlerTime", "PredictionTime")
    ]
    content = {
        "dimensions": sorted({label for _, _, labels in (*_COUNTERS, *_GAUGES) for label in labels}),
        "ts_metrics": {
            "counter": [_entry(*metric) for metric in _COUNTERS],
            "gauge": [_entry(*metric) for metric in _GAUGES],
        },
        "model_metrics": ours,
    }
    return _HEAD + yaml.safe_dump(content, sort_keys=False, default_flow_style=None)


def _entry(name: str, unit: str, labels: Sequence[str]) -> dict[str, Any]:
    return {"name": name, "unit": unit, "dimensions": list(labels)}
