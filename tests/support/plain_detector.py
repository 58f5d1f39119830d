"""The drift detector as it is defined, one block of labels after the other: what the quick one must equal."""

import numpy as np

from calib_serve.core.bins import bin_index
from calib_serve.monitor.drift.bets import PRIOR, SPACING, THIN, signed_stakes
from calib_serve.monitor.drift.rounds import CLASS_SLOTS, OF_PARTS, SHIFTS, payoffs
from calib_serve.monitor.measured import BINS_STAKE, CLASSES_STAKE

K = len(SHIFTS[OF_PARTS])


class PlainParts:
    """Bets on every bin, or on every class."""

    def __init__(self, parts, labels):
        self.parts, self.paid = parts, labels
        self.starts = []  # [label, capital (K,), belief (parts, 3, K)], the oldest first

    def step(self, index, pays, first):
        n = len(index)
        if not self.starts or first - self.starts[-1][0] >= SPACING:
            self.open(first, first + n - 1)
        for start in self.starts:
            _, capital, belief = start
            start[1] = capital * sum(growth(belief[b], p) for b, p in zip(index, pays, strict=True)) / n
        for _, _, belief in self.starts:
            for b, p in zip(index, pays, strict=True):
                belief[b, 1:] *= p ** (1 / n)
                belief[b] /= belief[b].sum(axis=0)
        return sum(capital.sum() for _, capital, _ in self.starts)

    def open(self, first, last):
        stake = np.full(K, (last - self.paid) / K)
        self.paid = last
        self.starts.append([first, stake, np.tile(PRIOR[:, None], (self.parts, 1, K))])
        age = [first + SPACING - label for label, _, _ in self.starts]
        keep = [0]
        for i in range(1, len(age) - 1):
            if age[keep[-1]] <= THIN * age[i + 1]:
                self.starts[i + 1][1] = self.starts[i + 1][1] + self.starts[i][1]
            else:
                keep.append(i)
        keep += [len(age) - 1] * (len(age) > 1)
        self.starts = [self.starts[i] for i in keep]


def growth(belief, pays):
    return belief[0] + (belief[1:] * pays).sum(axis=0)


class PlainDetector:
    """``evidence`` and ``ends``, the last label, of every block, and the label of every alarm."""

    def __init__(self, *, arl, tolerance=0.02, bins=15, block=1, groups=False):
        self.arl, self.tolerance, self.bins, self.block = arl, tolerance, bins, block
        self.stakes = signed_stakes(tolerance=tolerance, arl=arl, block=max(block, 1 + groups))
        self.labels, self.evidence, self.ends, self.alarms = 0, [], [], []
        self.restart()

    def restart(self):
        self.signed = np.zeros(2 * len(SHIFTS))
        self.by_bin = PlainParts(self.bins, self.labels)
        self.by_class = PlainParts(CLASS_SLOTS, self.labels)

    def take(self, c, y, slots):
        """One block."""
        pays, n, first = payoffs(c, y, tolerance=self.tolerance), len(c), self.labels + 1
        of_parts = pays.reshape(n, 2, -1)[:, :, OF_PARTS]
        self.labels += n
        self.signed = (self.signed + n) * pays.mean(axis=0)
        bins = self.by_bin.step(bin_index(c, bins=self.bins), of_parts, first)
        classes = self.by_class.step(slots, of_parts, first)
        self.evidence.append(self.signed @ self.stakes + BINS_STAKE * bins + CLASSES_STAKE * classes)
        self.ends.append(self.labels)
        if self.evidence[-1] >= self.arl:
            self.alarms.append(self.labels)
            self.restart()

    def update(self, c, y, *, slots=None):
        """In blocks of one size."""
        block = self.block
        slots = np.full(len(c), CLASS_SLOTS - 1) if slots is None else slots
        for i in range(0, len(c) - len(c) % block, block):
            at = slice(i, i + block)
            self.take(c[at], y[at], slots[at])
