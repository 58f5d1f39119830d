"""Options of what promises: prediction sets, abstention, and the check of a contract."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from calib_serve.options.base import PYTHON, RARE, Seeded, check, check_positive
from calib_serve.options.evaluate import Interval, Resampled
from calib_serve.options.scores import ScoresOptions

__all__ = ["ContractOptions", "DecideOptions", "PlanOptions", "PromiseOptions"]


@dataclass(frozen=True, kw_only=True)
class PromiseOptions(Interval, Seeded):
    """What is promised of decisions."""

    coverage: float | None = None
    """The share of prediction sets to hold the true class."""
    risk: float | None = None
    """The share of answers that may be wrong; what would be more often so is not answered."""
    score: Literal["lac", "aps", "raps"] = "lac"
    """Sets by lac are the smallest, by aps grow where the model doubts; raps is aps, cut short."""
    per_class: bool = False
    """Promise the coverage for every class."""
    penalty: Annotated[float | None, PYTHON] = None
    """raps: the penalty of each further rank; by default chosen."""
    free_ranks: Annotated[int | None, PYTHON] = None
    """raps: ranks without a penalty; by default chosen."""


@dataclass(frozen=True, kw_only=True)
class DecideOptions(ScoresOptions, PromiseOptions):
    """Options of ``decide``."""


@dataclass(frozen=True, kw_only=True)
class ContractOptions(Interval, Resampled):
    """Options of ``check_contract``."""

    segments: Any = None
    """The segment of each sample, an npy file of text."""
    predictions_per_day: float | None = None
    """Tells how likely a promise is kept over one window of them."""

    def _check(self) -> None:
        if self.predictions_per_day is not None:
            check_positive(predictions_per_day=self.predictions_per_day)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Seeded):
    """Options of ``plan_contract``."""

    power: Annotated[float, RARE] = 0.9
    """How surely a breach is noticed by then."""
    kept: Annotated[int, RARE] = 10_000
    """Labels of a kept promise that came before the breach."""
    predictions_per_day: float | None = None
    """Tells which share of them to label."""

    def _check(self) -> None:
        check(0 < self.power < 1, "power", f"must lie between 0 and 1, got {self.power:g}; 0.9 means 90 %")
        check(self.kept >= 0, "kept", f"must be 0 or more, got {self.kept}")
        if self.predictions_per_day is not None:
            check_positive(predictions_per_day=self.predictions_per_day)
