"""Options of a refit on samples of what is served."""

import math
from dataclasses import dataclass

from calib_serve.options.base import Seeded, check
from calib_serve.options.scores import ScoresOptions

__all__ = ["GateOptions", "RefitOptions", "ServedRefitOptions"]


@dataclass(frozen=True, kw_only=True)
class GateOptions(Seeded):
    """How a calibration is fitted again, and what evidence it needs to replace the current one."""

    method: str = "auto"
    """A method's name, or auto."""
    alpha: float = 0.05
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
