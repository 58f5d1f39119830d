"""The metrics file that tells TorchServe which series its workers may send.

``python -m calib_serve.torchserve.metrics_file [YOURS.yaml]`` prints it, with all that is in yours. After a
change of ``calib_serve.receipts.series``, it is written again in ``handlers/``::

    python -m calib_serve.torchserve.metrics_file >metrics.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from calib_serve.core.errors import CalibServeError, ServerError
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
_MOST_VALUES = 100_000  # in a document, aliases written out


def metrics_file(yours: Path | None = None) -> str:
    """Write the YAML text: TorchServe's own metrics, which it requires, and our series.

    ``yours``: a metrics file that is kept, and what it lacks is added. ServerError where it cannot be read,
    or where it uses the name of one of our series for something else.
    """
    if yours is None:
        return _HEAD + _text(_ours())
    content = _read(yours)
    _check_names(content, yours)
    taken = {metric["name"] for _, _, metric in _metrics(content)}
    content["dimensions"] = [*dict.fromkeys([*(content.get("dimensions") or ()), *_ours()["dimensions"]])]
    for section, kind, metric in _metrics(_ours()):
        if metric["name"] not in taken:
            kinds = content[section] = content.get(section) or {}
            kinds[kind] = [*(kinds.get(kind) or ()), metric]
    return f"# All of {yours}, and what calib-serve adds to it.\n" + _text(content)


def undeclared(path: Path) -> list[str]:
    """List our series that the metrics file at ``path`` does not declare as we send them."""
    declared = {
        (kind, metric["name"], tuple(metric.get("dimensions") or ()))
        for section, kind, metric in _metrics(_read(path))
        if section == "model_metrics"
    }
    return [
        one.name for one in (*SERIES, *WORKERS) if (one.in_torchserve, one.name, one.labels) not in declared
    ]


def of_this_worker() -> Path | None:
    """Find the metrics file that TorchServe named to this worker; None outside of TorchServe."""
    found = [value for option, value in pairwise(sys.argv) if option == "--metrics-config"]
    return Path(found[0]) if found and Path(found[0]).is_file() else None


def _ours() -> dict[str, Any]:
    ours = {
        kind: [_entry(s.name, "Count", s.labels) for s in (*SERIES, *WORKERS) if s.in_torchserve == kind]
        for kind in ("counter", "gauge")
    }
    ours["gauge"] += [
        _entry(name, "ms", ("ModelName", "Level")) for name in ("HandlerTime", "PredictionTime")
    ]
    return {
        "dimensions": sorted({label for _, _, labels in (*_COUNTERS, *_GAUGES) for label in labels}),
        "ts_metrics": {
            "counter": [_entry(*metric) for metric in _COUNTERS],
            "gauge": [_entry(*metric) for metric in _GAUGES],
        },
        "model_metrics": ours,
    }


def _entry(name: str, unit: str, labels: Sequence[str]) -> dict[str, Any]:
    return {"name": name, "unit": unit, "dimensions": list(labels)}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(read_whole(path))  # with aliases, as TorchServe takes it
        if (values := _expanded(content, {})) > _MOST_VALUES:
            raise ValueError(f"it holds {values} values, aliases written out; {_MOST_VALUES} are allowed")
    except (OSError, ValueError, yaml.YAMLError, LookupError, OverflowError, RecursionError) as error:
        raise ServerError(f"cannot read the metrics file {path}: {error}") from error
    except (AttributeError, TypeError) as error:  # tags of wrong values
        raise ServerError(f"cannot read the metrics file {path}: {error!r}") from error
    try:
        for _, _, metric in _metrics(content):
            metric["name"], metric.get("dimensions")
    except (AttributeError, KeyError, TypeError) as error:
        raise ServerError(
            f"{path} is no metrics file of TorchServe: ts_metrics and model_metrics hold lists of metrics,"
            " each with name, unit and dimensions"
        ) from error
    found: dict[str, Any] = content
    return found


def _expanded(value: Any, known: dict[int, int]) -> int:
    """Count the values in a document once every alias is written out."""
    if id(value) not in known:
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        known[id(value)] = 1 + sum(_expanded(one, known) for one in inside)
    return known[id(value)]


def _metrics(content: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (section, kind, metric)
        for section in ("ts_metrics", "model_metrics")
        for kind, metrics in (content.get(section) or {}).items()
        for metric in metrics or ()
    ]


def _check_names(content: dict[str, Any], path: Path) -> None:
    ours = {one.name: ("model_metrics", one.in_torchserve, list(one.labels)) for one in (*SERIES, *WORKERS)}
    for section, kind, metric in _metrics(content):
        name, labels = metric["name"], list(metric.get("dimensions") or ())
        if name in ours and (section, kind, labels) != ours[name]:
            raise ServerError(
                f"{path} has a {kind} {name} with the dimensions {labels}, and calib-serve sends a"
                f" {ours[name][1]} of that name with {ours[name][2]}; rename yours"
            )


class _Plain(yaml.SafeDumper):
    """A YAML dumper without anchors: TorchServe appends to each list of dimensions, also to a shared one."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(content: dict[str, Any]) -> str:
    return yaml.dump(content, Dumper=_Plain, sort_keys=False, default_flow_style=None)


def _main(arguments: list[str]) -> None:
    try:
        sys.stdout.write(metrics_file(*map(Path, arguments[:1])))
    except CalibServeError as error:
        sys.exit(f"calib-serve: {error}")


if __name__ == "__main__":
    _main(sys.argv[1:])
