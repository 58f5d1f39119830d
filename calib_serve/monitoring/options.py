"""What may be chosen about the monitoring files."""

import math
import re
from dataclasses import dataclass

from calib_serve.errors import InputError
from calib_serve.monitoring.queries import LEDGER_LABELS, REPLICA, REPLICA_LABELS, SCRAPE, WINDOWS

__all__ = ["MonitoringOptions"]

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_PLACE = re.compile(r"[A-Za-z0-9._~:/?&=%+@,;-]+")
_NEEDED = "24h"  # alerts and the table of classes and segments read it


@dataclass(frozen=True, kw_only=True)
class MonitoringOptions:
    """Limits, links and labels of the monitoring files; InputError for what no file could be made of.

    >>> MonitoringOptions(keep=("job",)).replica_labels[:3]
    ('instance', 'pod', 'container')
    """

    tolerance: float = 0.02
    """The gap between confidence and accuracy that is no error."""
    sigmas: float = 4
    """Standard errors beyond it."""
    runbooks: str = "docs/monitoring.md"
    """The page with a section for each alert, an address or a path: alerts and the dashboard link to it."""
    windows: tuple[str, ...] = tuple(WINDOWS)
    """Which of 1h, 24h and 7d are recorded, commas between; 24h always is. Alerts of others are left out."""
    jobs: str = "torchserve|triton|calib-serve.*"
    """The scrape jobs that publish the series, a regular expression: MonitorDown looks for them."""
    add_over: tuple[str, ...] = ()
    """Further labels that tell replicas apart."""
    keep: tuple[str, ...] = ()
    """Labels that do not, such as job: they are kept."""

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 0.5:
            raise InputError(f"the tolerance must lie between 0 and 0.5, got {self.tolerance}")
        if not (math.isfinite(self.sigmas) and self.sigmas > 0):
            raise InputError(f"sigmas must be a number above 0, got {self.sigmas}")
        if not _PLACE.fullmatch(self.runbooks):
            raise InputError(f"runbooks must be an address or a path without '#', got {self.runbooks!r}")
        if unknown := set(self.windows) - set(WINDOWS):
            raise InputError(f"there are the windows {', '.join(WINDOWS)}, got {', '.join(sorted(unknown))}")
        if _NEEDED not in self.windows:
            raise InputError(f"the window {_NEEDED} must be recorded: alerts read it")
        self._check_labels()

    def _check_labels(self) -> None:
        try:
            re.compile(self.jobs)
        except re.error as error:
            raise InputError(f"jobs must be a regular expression: {error}") from error
        if not self.jobs or set(self.jobs) & set("'\"\\\n"):
            raise InputError(f"jobs must hold no quote and no backslash, got {self.jobs!r}")
        for name in self.add_over:
            if not _LABEL.fullmatch(name) or name in ("model", "version", "bin"):
                raise InputError(f"{name!r} is no label that replicas could differ by")
        if missing := set(self.keep) - set(REPLICA_LABELS):
            raise InputError(f"only {REPLICA} are dropped, not {', '.join(sorted(missing))}")

    @property
    def replica_labels(self) -> tuple[str, ...]:
        """The labels that sums over replicas drop."""
        own = tuple(name for name in REPLICA_LABELS if name not in self.keep)
        return own + tuple(name for name in self.add_over if name not in own)

    @property
    def ordered_windows(self) -> tuple[str, ...]:
        """The windows, shortest first."""
        return tuple(name for name in WINDOWS if name in self.windows)

    def with_replica_labels(self, text: str) -> str:
        """Expressions that drop these labels rather than ``REPLICA`` and ``SCRAPE``."""
        of_scrapes = ", ".join(name for name in self.replica_labels if name not in LEDGER_LABELS)
        whole, own = "{replica}", ", ".join(self.replica_labels)  # the one is the beginning of the other
        return text.replace(REPLICA, whole).replace(SCRAPE, of_scrapes).replace(whole, own)
