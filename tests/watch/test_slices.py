"""Slices are bounded, whatever clients invent, and stay the same over restarts."""

import threading
from collections import Counter

import numpy as np

from calib_serve.receipts import group_number
from calib_serve.watch.ledger import Key
from calib_serve.watch.slices import GROUPS, OTHER, Names, Slices

V = ("m", "1")


def test_names_are_bounded_by_version_and_the_rest_are_other():
    names = Names(3)
    for version in (V, ("m", "2")):
        found = {names.under(version, f"user {i}") for i in range(1000)}
        assert found == {"user 0", "user 1", "user 2", OTHER}
    assert names.under(V, "") == ""
    assert Names(0).under(V, "a") == OTHER


def test_names_that_are_counted_already_keep_their_slice_after_a_restart():
    names = Names(2, known=lambda _: [Key(*V, "old"), Key(*V, OTHER), Key(*V)])
    assert [names.under(V, name) for name in ("new", "newer", "old")] == ["new", OTHER, "old"]


def test_threads_do_not_go_beyond_the_bound():
    names, found = Names(5), set()

    def work(start):
        found.update(names.under(V, f"{start}-{i}") for i in range(500))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(found - {OTHER}) == 5


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


def test_groups_fall_into_32_evenly():
    slices = Slices({V: 2})
    names = Counter(
        key.name
        for i in range(6400)
        for key in slices.of(*V, 0, group=group_number(f"patient {i}"))
        if key.kind == "group"
    )
    assert set(names) == {str(i) for i in range(GROUPS)}
    assert GROUPS == 32
    assert max(abs(n - 200) for n in names.values()) < 5 * 200**0.5
