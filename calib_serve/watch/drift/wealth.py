"""What the bets against calibration have won, advanced by many labels at once.

Half of the stake bets that all confidences are off in one direction (``signed_bets``), half that every
bin is off in a direction of its own (``bin_bets``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import ShapeError
from calib_serve.watch.drift.bets import Rounds
from calib_serve.watch.drift.bin_bets import BinBets
from calib_serve.watch.drift.signed_bets import SignedBets

__all__ = ["SIGNED", "SPAN", "Wealth"]

Floats = NDArray[np.float64]

SIGNED = 0.5  # the signed bets' share of the stake
SPAN = 96  # labels at once: each pays 1/10 to 501, and a float holds what 96 of them make


@dataclass(frozen=True, eq=False)
class Wealth:
    """All that the bets know after ``labels`` labels."""

    labels: int
    signed: SignedBets
    by_bin: BinBets

    @classmethod
    def none(cls, labels: int, *, bins: int) -> Wealth:
        """Nothing won yet, ``labels`` labels into the stream."""
        return cls(labels, SignedBets.none(), BinBets.none(bins=bins))

    @property
    def evidence(self) -> float:
        """The statistic: at most the number of labels so far, in expectation, without drift."""
        return SIGNED * float(self.signed.worth.mean()) + (1 - SIGNED) * self.by_bin.worth

    @property
    def began(self) -> Floats:
        """Label and time (2,) at which the change began, as the half that won more tells it."""
        one_way = SIGNED * self.signed.worth.mean() > (1 - SIGNED) * self.by_bin.worth
        return self.signed.began if one_way else self.by_bin.began

    def after(self, rounds: Rounds) -> tuple[Wealth, Floats]:
        """The wealth after the blocks of up to ``SPAN`` labels, or of one; the statistic after each (B,)."""
        firsts = self.labels + 1 + rounds.size * np.arange(len(rounds))
        signed, signed_worth = self.signed.after(rounds, firsts)
        by_bin, bin_worth = self.by_bin.after(rounds, firsts)
        evidence = SIGNED * signed_worth.mean(axis=1) + (1 - SIGNED) * bin_worth
        return Wealth(self.labels + rounds.size * len(rounds), signed, by_bin), evidence

    def flat(self) -> Floats:
        """Everything but ``labels`` in one vector, for stores; read back by ``from_flat``."""
        return np.concatenate([self.signed.flat(), self.by_bin.flat()])

    @classmethod
    def from_flat(cls, flat: Floats, *, labels: int, bins: int) -> Wealth:
        """The wealth behind ``flat()``; ShapeError if its length fits no number of starts."""
        signed, by_bin = np.split(flat, [SignedBets.size()])
        if len(signed) < SignedBets.size():
            raise ShapeError(f"the wealth of {bins} bins has no {len(flat)} numbers")
        return cls(labels, SignedBets.from_flat(signed), BinBets.from_flat(by_bin, bins=bins))
