"""Options of what counts predictions and labels, and of the drift detectors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from calib_serve.options.base import RARE, Checked, check, check_positive, check_share
from calib_serve.options.evaluate import Tolerant

__all__ = ["DriftOptions", "SampleOptions", "WatchOptions"]

_LONGEST = 1e30  # labels; what the detector may multiply it with still fits a float


@dataclass(frozen=True, kw_only=True)
class SampleOptions(Checked):
    """Which labels are asked for, and which logits and labels are kept, to refit on."""

    label_budget: Any = ""
    """Which labels to ask for: 500/day, a rate 0.05, or rates by confidence 0.7:1,1:0.01."""
    samples: Any = None
    """Keep logits and labels in this folder, to refit on; by default none are kept."""
    sample_rate: float = 0.1
    """Which share of the predictions is kept there."""

    def _check(self) -> None:
        check_share(sample_rate=self.sample_rate)


@dataclass(frozen=True, kw_only=True)
class DriftOptions(Tolerant):
    """Options of the drift ``Detector``."""

    arl: Annotated[float, RARE] = 100_000
    """Labels between two false drift alarms, on average, at least."""
    block: Annotated[int, RARE] = 1
    """Labels that may depend on one another, where errors come in runs."""

    def _check(self) -> None:
        check(self.block >= 1, "block", f"is a number of labels, at least 1, got {self.block}")
        check(2 <= self.arl <= _LONGEST, "arl", f"is a number of labels, 2 to {_LONGEST:.0e}, got {self.arl}")
        check(0 <= self.tolerance < 0.5, "tolerance", f"must be in [0, 0.5), got {self.tolerance}")


@dataclass(frozen=True, kw_only=True)
class WatchOptions(SampleOptions, DriftOptions):
    """Options of ``Watch.open``.

    In Python ``keyring`` and ``samples`` may be open already, and ``label_budget`` a function that makes a
    ``LabelPolicy``; ``maturity`` and ``segments`` also take numbers, ``segments`` a list of names.
    """

    keyring: Any = "keyring.json"
    """Keys that sign and verify receipts; read again when the file changes."""
    ledger: Any = "ledger.db"
    """Where labels are counted: a file, or postgresql://HOST/DATABASE."""
    follow: Path | None = None
    """More versions, looked for while running: a list, or a folder of NAME/VERSION."""
    maturity: Any = "auto"
    """Age at which labels are in: auto, or such as 30m, 6h, 7d; or 0."""
    ttl_days: float = 30
    """For how many days after its prediction a label is accepted."""
    segments: Any = "32"
    """How many segments a version may have, or their names, a,b,c; the rest are 'other'."""
    sample_days: float = 30
    """For how many days samples are kept."""

    def _check(self) -> None:
        check_positive(ttl_days=self.ttl_days, sample_days=self.sample_days)

    @property
    def most_segments(self) -> Any:
        """Return how many different segments a version may have, or which."""
        if not isinstance(self.segments, str):
            return self.segments
        if self.segments.isdecimal():
            return int(self.segments)
        names = [name.strip() for name in self.segments.split(",") if name.strip()]
        check(bool(names), "segments", f"are a number, or names with commas between, got {self.segments!r}")
        return names
