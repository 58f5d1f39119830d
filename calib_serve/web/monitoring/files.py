"""The monitoring files: templates with a few values."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from calib_serve.core.errors import InputError
from calib_serve.core.files import write_whole
from calib_serve.core.options.base import RARE

Part = Literal["rules", "alerts", "dashboards", "prometheus", "alertmanager", "grafana"]
PARTS: tuple[Part, ...] = get_args(Part)
"""Recording rules, alerts, the dashboard, and examples of what reads them."""

WINDOWS = {"1h": ("1h", "1m"), "24h": ("24h:2m", "2m"), "7d": ("7d:15m", "4m")}
"""The range that a window's rules read, and their interval. Longer ranges read one sample in minutes, not
all; no interval reaches the five minutes after which Prometheus takes a series for gone."""

_OF_LEDGERS = ("ledger", "edition")
REPLICA_LABELS = (
    "instance", "job", "pod", "container", "endpoint", "service", "node", "hostname", "Hostname", "worker",
    *_OF_LEDGERS,
)  # fmt: skip
"""What tells the replicas of one deployment apart, as scrapes add it, TorchServe its Hostname too, and the
ledgers that they count in.

Every other label is kept, as opposite errors of staging and production must not cancel."""

_HALF_NORMAL = math.sqrt(1 - 2 / math.pi)
"""The ECE's standard deviation over the gap's standard error: half-normal gaps, bins independent."""

_TEMPLATES = Path(__file__).parent / "templates"
_OURS = "calib-serve"
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TARGET = re.compile(r"([A-Za-z0-9_-]+)=([A-Za-z0-9._-]+:\d+)")
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

    >>> MonitoringOptions(keep=("job",)).replica_labels[:3]
    ('instance', 'pod', 'container')
    """

    tolerance: float = 0.02
    """The gap between confidence and accuracy that is no error. Verdicts of the watch have their own."""
    sigmas: Annotated[float, RARE] = 4
    """Standard errors beyond the tolerance from which on an alert fires."""
    runbooks: str = "docs/runbooks.md"
    """The page with a section for each alert, an address or a path: alerts and the dashboard link to it."""
    window: str = "24h"
    """The time that numbers are taken over: 1h, 24h or 7d."""
    targets: tuple[str, ...] = ("calib-serve-watch=127.0.0.1:9300",)
    """What Prometheus scrapes, as JOB=HOST:PORT, commas between."""
    token_file: str = ""
    """The file, on the host of Prometheus, with the token that it scrapes calib-serve by."""
    jobs: Annotated[str, RARE] = ""
    """The scrape jobs that MonitorDown looks for, a regular expression; without it those of the targets."""
    add_over: Annotated[tuple[str, ...], RARE] = ()
    """Further labels that tell replicas apart."""
    keep: Annotated[tuple[str, ...], RARE] = ()
    """Labels that tell no replicas apart, such as job, and are kept."""

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 0.5:
            raise InputError(f"the tolerance must lie between 0 and 0.5, got {self.tolerance}")
        if not (math.isfinite(self.sigmas) and self.sigmas > 0):
            raise InputError(f"sigmas must be a number above 0, got {self.sigmas}")
        if not _PLACE.fullmatch(self.runbooks):
            raise InputError(f"runbooks must be an address or a path without '#', got {self.runbooks!r}")
        if self.window not in WINDOWS:
            raise InputError(f"the window is one of {', '.join(WINDOWS)}, got {self.window!r}")
        if self.token_file and not _PLACE.fullmatch(self.token_file):
            raise InputError(f"the token's file must be a path, got {self.token_file!r}")
        if self.token_file and not any(target.startswith(_OURS) for target in self.targets):
            raise InputError(f"the token is sent to jobs called {_OURS}..., and none of the targets is")
        if wrong := [target for target in self.targets if not _TARGET.fullmatch(target)]:
            raise InputError(f"a target is job=host:port, got {wrong[0]!r}")
        try:
            re.compile(self.jobs)
        except re.error as error:
            raise InputError(f"jobs must be a regular expression: {error}") from error
        if set(self.jobs) & set("'\"\\\n"):
            raise InputError(f"jobs must hold no quote and no backslash, got {self.jobs!r}")
        for name in self.add_over:
            if not _LABEL.fullmatch(name) or name in ("model", "version", "bin", "sum"):
                raise InputError(f"{name!r} is no label that replicas could differ by")
        if missing := set(self.keep) - set(REPLICA_LABELS):
            raise InputError(
                f"only {', '.join(REPLICA_LABELS)} are dropped, not {', '.join(sorted(missing))}"
            )

    @property
    def replica_labels(self) -> tuple[str, ...]:
        """The labels that sums over replicas drop."""
        return tuple(dict.fromkeys(n for n in (*REPLICA_LABELS, *self.add_over) if n not in self.keep))

    @property
    def values(self) -> dict[str, str]:
        """The values of the templates' names."""
        reads, interval = WINDOWS[self.window]
        jobs: dict[str, list[str]] = {}
        for job, _, place in (target.partition("=") for target in self.targets):
            jobs.setdefault(job, []).append(f'"{place}"')
        token = f"    authorization: {{credentials_file: {self.token_file}}}\n" if self.token_file else ""
        return {
            "@window": self.window,
            "@range": reads,
            "@interval": interval,
            "@tolerance": f"{self.tolerance:g}",
            "@squared": f"{self.tolerance**2:.12g}",
            "@sigmas": f"{self.sigmas:g}",
            "@noise": f"{self.sigmas * _HALF_NORMAL:.6g}",
            "@runbooks": self.runbooks,
            "@jobs": self.jobs or "|".join(jobs),
            "@scrapes": "\n".join(
                f"  - job_name: {job}\n{token if job.startswith(_OURS) else ''}"
                f"    static_configs:\n      - targets: [{', '.join(places)}]"
                for job, places in jobs.items()
            ),
            "@replica": ", ".join(self.replica_labels),
            "@scrape": ", ".join(name for name in self.replica_labels if name not in _OF_LEDGERS),
        }

    def fill(self, text: str) -> str:
        """The text of a template with its values."""
        for name, value in self.values.items():
            text = text.replace(name, value)
        return text


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
    try:
        new = {p: text for p, text in wanted.items() if not (p.is_file() and p.read_bytes() == text)}
        if others := [str(path) for path in new if path.exists() and not force]:
            raise InputError(f"would change {', '.join(others)}; give another folder, or --force")
        for path, text in new.items():
            write_whole(path, text)
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from error
    return list(new)
