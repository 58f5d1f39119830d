"""Slices are bounded, whatever clients invent, and stay the same over restarts."""

from collections import Counter

import numpy as np

from calib_serve.receipts.batch import OTHER
from calib_serve.receipts.slices import Names, Slices
from calib_serve.receipts.sums import Key

V = ("m", "1")


def test_names_that_are_counted_already_keep_their_slice_after_a_restart():
    names = Names(2, known=lambda _: [Key(*V, "old"), Key(*V, OTHER), Key(*V)])
    assert [names.under(V, name) for name in ("new", "newer", "old")] == ["new", OTHER, "old"]


def test_of_many_classes_the_most_served_get_a_slice_whatever_comes_first():
    rng = np.random.default_rng(0)
    slices = Slices({V: 1000}, classes=8)
    frequent = [100 + i for i in range(6)]
    first = list(range(900, 1000))  # rare ones come first
    drawn = np.where(rng.random(20_000) < 0.9, rng.choice(frequent, 20_000), rng.integers(0, 1000, 20_000))
    served = Counter(slices.of(*V, int(k))[1].name for k in [*first, *drawn])
    own = set(served) - {OTHER}
    assert own == {str(k) for k in frequent}
    assert served[OTHER] < 0.2 * len(drawn)
