"""A ledger in partitions counts as one does, and each label in one of them."""

import contextlib

import pytest
from ledger_model import PartitionedMachine, run
from ledgers import FOREVER, entries, make_label
from sizes import sized

from calib_serve.errors import LedgerError, UnknownFate
from calib_serve.watch.ledger import (
    backup_ledger,
    open_ledger,
    restore_ledger,
    verify_ledger,
)

pytestmark = pytest.mark.store


def labels(n, *, epochs=16, first=0):
    """Labels of this many signing processes."""
    return [make_label((first + i % epochs << 16) + i, label=i % 2) for i in range(n)]


def fates(ledger, some):
    found = ledger.accept(entries(some))
    return [found.count(fate) for fate in ("counted", "duplicate", "forgotten")]


def n_labels(ledger):
    return sum(sums.labels.sum() for sums in ledger.sums().values())


# --- what it counts ------------------------------------------------------------------------------


def test_it_is_what_its_model_says():
    run(PartitionedMachine, runs=sized(2, 10_000))


def test_a_batch_that_ends_midway_is_of_unknown_fate_and_counts_once_when_it_is_sent_again(
    tmp_path, monkeypatch
):
    with contextlib.closing(open_ledger(f"{tmp_path}/ledger.db?parts=3")) as ledger:

        def fails(*_, **__):
            raise LedgerError("the disk is full")

        monkeypatch.setattr(ledger.parts[2], "accept", fails)
        with pytest.raises(UnknownFate, match="partition 3 did not count"):
            ledger.accept(entries(labels(60)))
        monkeypatch.undo()
        counted, duplicate, _ = fates(ledger, labels(60))
        assert counted + duplicate == 60
        assert counted
        assert duplicate
        assert n_labels(ledger) == 60


# --- the drift detector --------------------------------------------------------------------------


def taken(ledger, most):
    with ledger.transaction():
        return ledger.take_waiting(("m", "1"), until=FOREVER, most=most)


def feed(ledger, fed, most):
    with ledger.transaction():
        fed += ledger.take_waiting(("m", "1"), until=FOREVER, most=most)
        ledger.store("detector", b"fed with 40")


def test_labels_are_fed_once_though_partitions_are_not_written(tmp_path, monkeypatch):
    some = labels(60)
    with contextlib.closing(open_ledger(f"{tmp_path}/ledger.db?parts=3")) as ledger:
        ledger.accept(entries(some))
        real, within = ledger.parts[1].transaction, []

        @contextlib.contextmanager
        def dies():
            with real():
                within.append(1)
                yield
                within.pop()
                if not within:
                    raise LedgerError("killed before it was written")

        monkeypatch.setattr(ledger.parts[1], "transaction", dies)
        first = []
        with pytest.raises(LedgerError, match="killed"):
            feed(ledger, first, 40)
    with contextlib.closing(open_ledger(f"{tmp_path}/ledger.db?parts=3")) as ledger:
        assert ledger.load("detector") == b"fed with 40"
        assert ledger.waiting()["m", "1"] > 20  # some of them wait still, and are not fed again
        rest = taken(ledger, 40)
        assert taken(ledger, 40) == []
        assert ledger.waiting() == {}
    told = [row.nonce for row in first + rest]
    assert len(first) == 40
    assert sorted(told) == sorted(one.receipt.nonce for one in some)


# --- what it refuses -----------------------------------------------------------------------------


def test_the_number_of_partitions_stays(tmp_path):
    where = f"{tmp_path}/ledger.db"
    open_ledger(f"{where}?parts=2").close()
    with pytest.raises(LedgerError, match="partition 1 of 2 of a ledger, not 1 of 3"):
        open_ledger(f"{where}?parts=3")
    with pytest.raises(LedgerError, match=r"is partition 2 of 2 of a ledger; name the whole one"):
        open_ledger(f"{where}.2")


# --- what operators do ---------------------------------------------------------------------------


def test_a_backup_holds_all_partitions(tmp_path):
    where, file = f"{tmp_path}/ledger.db?parts=3", tmp_path / "backup"
    with contextlib.closing(open_ledger(where)) as ledger:
        ledger.accept(entries(labels(90)))
        before = ledger.generation()
    made = backup_ledger(where, file)
    assert made.bytes > backup_ledger(f"{tmp_path}/ledger.db.1", tmp_path / "one").bytes
    with contextlib.closing(open_ledger(where)) as ledger:
        ledger.accept(entries(labels(120)))
    with pytest.raises(LedgerError, match="set it aside with --replace"):
        restore_ledger(file, where)
    done = restore_ledger(file, where, replace=True)
    assert len(done.aside.split(", ")) == 3
    with contextlib.closing(open_ledger(where)) as ledger:
        assert n_labels(ledger) == 90
        assert fates(ledger, labels(120))[0] == 0
        assert ledger.generation() > before
    assert verify_ledger(where) == []
