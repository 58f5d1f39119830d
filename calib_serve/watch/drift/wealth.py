"""What the bets against calibration have won, advanced by many labels at once.

Most of the stake bets that all confidences are off in one direction (``signed_bets``), the rest that every
bin, or every predicted class, is off in a direction of its own (``part_bets``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import ShapeError
from calib_serve.watch.drift.bets import SHIFTS, weights
from calib_serve.watch.drift.part_bets import PartBets
from calib_serve.watch.drift.rounds import CLASS_SLOTS, Rounds
from calib_serve.watch.drift.signed_bets import SignedBets

__all__ = ["OF_BINS", "OF_CLASSES", "SIGNED", "SPAN", "Wealth", "signed_stakes"]

Floats = NDArray[np.float64]

# Errors that cancel over bins or classes are found ten times sooner by these bets than by any sum over all
# labels, so a small share will do; one direction is what others find as well.
SIGNED, OF_BINS, OF_CLASSES = 0.8, 0.12, 0.08
SPAN = 96  # blocks at once: each pays 1/10 to 501, and a float holds what 96 of them make


def signed_stakes(*, tolerance: float, arl: float, block: int = 1) -> Floats:
    """The stake of each signed bet, a label (2 S,).

    At tolerance 0 all stakes make 1, half for each direction. With a tolerance a stream is at one of its
    edges at most: at one edge the bets on the other direction lose, and what is staked on them hardly
    ever raises a false alarm. So the stake that they share is more than 1: w / (1 + rest) for each direction,
    where rest is the rate of false alarms of the losing direction over that of the other.

    For a shift D beyond the tolerance t, the payoff's power 1 + 4 t / D is what has expectation 1 at the
    far edge (normal approximation), so its worth exceeds arl in about arl^(-1 - 4 t / D) of the time,
    rest = arl^(-4 t / D); half that exponent is taken, for safety. Before that it must have died: it loses
    2 t D / p (1 - p) of itself a label, so it holds at most 1 / (8 t D) labels' worth in expectation, which
    is added as a share of arl. Blocks of labels that depend on one another pay and die otherwise, so for them
    no stake is shared: all stakes make 1.

    >>> float(signed_stakes(tolerance=0.0, arl=1000).sum().round(9))
    0.8
    """
    rest = np.ones(len(SHIFTS))
    if block == 1 and tolerance > 0:
        rest = np.minimum(arl ** (-2 * tolerance / SHIFTS) + 1 / (8 * tolerance * SHIFTS * arl), 1)
    stakes = SIGNED * weights(block=block) / (1 + rest)
    return np.concatenate([stakes, stakes])


@dataclass(frozen=True, eq=False)
class Wealth:
    """All that the bets know after ``labels`` labels."""

    labels: int
    signed: SignedBets
    by_bin: PartBets
    by_class: PartBets

    @classmethod
    def none(cls, labels: int, *, bins: int) -> Wealth:
        """Nothing won yet, ``labels`` labels into the stream."""
        by_bin, by_class = (PartBets.none(labels, parts=parts) for parts in (bins, CLASS_SLOTS))
        return cls(labels, SignedBets.none(), by_bin, by_class)

    def evidence(self, stakes: Floats) -> float:
        """The statistic."""
        of_parts = OF_BINS * self.by_bin.worth + OF_CLASSES * self.by_class.worth
        return float(self.signed.worth @ stakes) + of_parts

    def began(self, stakes: Floats) -> Floats:
        """Label and time (2,) at which the change began, as the bets that won most on their stake tell it."""
        won = [float(self.signed.worth @ stakes) / SIGNED, self.by_bin.worth, self.by_class.worth]
        start: Floats = (self.signed, self.by_bin, self.by_class)[won.index(max(won))].began
        return start

    def after(self, rounds: Rounds, stakes: Floats) -> tuple[Wealth, Floats]:
        """The wealth after up to ``SPAN`` blocks; the statistic after each (B,)."""
        ends = self.labels + np.cumsum(rounds.sizes)
        firsts = ends - rounds.sizes + 1
        signed, signed_worth = self.signed.after(rounds, firsts)
        by_bin, of_bins = self.by_bin.after(rounds.bins, firsts, rounds.sizes, rounds.times)
        by_class, of_classes = self.by_class.after(rounds.classes, firsts, rounds.sizes, rounds.times)
        evidence = signed_worth @ stakes + OF_BINS * of_bins + OF_CLASSES * of_classes
        return Wealth(int(ends[-1]), signed, by_bin, by_class), evidence

    def flat(self) -> Floats:
        """Everything but ``labels`` in one vector, for stores; read back by ``from_flat``."""
        by_bin = self.by_bin.flat()
        return np.concatenate([self.signed.flat(), [len(by_bin)], by_bin, self.by_class.flat()])

    @classmethod
    def from_flat(cls, flat: Floats, *, labels: int, bins: int) -> Wealth:
        """The wealth behind ``flat()``; ShapeError if its length fits no number of starts."""
        at = SignedBets.size()
        if len(flat) < at + 1 or not 0 < flat[at] < len(flat) - at - 1:
            raise ShapeError(f"the wealth of {bins} bins has no {len(flat)} numbers")
        by_bin, by_class = np.split(flat[at + 1 :], [int(flat[at])])
        return cls(
            labels,
            SignedBets.from_flat(flat[:at]),
            PartBets.from_flat(by_bin, parts=bins),
            PartBets.from_flat(by_class, parts=CLASS_SLOTS),
        )
