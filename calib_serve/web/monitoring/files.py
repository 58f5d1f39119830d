"""The monitoring files: templates with a few values."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from calib_serve.core.errors import InputError
from calib_serve.core.files import write_changed
from calib_serve.core.options.base import PYTHON

Part = Literal["rules", "alerts", "dashboards", "prometheus", "alertmanager", "grafana"]
PARTS: tuple[Part, ...] = get_args(Part)
"""Recording rules, alerts, the dashboard, and examples of what reads them."""

WINDOWS = {
    "1h": ("1m", "5m", "15m", "5m"),
    "24h": ("4m", "10m", "15m", "5m|1h"),
    "7d": ("10m", "25m", "30m", "1h|24h"),
    "30d": ("10m", "25m", "30m", "24h|7d"),
}
"""By window: how often rules read counters beside ledgers, and for how long that is taken for the present;
the range until there are two samples; the shorter windows that say whether what it warns of goes on. Every
sample is read: of a server that restarts, whatever came since the last one that was read is lost."""

_OWN = ("model", "version", "bin", "sum", "ledger", "edition")
_COPY_LABELS = ("replica", "prometheus_replica", "receive_replica", "rule_replica")
"""What tells copies of one scrape apart, where Prometheus runs in pairs: a copy is not added."""

_SIGMAS = 4
"""Standard errors beyond the tolerance from which on an alert fires."""
_HALF_NORMAL = math.sqrt(1 - 2 / math.pi)
"""The ECE's standard deviation over the gap's standard error: half-normal gaps, bins independent."""

_TEMPLATES = Path(__file__).parent / "templates"
_OURS = "calib-serve"
_TOLD = "24h"  # the window of which a watch tells without being asked
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TARGET = re.compile(r"([A-Za-z0-9_-]+)=(dns\+)?([A-Za-z0-9._-]+):(\d+)")
_PLACE = re.compile(r"[A-Za-z0-9._~:/?&=%+@,;-]+")

_FILES: dict[Part, tuple[str, ...]] = {
    "rules": ("prometheus/rules.yml",),
    "alerts": ("prometheus/alerts.yml",),
    "dashboards": ("grafana/dashboards/calibration.json",),
    "prometheus": ("prometheus/prometheus.yml",),
    "alertmanager": ("prometheus/alertmanager.yml",),
    "grafana": (
        "grafana/contact-points.yml",
        "grafana/provisioning/dashboards/calib-serve.yml",
        "grafana/provisioning/datasources/prometheus.yml",
    ),
}


@dataclass(frozen=True, kw_only=True)
class MonitoringOptions:
    """Limits, links and labels of the monitoring files; InputError for values that no file could have.

    >>> MonitoringOptions(keep=("region",)).fill("sum by (@kept, model, version)")
    'sum by (region, model, version)'
    """

    tolerance: float = 0.02
    """The gap between confidence and accuracy that is no error. Verdicts of the watch have their own."""
    runbooks: str = "http://127.0.0.1:9300/runbooks"
    """The page with a section for each alert, an address or a path: alerts and the dashboard link to it. The
    watch serves one."""
    window: str = "24h"
    """The time that numbers are taken over: 1h, 24h, 7d or 30d."""
    targets: tuple[str, ...] = ("calib-serve-watch=127.0.0.1:9300",)
    """What Prometheus scrapes, one process each, as JOB=HOST:PORT, or JOB=dns+HOST:PORT for each address that
    the name has, as a headless Service; commas between."""
    alertmanager: Annotated[str, PYTHON] = ""
    """Alertmanager that Prometheus sends alerts to, as HOST:PORT; without it none."""
    token_file: str = ""
    """The file, on the host of Prometheus, with the token that it scrapes calib-serve by."""
    keep: tuple[str, ...] = ("cluster", "namespace", "kubernetes_namespace", "environment", "env", "tenant")
    """Labels that tell environments apart, each with numbers of its own; sums go over all others."""

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 0.5:
            raise InputError(f"the tolerance must lie between 0 and 0.5, got {self.tolerance}")
        if not _PLACE.fullmatch(self.runbooks):
            raise InputError(f"runbooks must be an address or a path without '#', got {self.runbooks!r}")
        if self.window not in WINDOWS:
            raise InputError(f"the window is one of {', '.join(WINDOWS)}, got {self.window!r}")
        if self.token_file and not _PLACE.fullmatch(self.token_file):
            raise InputError(f"the token's file must be a path, got {self.token_file!r}")
        if self.alertmanager and not _TARGET.fullmatch(f"alertmanager={self.alertmanager}"):
            raise InputError(f"alertmanager must be HOST:PORT, got {self.alertmanager!r}")
        if self.token_file and not any(target.startswith(_OURS) for target in self.targets):
            raise InputError(f"the token is sent to jobs called {_OURS}..., and none of the targets is")
        if wrong := [target for target in self.targets if not _TARGET.fullmatch(target)]:
            raise InputError(f"a target is job=host:port or job=dns+host:port, got {wrong[0]!r}")
        if wrong := [name for name in self.keep if not _LABEL.fullmatch(name) or name in _OWN]:
            raise InputError(f"{wrong[0]!r} is no label that environments could differ by; change keep")
        if not self.keep:
            raise InputError("keep must name a label; one that no series has does no harm, such as env")

    @property
    def values(self) -> dict[str, str]:
        """The values of the templates' names."""
        interval, kept, lately, short = WINDOWS[self.window]
        jobs = dict.fromkeys(target.partition("=")[0] for target in self.targets)
        token = f"    authorization: {{credentials_file: {self.token_file}}}\n" if self.token_file else ""
        asked = "" if self.window == _TOLD else f"    params: {{window: [{self.window}]}}\n"
        return {
            "@window": self.window,
            "@risen": _risen(self.window),
            "@lately": _risen(lately),
            "@interval": interval,
            "@present": kept,
            "@short": short,
            "@tolerance": f"{self.tolerance:g}",
            "@squared": f"{self.tolerance**2:.12g}",
            "@sigmas": f"{_SIGMAS}",
            "@noise": f"{_SIGMAS * _HALF_NORMAL:.6g}",
            "@runbooks": self.runbooks,
            "@jobs": "|".join(jobs),
            "@absent": " or ".join(f"absent(up{{job='{job}'}})" for job in jobs),
            "@off": "" if self.alertmanager else "# ",
            "@alertmanager": self.alertmanager or "127.0.0.1:9093",
            "@scrapes": "\n".join(
                # A pod's own label "version" must not take the name of the series'.
                f"  - job_name: {job}\n    honor_labels: true\n{asked}"
                f"{token if job.startswith(_OURS) else ''}{self._discovery(job)}"
                for job in jobs
            ),
            "@kept": ", ".join(self.keep),
            "@same": ",".join(f"{name}=%q" for name in (*self.keep, "model", "version")),
            "@told": " ".join(f"$labels.{name}" for name in (*self.keep, "model", "version")),
            "@legend": " ".join(f"{{{{{name}}}}}" for name in self.keep),
            "@copy": ", ".join(_COPY_LABELS),
        }

    def _discovery(self, job: str) -> str:
        """The places of a job, by their addresses, or found in DNS."""
        own = [one for one in map(_TARGET.fullmatch, self.targets) if one and one[1] == job]
        fixed = [f'"{one[3]}:{one[4]}"' for one in own if not one[2]]
        named = [f"      - {{names: [{one[3]}], type: A, port: {one[4]}}}" for one in own if one[2]]
        lines = [f"    static_configs:\n      - targets: [{', '.join(fixed)}]"] if fixed else []
        return "\n".join([*lines, *(["    dns_sd_configs:", *named] if named else [])])

    def fill(self, text: str) -> str:
        """The text of a template with its values."""
        for name, value in self.values.items():
            text = text.replace(name, value)
        return text


def _risen(reads: str) -> str:
    """The rise of counters beside ledgers; by no more than they stand at, where they began in that time."""
    counted = "calib_predictions_total{ledger=''}"
    rise = f"increase({counted}[{reads}])"
    found = f"{counted} + clamp_max({rise} - {counted}, 0) unless resets({counted}[{reads}]) > 0 or {rise}"
    return f"sum by (@kept, model, version, bin) (max without (@copy) ({found}))"


def monitoring_files(
    options: MonitoringOptions | None = None, *, parts: Collection[Part] = PARTS
) -> dict[str, str]:
    """The text of each file by its path.

    Args:
        options: Limits, links and labels; None: their defaults.
        parts: Which of them.

    >>> sorted(monitoring_files(parts=["rules", "dashboards"]))
    ['grafana/dashboards/calibration.json', 'prometheus/rules.yml']
    """
    chosen = options or MonitoringOptions()
    paths = [path for part in PARTS if part in parts for path in _FILES[part]]
    return {path: chosen.fill((_TEMPLATES / path).read_text("utf-8")) for path in paths}


def export_monitoring(
    folder: Path,
    options: MonitoringOptions | None = None,
    *,
    parts: Collection[Part] = PARTS,
    force: bool = False,
) -> list[Path]:
    """Write the monitoring files; return the changed ones.

    Args:
        folder: Folder that they are written below.
        options: Limits, links and labels; None: their defaults.
        parts: Which of them.
        force: Whether to write over files that say something else.

    Raises:
        InputError: Where a file says something else, without ``force``: then nothing is written; or the
            folder cannot be written.
    """
    wanted = {folder / path: text.encode() for path, text in monitoring_files(options, parts=parts).items()}
    return write_changed(wanted, force=force)
