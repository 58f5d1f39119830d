"""A ledger in partitions counts as one does, and each label in one of them."""

import contextlib
import time

import numpy as np
import pytest
from ledger_model import PartitionedMachine, run
from ledgers import FOREVER, entries, make_label
from sizes import nightly, sized

from calib_serve import Keyring
from calib_serve.errors import InputError, LedgerError, UnknownFate
from calib_serve.watch.journal import LabelJournal
from calib_serve.watch.ledger import (
    PartitionedLedger,
    SqliteLedger,
    WriterLease,
    backup_ledger,
    open_ledger,
    prune_ledger,
    restore_ledger,
    verify_ledger,
)
from calib_serve.watch.ledger.address import places_of
from calib_serve.watch.service import ServedPrediction, Watch

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


@nightly
def test_receipts_that_are_looked_for_elsewhere_are_found(monkeypatch):
    monkeypatch.setattr(
        PartitionedLedger, "place", lambda self, nonce: (nonce[0] + int(self.writer or 0)) % len(self.parts)
    )
    with pytest.raises(AssertionError):
        run(PartitionedMachine, runs=500, shrinks=False)


def test_labels_are_spread_over_all_partitions(tmp_path):
    where = f"{tmp_path}/ledger.db?parts=4"
    with contextlib.closing(open_ledger(where)) as ledger:
        assert fates(ledger, labels(400)) == [400, 0, 0]
        assert fates(ledger, labels(400)) == [0, 400, 0]
        found = [n_labels(part) for part in ledger.parts]
    assert min(found) >= 25
    assert sum(found) == 400
    assert sorted(path.name for path in tmp_path.glob("ledger.db.[0-9]")) == [
        f"ledger.db.{i}" for i in (1, 2, 3, 4)
    ]


def test_labels_are_fed_in_the_order_of_their_predictions(tmp_path):
    rng = np.random.default_rng(0)
    ages = rng.permutation(50)
    some = [make_label((i % 7 << 16) + i, when=time.time() - 100 - age) for i, age in enumerate(ages)]
    with contextlib.closing(open_ledger(f"{tmp_path}/ledger.db?parts=4")) as ledger:
        ledger.accept(entries(some))
        told = [row.time for _ in range(5) for row in taken(ledger, 10)]
    assert told == sorted(one.receipt.time for one in some)


def test_a_ledger_without_partitions_does_not_become_one(tmp_path):
    with contextlib.closing(SqliteLedger(tmp_path / "ledger.db.1")) as ledger:
        ledger.accept(entries(labels(3)))
    with pytest.raises(LedgerError, match="a ledger without partitions"):
        open_ledger(f"{tmp_path}/ledger.db?parts=2")


@pytest.mark.parametrize("told", ["0", "257", "-1", "two", "", "1.5"])
def test_numbers_of_partitions_that_cannot_be(told, tmp_path):
    for where in (f"{tmp_path}/ledger.db?parts={told}", f"redis://redis:6379/0?parts={told}"):
        with pytest.raises(InputError, match="1 to 256 partitions"):
            open_ledger(where)


def test_addresses_of_partitions():
    assert [place.where for place in places_of("a?b.db")] == ["a?b.db"]
    assert places_of("redis://h/0?socket_timeout=3&parts=2")[0].where == "redis://h/0?socket_timeout=3"
    assert places_of("redis://h/0?parts=2&socket_timeout=3")[1] == (
        "redis://h/0?socket_timeout=3",
        "calib-serve:2",
    )
    assert len(places_of("redis+cluster://h:7000")) == 16
    with pytest.raises(InputError, match="holds a password"):
        open_ledger("redis+cluster://user:secret@h:7000")


def test_labels_that_could_not_be_taken_back_are_not_journalled(tmp_path):
    with (
        contextlib.closing(open_ledger(f"{tmp_path}/ledger.db?parts=2")) as ledger,
        pytest.raises(InputError, match="takes no labels back"),
    ):
        LabelJournal(tmp_path / "journal", ledger)


def test_damage_is_said_with_the_number_of_its_partition(tmp_path):
    where = f"{tmp_path}/ledger.db?parts=2"
    with contextlib.closing(open_ledger(where)) as ledger:
        ledger.accept(entries(labels(40)))
        ledger.parts[1]._db.execute("UPDATE totals SET crc = crc + 1")
    assert verify_ledger(where)[0].startswith("partition 2: ")


def test_a_version_is_taken_out_of_all_partitions(tmp_path):
    where = f"{tmp_path}/ledger.db?parts=3"
    with contextlib.closing(open_ledger(where)) as ledger:
        ledger.accept(entries(labels(60)))
        with ledger.emission("c"):
            pass
    assert prune_ledger(where, version=("m", "1"), compact=True).labels == 60
    assert verify_ledger(where) == []
    with contextlib.closing(open_ledger(where)) as ledger:
        assert ledger.sums() == {}
        assert ledger.published("c") == {}
        assert fates(ledger, labels(60)) == [0, 60, 0]


def test_what_a_writer_counted_itself_is_told_apart_in_all_partitions(tmp_path):
    where = f"{tmp_path}/ledger.db?parts=3"
    with contextlib.closing(open_ledger(where)) as one, contextlib.closing(open_ledger(where)) as two:
        one.writer, two.writer = "a", "b"
        one.accept(entries(labels(60)))
        two.accept(entries(labels(40, first=60)))
        assert [n_labels(ledger) for ledger in (one, two)] == [100, 100]
        own = [sum(sums.labels.sum() for sums in ledger.sums(own=True).values()) for ledger in (one, two)]
        assert own == [60, 40]
        assert one.verify() == []


def test_the_spans_of_one_version_are_its_own_in_all_partitions(tmp_path):
    with contextlib.closing(open_ledger(f"{tmp_path}/ledger.db?parts=3")) as ledger:
        for version in ("1", "2"):
            ledger.accept(entries([make_label(100 * int(version) + i, version=version) for i in range(30)]))
        found = ledger.dated(0, 1e11, version=("m", "2"))
        assert {one.key.version for one in found} == {"2"}
        assert {one.key.version for one in ledger.dated(0, 1e11)} == {"1", "2"}


def test_what_is_published_is_what_was_counted_in_all(tmp_path):
    with contextlib.closing(open_ledger(f"{tmp_path}/ledger.db?parts=3")) as ledger:
        lease = WriterLease(ledger, name="a")
        for upto, fresh in ((30, 30), (50, 20), (50, 0)):
            ledger.accept(entries(labels(upto)))
            with ledger.emission("c") as found:
                assert sum(one.labels.sum() for one in found.fresh.values()) == fresh
        assert ledger.published("c")["m", "1"].labels.sum() == 50
        assert [part.writer for part in ledger.parts] == ["a"] * 3
        lease.close()


def test_checks_speak_of_the_partition_that_is_wrong(tmp_path):
    with contextlib.closing(open_ledger(f"{tmp_path}/ledger.db?parts=2")) as ledger:
        names = [check.name for check in ledger.checks()]
        assert {"file", "disk", "journal", "damage"} <= set(names)
        assert names == [check.name for check in ledger.parts[0].checks()]
        (tmp_path / "ledger.db.2").rename(tmp_path / "gone")
        said = []
        for check in ledger.checks():
            try:
                said.append(check.run())
            except (LedgerError, OSError) as error:
                said.append(str(error))
    assert any((one and "ledger.db.2" in one) or (one and "partition 2" in one) for one in said)


def test_a_watch_counts_in_partitions(tmp_path):
    where = f"{tmp_path}/ledger.db?parts=2"
    with Watch.open({("digits", "1"): 10}, keyring=Keyring.new(), ledger=where, maturity=0) as watch:
        served = [ServedPrediction("digits", "1", predicted=i % 10, confidence=0.9) for i in range(50)]
        receipts = watch.predictions(served)
        told = watch.labels([{"receipt": one, "label": 3} for one in receipts] * 2)
        assert [one.accepted for one in told] == [True] * 50 + [False] * 50
        watch.feed.tick()
        assert watch.ledger.waiting() == {}
        window = watch.window(("digits", "1"), "1h")
    assert window.sums.labels.sum() == window.sums.predictions.sum() == 50
