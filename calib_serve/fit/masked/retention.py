"""The schedule of q, the share of weights that a mask keeps, in training a masked head (Ni 2025)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from calib_serve.errors import InputError

__all__ = ["Retention"]


@dataclass(frozen=True)
class Retention:
    """q starts at ``first`` and changes once per epoch, by a gap clipped to eta_t (eq. 12 and 13).

    ``adapt`` "held-out" moves q by accuracy minus confidence on held-out samples, which suits heads of
    expected weights; "training" by confidence minus ``gamma`` times accuracy on the training set, as in the
    paper; None keeps ``first``. ``eta`` are the first and the last bound, between which it falls
    exponentially; equal ones are the paper's static form. ``warm_up``: the share of the epochs before q first
    moves, as the gap of an untrained head says nothing about q, and ``bounds`` other than [0, 1] are ours.
    """

    first: float = 0.5
    adapt: Literal["held-out", "training"] | None = "held-out"
    gamma: float = 1.0
    eta: tuple[float, float] = (0.1, 0.001)
    bounds: tuple[float, float] = (0.05, 1.0)
    warm_up: float = 0.1

    def __post_init__(self) -> None:
        low, high = self.bounds
        if not (0 <= low <= self.first <= high <= 1 and self.first > 0):
            raise InputError(
                f"q must lie within its bounds in [0, 1], above 0, got {self.first} in {self.bounds}"
            )
        if not (self.eta[0] >= self.eta[1] > 0):
            raise InputError(f"eta must be positive and not rise, got {self.eta}")
        if not 0 <= self.warm_up <= 1:
            raise InputError(f"warm_up is a share of the epochs, in [0, 1], got {self.warm_up}")
        if self.adapt not in (None, "held-out", "training"):
            raise InputError(f"adapt must be 'held-out', 'training' or None, got {self.adapt!r}")

    def bound(self, epoch: int, epochs: int) -> float:
        """Eta of epoch 1..epochs (eq. 13).

        >>> round(Retention().bound(20, 40), 6)
        0.01
        """
        first, last = self.eta
        return first * math.exp(math.log(last / first) * epoch / epochs)

    def moved(self, q: float, *, confidence: float, accuracy: float, epoch: int, epochs: int) -> float:
        """The q that follows this epoch (eq. 12).

        >>> Retention(adapt="training").moved(0.5, confidence=0.95, accuracy=0.9, epoch=40, epochs=40)
        0.501
        >>> Retention(adapt="held-out").moved(0.5, confidence=0.95, accuracy=0.9, epoch=40, epochs=40)
        0.499
        """
        if self.adapt is None or epoch <= self.warm_up * epochs:
            return q
        # Expected weights and with them confidence grow with q, so the sign is reversed.
        gap = accuracy - confidence if self.adapt == "held-out" else confidence - self.gamma * accuracy
        bound = self.bound(epoch, epochs)
        return min(max(q + min(max(gap, -bound), bound), self.bounds[0]), self.bounds[1])
