"""The drift detector as it is defined, one block of labels after the other: what the quick one must equal."""

import numpy as np

from calib_serve.bins import bin_index
from calib_serve.watch.drift.bets import SHIFTS, payoffs
from calib_serve.watch.drift.bin_bets import PRIOR, SPACING, THIN
from calib_serve.watch.drift.wealth import SIGNED

K = len(SHIFTS)


class PlainDetector:
    """``evidence`` after every block, and the label of every alarm."""

    def __init__(self, *, arl, tolerance=0.01, bins=15, block=1):
        self.arl, self.tolerance, self.bins, self.block = arl, tolerance, bins, block
        self.labels, self.evidence, self.alarms = 0, [], []
        self.restart()

    def restart(self):
        self.signed = np.zeros(2 * K)
        self.starts = []  # [label, capital (K,), belief (bins, 3, K)], the oldest first

    def update(self, c, y):
        pays, index = payoffs(c, y, tolerance=self.tolerance), bin_index(c, bins=self.bins)
        for i in range(0, len(c) - len(c) % self.block, self.block):
            self.step(index[i : i + self.block], pays[i : i + self.block])

    def step(self, index, pays):
        n, first = len(index), self.labels + 1
        self.labels += n
        self.signed = (self.signed + n) * pays.mean(axis=0)
        if not self.starts or first - self.starts[-1][0] >= SPACING:
            self.open(first)
        for start in self.starts:
            _, capital, belief = start
            start[1] = capital * sum(self.growth(belief[b], p) for b, p in zip(index, pays, strict=True)) / n
        for _, _, belief in self.starts:
            for b, p in zip(index, pays, strict=True):
                belief[b, 1:] *= p.reshape(2, K) ** (1 / n)
                belief[b] /= belief[b].sum(axis=0)
        total = sum(capital.sum() for _, capital, _ in self.starts)
        self.evidence.append(SIGNED * self.signed.mean() + (1 - SIGNED) * total)
        if self.evidence[-1] >= self.arl:
            self.alarms.append(self.labels)
            self.restart()

    def growth(self, belief, pays):
        return belief[0] + (belief[1:] * pays.reshape(2, K)).sum(axis=0)

    def open(self, first):
        last = self.starts[-1][0] if self.starts else first - 1
        stake = np.full(K, (self.labels - last) / K)
        self.starts.append([first, stake, np.tile(PRIOR[:, None], (self.bins, 1, K))])
        age = [first + SPACING - label for label, _, _ in self.starts]
        keep = [0]
        for i in range(1, len(age) - 1):
            if age[keep[-1]] <= THIN * age[i + 1]:
                self.starts[i + 1][1] = self.starts[i + 1][1] + self.starts[i][1]
            else:
                keep.append(i)
        keep += [len(age) - 1] * (len(age) > 1)
        self.starts = [self.starts[i] for i in keep]
