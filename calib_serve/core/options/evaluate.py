"""Options of metrics, verdicts and promises."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from calib_serve.core.options.base import (
    PYTHON,
    Checked,
    Seeded,
    Tolerant,
    check,
    check_between,
    check_default,
    check_positive,
)
from calib_serve.core.options.data import ScoresOptions


@dataclass(frozen=True, kw_only=True)
class Interval(Checked):
    """Options of functions with intervals or guarantees."""

    level: float = 0.95
    """The level of intervals and guarantees."""

    def _check(self) -> None:
        check_between("level", self.level)


@dataclass(frozen=True, kw_only=True)
class Resampled(Seeded):
    """Options of resampling."""

    replicates: Annotated[int, PYTHON] = 1000
    """Resamples and draws that intervals are made of, 16 or more; 0 for no such intervals."""

    def _check(self) -> None:
        # Errors draw an eighth of them from each possible truth, and one draw alone has no spread.
        enough = self.replicates == 0 or self.replicates >= 16
        check(enough, "replicates", f"must be 0, or 16 or more, got {self.replicates}")


@dataclass(frozen=True, kw_only=True)
class Binned(Checked):
    """Options of binning by confidence."""

    bins: Annotated[int, PYTHON] = 15
    """How many confidence bins."""

    def _check(self) -> None:
        check(self.bins >= 1, "bins", f"must be 1 or more, got {self.bins}")


@dataclass(frozen=True, kw_only=True)
class Edged(Binned):
    """Options of what is binned, where bins may hold either end."""

    edges: Annotated[Literal["right", "left"], PYTHON] = "right"
    """Which end a bin holds: right is (lo, hi], left [lo, hi)."""


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(Interval, Resampled, Edged):
    """How scores are measured."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(ScoresOptions, MeasureOptions):
    """Options of ``evaluate``."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ScoresOptions, Resampled):
    """Options of ``compare``."""

    # Fewer than in one evaluation: some twenty methods are resampled, and ranked by their values.
    replicates: Annotated[int, PYTHON] = 200
    """Resamples that the intervals of metrics are made of, 16 or more; 0 for none."""


@dataclass(frozen=True, kw_only=True)
class VerdictOptions(Tolerant):
    """Options of a verdict."""

    class_tolerance: float | None = None
    """The tolerance for a class or label alone; by default 1.5 times the other one."""

    @property
    def of_class(self) -> float:
        """The tolerance for a class or label alone."""
        return min(1.5 * self.tolerance, 0.999) if self.class_tolerance is None else self.class_tolerance

    def _check(self) -> None:
        check_between("tolerance", self.tolerance)
        check_between("class_tolerance", self.of_class)


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(ScoresOptions, VerdictOptions):
    """Options of ``judge``."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions(VerdictOptions, Edged, Resampled):
    """Options of ``write_report``."""

    tree: Any = None
    """A tree of the classes, whose every level is judged: a YAML file of nested names, or sep:/ where the
    classes' own names are paths."""
    names: Annotated[tuple[str, str], PYTHON] = ("before", "after")
    """What the two models are called."""
    class_names: Annotated[tuple[str, ...], PYTHON] = ()
    """What the classes are called, in order; by default as the artifact says."""
    sample_weight: Annotated[Any, PYTHON] = None
    """Weights (n,): figures and paired tests are of rows that are there as often."""
    groups: Annotated[Any, PYTHON] = None
    """Which samples (n,) belong together, such as those of one patient."""
    bounds: Annotated[Any, PYTHON] = None
    """Least and greatest confidence (n, 2), where a part of it is not known, as in ``Scores.bounds``."""
    own: Annotated[str | None, PYTHON] = None
    """Says that the artifact was fitted on these samples, if it was."""


_THRESHOLDS = ("precision", "recall", "budget")


@dataclass(frozen=True, kw_only=True)
class PromiseOptions(Interval, Seeded):
    """Options of the promises of decisions."""

    coverage: float | None = None
    """The share of prediction sets to hold the true class."""
    risk: float | None = None
    """The share of answers that may be wrong; less certain samples get no answer."""
    known_refused: float | None = None
    """The share of samples of the known classes that may be refused as being of none of them."""
    cost: Any = None
    """What each action costs for each true class, a YAML file: a mapping of actions a class. Of two classes
    also FP,FN: what it costs to choose class 1 where class 0 is true, and class 0 where class 1 is."""
    precision: float | None = None
    """Of two classes: the least share of what is chosen as class 1 that is of class 1."""
    recall: float | None = None
    """Of two classes: the least share of class 1 that is chosen."""
    budget: float | None = None
    """Of two classes: the largest share of all samples that may be chosen as class 1."""
    score: Literal["lac", "aps", "raps"] = "lac"
    """Sets by lac are the smallest, by aps grow where the model doubts; raps is aps, cut short."""
    per_class: bool = False
    """Promise the coverage for every class."""

    @property
    def goal(self) -> str | None:
        """What the choice of an action is to keep: "cost" or a threshold's; None where none is chosen."""
        given = [n for n in ("cost", *_THRESHOLDS) if getattr(self, n) is not None]
        check(len(given) < 2, "".join(given[:1]), f"is one way to decide, {', '.join(given[1:])} another")
        return given[0] if given else None

    @property
    def of_errors(self) -> tuple[float, float] | None:
        """What the two errors of two classes cost, FP and FN; None for a table of costs.

        >>> PromiseOptions(cost="1,5").of_errors, PromiseOptions(cost="costs.yaml").of_errors
        ((1.0, 5.0), None)
        """
        given = self.cost.split(",") if isinstance(self.cost, str) else self.cost
        if not isinstance(given, (list, tuple)) or len(given) != 2:
            return None
        try:
            return float(given[0]), float(given[1])
        except (TypeError, ValueError):  # the name of a file may have a comma
            return None

    def _check(self) -> None:
        if self.coverage is None:
            check_default(self, ("score", "per_class"), "goes with coverage, which is not given")
        for cost in self.of_errors or ():
            check_positive("cost", cost)
        for name in _THRESHOLDS:
            if getattr(self, name) is not None:
                check_between(name, getattr(self, name))
        if self.goal is None and self.risk is None:
            check_default(self, ["level"], "goes with risk, a cost or a threshold, and none is given")
        if self.known_refused is not None:
            check_between("known_refused", self.known_refused)
            check(
                self.risk is None, "known_refused", "sets the threshold that risk sets, too; give one of both"
            )


@dataclass(frozen=True, kw_only=True)
class DecideOptions(ScoresOptions, PromiseOptions):
    """Options of ``decide``."""


@dataclass(frozen=True, kw_only=True)
class ContractOptions(Interval, Seeded):
    """Options of ``check_contract``."""

    segments: Any = None
    """The segment of each sample, an npy file of text."""
