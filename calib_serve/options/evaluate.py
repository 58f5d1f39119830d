"""Options of what measures and judges."""

from dataclasses import dataclass
from typing import Annotated, Literal

from calib_serve.options.base import PYTHON, RARE, Checked, Seeded, check, check_between
from calib_serve.options.scores import ScoresOptions

__all__ = [
    "Binned",
    "CompareOptions",
    "EvaluateOptions",
    "Interval",
    "JudgeOptions",
    "MeasureOptions",
    "Resampled",
    "Tolerant",
    "VerdictOptions",
]


@dataclass(frozen=True, kw_only=True)
class Interval(Checked):
    """Options of what has intervals or guarantees."""

    level: float = 0.95
    """The level of intervals and guarantees."""

    def _check(self) -> None:
        check_between(level=self.level)


@dataclass(frozen=True, kw_only=True)
class Resampled(Seeded):
    """Options of what is resampled."""

    replicates: Annotated[int, RARE] = 1000
    """Resamples and draws that intervals are made of; 0 for no such intervals."""

    def _check(self) -> None:
        check(self.replicates >= 0, "replicates", f"must be 0 or more, got {self.replicates}")


@dataclass(frozen=True, kw_only=True)
class Binned(Checked):
    """Options of what is binned by confidence."""

    bins: int = 15
    """How many confidence bins."""

    def _check(self) -> None:
        check(self.bins >= 1, "bins", f"must be 1 or more, got {self.bins}")


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(Interval, Resampled, Binned):
    """How scores are measured."""

    edges: Annotated[Literal["right", "left"], PYTHON] = "right"
    """Which end a bin holds: right is (lo, hi], left [lo, hi)."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(ScoresOptions, MeasureOptions):
    """Options of ``evaluate``."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ScoresOptions, Resampled):
    """Options of ``compare``."""

    replicates: Annotated[int, RARE] = 200
    """Resamples that the intervals of metrics are made of; 0 for none."""


@dataclass(frozen=True, kw_only=True)
class Tolerant(Checked):
    """Options of what judges."""

    tolerance: float = 0.02
    """The mean gap between confidence and accuracy that users can live with, as a fraction."""


@dataclass(frozen=True, kw_only=True)
class VerdictOptions(Tolerant):
    """Options of a verdict."""

    class_tolerance: Annotated[float | None, RARE] = None
    """That of a class or label alone; 1.5 times as much if not given."""


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(ScoresOptions, VerdictOptions):
    """Options of ``judge``."""
