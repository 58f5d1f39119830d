"""What the bets against calibration have won, advanced by many labels at once.

Most of the stake bets that all confidences are off in one direction (``SignedBets``), the rest that every
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

__all__ = ["OF_BINS", "OF_CLASSES", "SIGNED", "SPAN", "SignedBets", "Wealth", "signed_stakes"]

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


_BETS = 2 * len(SHIFTS)


@dataclass(frozen=True, eq=False)
class SignedBets:
    """``worth`` (2 K,) of each bet, its CUSUM ``run`` (2 K,), and where that began.

    ``run_start`` (2, 2 K) holds the label and the time of that.
    """

    worth: Floats
    run: Floats
    run_start: Floats

    @classmethod
    def none(cls) -> SignedBets:
        """Nothing won yet."""
        return cls.from_flat(np.zeros(cls.size()))

    def after(self, rounds: Rounds, firsts: NDArray[np.intp]) -> tuple[SignedBets, Floats]:
        """The bets after the blocks that begin at labels ``firsts`` (B,); their worth after each (B, 2 K)."""
        worth = _shiryaev_roberts(self.worth, rounds.pays, rounds.sizes)
        run, run_start = _cusum(self.run, self.run_start, np.log(rounds.pays), firsts, rounds.times)
        return SignedBets(worth[-1], run, run_start), worth

    @property
    def began(self) -> Floats:
        """Label and time (2,) at which the run of the strongest bet began."""
        start: Floats = self.run_start[:, self.worth.argmax()]
        return start

    @staticmethod
    def size() -> int:
        """How many numbers ``flat`` has."""
        return 4 * _BETS

    def flat(self) -> Floats:
        """All in one vector, for stores; read back by ``from_flat``."""
        return np.concatenate([self.worth, self.run, self.run_start.ravel()])

    @classmethod
    def from_flat(cls, flat: Floats) -> SignedBets:
        """The bets behind ``flat()``."""
        worth, run, run_start = np.split(flat, [_BETS, 2 * _BETS])
        return cls(worth, run, run_start.reshape(2, _BETS))


def _shiryaev_roberts(worth: Floats, pays: Floats, sizes: NDArray[np.intp]) -> Floats:
    """Each bet's worth after each block, R = (R + size) pay, from the products of the pays."""
    product = np.cumprod(pays, axis=0)
    before = np.concatenate([np.ones((1, pays.shape[1])), product[:-1]])
    worths: Floats = product * (worth + np.cumsum(sizes[:, None] / before, axis=0))
    return worths


def _cusum(
    run: Floats, start: Floats, gains: Floats, firsts: NDArray[np.intp], times: Floats
) -> tuple[Floats, Floats]:
    """Each bet's CUSUM after all blocks, which begins again once it is not positive, and when it began."""
    walk = np.concatenate([np.maximum(run, 0)[None], np.maximum(run, 0) + np.cumsum(gains, axis=0)])
    low = np.minimum.accumulate(np.concatenate([np.zeros((1, len(run))), walk[1:]]), axis=0)
    fresh = np.concatenate([[run <= 0], walk[1:-1] <= low[:-2]])
    back = len(fresh) - 1 - fresh[::-1].argmax(axis=0)
    began = np.stack([firsts[back], times[back]])
    return walk[-1] - low[-2], np.where(fresh.any(axis=0), began, start)
