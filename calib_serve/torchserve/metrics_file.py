"""The metrics file that tells TorchServe which series its workers may send.

``python -m calib_serve.torchserve.metrics_file`` prints it; after a change of ``calib_serve.receipts.series``
it is written again to ``handlers/metrics.yaml``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from calib_serve.core.errors import ServerError
from calib_serve.core.files import read_whole
from calib_serve.receipts import SERIES, WORKERS

_HEAD = """\
# Which metrics TorchServe keeps. Generated from calib_serve.receipts.series; a test holds them equal.
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
_UNREADABLE = (OSError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def metrics_file() -> str:
    """Write the YAML text: TorchServe's own metrics, which it requires, and our series."""
    series: dict[str, list[dict[str, Any]]] = {
        kind: [_entry(s.name, "Count", s.labels) for s in (*SERIES, *WORKERS) if s.in_torchserve == kind]
        for kind in ("counter", "gauge")
    }
    series["gauge"] += [
        _entry(name, "ms", ("ModelName", "Level")) for name in ("HandlerTime", "PredictionTime")
    ]
    content = {
        "dimensions": sorted({label for _, _, labels in (*_COUNTERS, *_GAUGES) for label in labels}),
        "ts_metrics": {
            "counter": [_entry(*metric) for metric in _COUNTERS],
            "gauge": [_entry(*metric) for metric in _GAUGES],
        },
        "model_metrics": series,
    }
    return _HEAD + yaml.dump(content, Dumper=_Plain, sort_keys=False, default_flow_style=None)


def undeclared(path: Path) -> list[str]:
    """List our series that the metrics file at ``path`` does not declare as we send them; ServerError."""
    try:
        content = yaml.safe_load(read_whole(path))  # with aliases, as TorchServe takes it
        declared = {
            (section, kind, metric["name"], tuple(metric.get("dimensions") or ()))
            for section in ("ts_metrics", "model_metrics")
            for kind, metrics in (content.get(section) or {}).items()
            for metric in metrics or ()
        }
    except (*_UNREADABLE, yaml.YAMLError) as error:
        raise ServerError(f"{path} is no metrics file of TorchServe that can be read: {error!r}") from error
    return [
        one.name
        for one in (*SERIES, *WORKERS)
        if ("model_metrics", one.in_torchserve, one.name, one.labels) not in declared
    ]


def of_this_worker() -> Path | None:
    """Find the metrics file that TorchServe named to this worker; None outside of TorchServe."""
    found = [value for option, value in pairwise(sys.argv) if option == "--metrics-config"]
    return Path(found[0]) if found and Path(found[0]).is_file() else None


def _entry(name: str, unit: str, labels: Sequence[str]) -> dict[str, Any]:
    return {"name": name, "unit": unit, "dimensions": list(labels)}


class _Plain(yaml.SafeDumper):
    """A YAML dumper without anchors: TorchServe appends to each list of dimensions, also to a shared one."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


if __name__ == "__main__":
    sys.stdout.write(metrics_file())
