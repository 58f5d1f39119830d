"""Slices are bounded, whatever clients invent, and stay the same over restarts."""

import itertools
from collections import Counter

import numpy as np

from calib_serve.receipts import Keyring
from calib_serve.receipts.batch import OTHER
from calib_serve.receipts.slices import Names, Slices
from calib_serve.receipts.sums import Key

V = ("m", "1")
RING = Keyring("k1", {"k1": bytes(32)})


def test_names_that_are_counted_already_keep_their_slice_after_a_restart():
    names = Names(2, known=lambda _: [Key(*V, "old"), Key(*V, OTHER), Key(*V)])
    assert [names.under(V, name) for name in ("new", "newer", "old")] == ["new", OTHER, "old"]


def test_a_label_seen_before_counts_where_a_first_one_does():
    receipts = [
        RING.verify(
            RING.sign(model=m, version="1", predicted=k, confidence=0.9, segment=segment, group=group)
        )
        for m, k, segment, group in itertools.product("mn", (0, 1), ("", "north"), (0, 7))
    ]
    named = list(itertools.product(("", "south", "north"), ("", "lab", "clinic"), (0, 1, None)))
    counts, kept = {("m", "1"): 2, ("n", "1"): 2}, Slices({("m", "1"): 2, ("n", "1"): 2})
    for _ in range(2):
        for receipt, (segment, source, label) in itertools.product(receipts, named):
            options = {"segment": segment, "source": source, "label": label}
            assert kept.of_label(receipt, **options) == Slices(counts).of_label(receipt, **options)


def test_a_name_gets_no_slice_of_its_own_by_having_been_other():
    slices, labels = Slices({V: 2}, segments=2), []
    for segment in ("a", "b", "a"):  # labels alone take half of two places
        receipt = RING.verify(RING.sign(model="m", version="1", predicted=0, confidence=0.9))
        labels.append(slices.of_label(receipt, segment=segment)[0].name)
    signed = RING.verify(RING.sign(model="m", version="1", predicted=0, confidence=0.9, segment="b"))
    assert [*labels, slices.of_label(signed)[0].name] == ["a", OTHER, "a", "b"]


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
