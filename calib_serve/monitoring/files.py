"""The monitoring files, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, get_args

from calib_serve.errors import InputError
from calib_serve.files import write_whole
from calib_serve.monitoring.alerts import alerts_file
from calib_serve.monitoring.dashboard import dashboard_file
from calib_serve.monitoring.options import MonitoringOptions
from calib_serve.monitoring.queries import WINDOWS
from calib_serve.monitoring.rules import rules_file

__all__ = ["PARTS", "Part", "export_monitoring", "monitoring_files"]

Part = Literal["rules", "alerts", "dashboards", "prometheus", "alertmanager", "grafana"]
PARTS: tuple[Part, ...] = get_args(Part)
"""Recording rules, alerts, the dashboard, and examples of what reads them."""

_SHIPPED = Path(__file__).parent / "examples"
_EXAMPLES: dict[Part, str] = {
    "prometheus": "prometheus/prometheus.yml",
    "alertmanager": "prometheus/alertmanager.yml",
    "grafana": "grafana",
}


def monitoring_files(
    options: MonitoringOptions | None = None, *, parts: Collection[Part] = PARTS
) -> dict[str, str]:
    """The text of each file by its path.

    >>> sorted(monitoring_files(parts=["rules", "dashboards"]))
    ['grafana/dashboards/calibration.json', 'prometheus/rules.yml']
    """
    chosen = options or MonitoringOptions()
    windows = {name: WINDOWS[name] for name in chosen.ordered_windows}
    made: dict[Part, tuple[str, Callable[[], str]]] = {
        "rules": ("prometheus/rules.yml", lambda: rules_file(windows)),
        "alerts": ("prometheus/alerts.yml", lambda: alerts_file(chosen)),
        "dashboards": ("grafana/dashboards/calibration.json", lambda: dashboard_file(chosen)),
    }
    found = {path: chosen.with_replica_labels(text()) for part, (path, text) in made.items() if part in parts}
    for part, path in _EXAMPLES.items():
        if part in parts:
            found |= _read(_SHIPPED / path)
    return found


def _read(source: Path) -> dict[str, str]:
    there = [source] if source.is_file() else sorted(one for one in source.rglob("*") if one.is_file())
    return {one.relative_to(_SHIPPED).as_posix(): one.read_text("utf-8") for one in there}


def export_monitoring(
    folder: Path,
    options: MonitoringOptions | None = None,
    *,
    parts: Collection[Part] = PARTS,
    force: bool = False,
) -> list[Path]:
    """Write the files below ``folder``; those that it wrote, and none that stood there already.

    InputError where a file of that name says something else, unless ``force``: then nothing is written. And
    where the folder cannot be written.
    """
    wanted = {folder / path: text.encode() for path, text in monitoring_files(options, parts=parts).items()}
    try:
        new = {path: text for path, text in wanted.items() if not _says(path, text)}
        if others := [str(path) for path in new if path.exists() and not force]:
            raise InputError(f"would change {', '.join(others)}; give another folder, or --force")
        for path, text in new.items():
            write_whole(path, text)
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from error
    return list(new)


def _says(path: Path, text: bytes) -> bool:
    return path.is_file() and path.read_bytes() == text
