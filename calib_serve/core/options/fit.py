"""Options of a fit, on data or on served traffic; each method has options of its own, beside these."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

from calib_serve.core.options.base import PYTHON, Checked, CustomOps, Factory, LastLayer, Seeded, check
from calib_serve.core.options.data import ArchiveOptions, ScoresOptions


@dataclass(frozen=True, kw_only=True)
class Prior(Checked):
    """The class shares for which a calibration is."""

    prior: Any = None
    """Class shares of the traffic to serve: 0.7,0.3, or cat=0.7,dog=0.3, or a file of these."""


@dataclass(frozen=True, kw_only=True)
class BySource(Checked):
    """Whether each source of samples has a calibration of its own."""

    by: Any = None
    """A column of each sample's source, such as its hospital: each has a map, shrunk to the common one."""


@dataclass(frozen=True, kw_only=True)
class FitOptions(ScoresOptions, Prior, BySource, Seeded):
    """Options of ``calibrate``."""

    class_weight: Any = None
    """Weights of classes in the fit: balanced, or, in Python, a mapping of class ids or names."""
    cross_validate: bool = True
    """Whether before and after are measured on held-out folds, where no test samples are given."""


@dataclass(frozen=True, kw_only=True)
class ArchiveFitOptions(ArchiveOptions, Prior, Seeded):
    """Options of ``calibrate_archive``."""


@dataclass(frozen=True, kw_only=True)
class ModelFitOptions(Factory, CustomOps, Prior, Seeded, LastLayer):
    """Options of ``calibrate_model``."""

    outputs: Any = None
    """The kind of scores that the model returns, where its numbers do not tell, as in ``ScoresOptions``."""
    class_names: tuple[str, ...] = ()
    """Names of the classes, in order."""
    train: Any = None
    """Inputs and labels that the masked head trains on; without them a part of the calibration data."""
    pictures: Any = None
    """How pictures became the inputs: a ``Preprocessing``, or a mapping of its fields."""
    input_shape: Any = None
    """One input's shape, such as 3,224,224; by default the data's."""
    device: str | None = None
    """cpu, cuda or cuda:1; by default a GPU if there is one."""
    batch_size: int = 256
    """Inputs at once."""
    cross_validate: bool = True
    """As in ``FitOptions``."""
    keep_rows: bool = False
    """Keep 32 rows of the model's scores with hashes of their inputs, by which fuse knows another export."""

    def _check(self) -> None:
        check(self.batch_size >= 1, "batch_size", f"must be 1 or more, got {self.batch_size}")


@dataclass(frozen=True, kw_only=True)
class GateOptions(Seeded):
    """Options of a new fit, and the evidence that it needs to replace the current one."""

    method: str = "auto"
    """A method's name, or auto."""
    alpha: Annotated[float, PYTHON] = 0.05
    """The chance to replace a calibration that is right, at most."""

    def _check(self) -> None:
        check(0 < self.alpha < 1, "alpha", f"must lie between 0 and 1, got {self.alpha}; 0.05 means 5 %")


@dataclass(frozen=True, kw_only=True)
class RefitOptions(ScoresOptions, GateOptions):
    """Options of ``refit``."""


@dataclass(frozen=True, kw_only=True)
class ServedRefitOptions(GateOptions):
    """Options of ``refit_served``."""

    model: str = ""
    """The model whose samples to use, NAME:VERSION; an archive knows its own."""
    days: float = 7
    """How far back to look at least, and at most twice as far."""

    def _check(self) -> None:
        check(math.isfinite(self.days) and self.days > 0, "days", f"must be positive, got {self.days}")
