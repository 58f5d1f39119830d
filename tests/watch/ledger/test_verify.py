"""``verify`` of both ledgers: nothing while all is well, and the damage by its name."""

import sqlite3

import pytest
from ledgers import FOREVER, NOW, accept, entries, make_label, open_one

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import (
    Key,
    Once,
    SqliteLedger,
    verify_file,
)
from calib_serve.watch.ledger.sums import Sums

pytestmark = pytest.mark.store

BATCH = Once(b"a batch", b"content", NOW, FOREVER)


def fill(ledger):
    accept(ledger, [make_label(i) for i in range(30)], [f"s{i % 3}" for i in range(30)])
    ledger.add({Key("m", "1"): Sums.served([0.9])}, time=NOW, once=BATCH)
    ledger.sums()
    ledger.store("key", b"value")


def test_a_ledger_in_use_has_nothing_wrong(store):
    one, two = open_one(*store, writer="one"), open_one(*store, writer="two")
    fill(one)
    with two.transaction():
        two.store("other", b"value")
        assert one.verify() == []
        accept(two, [make_label(100)])
    assert one.verify() == two.verify() == []
    one.close(), two.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM totals WHERE name = 's1'",
        "UPDATE epochs SET bits = x'0000'",
        "DELETE FROM epochs",
        "UPDATE journal SET correct = 1 - correct WHERE id = 3",
        "DELETE FROM journal WHERE id = 3",
        "UPDATE spans SET start = start + 300",
        "DELETE FROM batches",
        "UPDATE state SET value = '0' WHERE key = 'ledger/folded'",
        "DELETE FROM state WHERE key = 'ledger/latest'",
        "DELETE FROM state WHERE key = 'ledger/digests'",
        "DROP INDEX journal_time",
    ],
)
def test_what_is_changed_behind_its_back_is_named_and_no_label_counts_again(tmp_path, statement):
    path = tmp_path / "l.db"
    ledger = SqliteLedger(path)
    fill(ledger)
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()
    wrong = ledger.verify()
    assert wrong != []
    assert ledger.verify() == wrong  # it changes nothing
    ledger.close()
    assert verify_file(path) == wrong
    again = [make_label(i) for i in range(30)]
    try:
        ledger = SqliteLedger(path)
    except LedgerError:
        return
    assert set(ledger.accept(entries(again))) <= {"duplicate", "forgotten"}
    assert not ledger.add({}, time=NOW, once=BATCH)
    assert ledger.set_aside() != []
    assert ledger.verify() == []
    ledger.close()


def test_rows_of_one_table_that_were_swapped_are_told(tmp_path):
    ledger = SqliteLedger(tmp_path / "l.db")
    accept(ledger, [make_label(i << 16, when=NOW - i) for i in range(2)])
    one, two = ledger._db.execute("SELECT crc, expires, bits, epoch FROM epochs").fetchall()
    ledger._db.execute(
        "UPDATE epochs SET (crc, expires, bits) = (?, ?, ?) WHERE epoch = ?", (*one[:3], two[3])
    )
    ledger._db.execute(
        "UPDATE epochs SET (crc, expires, bits) = (?, ?, ?) WHERE epoch = ?", (*two[:3], one[3])
    )
    assert len(ledger.verify()) == 2
    ledger.close()


def test_a_lost_epoch_is_refused_as_forgotten_while_others_count_on(tmp_path):
    path = tmp_path / "l.db"
    ledger = SqliteLedger(path)
    lost, kept = [make_label(i) for i in range(5)], [make_label((1 << 16) + i) for i in range(5)]
    accept(ledger, [*lost, *kept])
    ledger._db.execute("UPDATE epochs SET bits = x'0000' WHERE epoch = ?", (bytes(8),))
    with pytest.raises(LedgerError, match="a row of epochs"):
        accept(ledger, lost)
    assert ledger.accept(entries([*lost, *kept])) == ["forgotten"] * 5 + ["duplicate"] * 5
    fresh = [make_label((1 << 16) + 9), make_label(7, when=NOW + 60), make_label(8)]
    assert ledger.accept(entries(fresh)) == ["counted", "counted", "forgotten"]
    assert ledger.sums()["m", "1"].labels.sum() == 12
    assert "epochs" in "".join(ledger.set_aside())
    assert ledger.accept(entries(lost)) == ["forgotten"] * 5  # also after its epoch is known again
    ledger.close()


def test_damage_under_a_running_ledger_is_found_by_its_sweeps(tmp_path):
    clock = iter(range(10**6))
    ledger = SqliteLedger(tmp_path / "l.db", clock=lambda: NOW + 61 * next(clock))
    fill(ledger)
    with sqlite3.connect(ledger.path) as db:
        db.execute("DELETE FROM totals")
    db.close()

    def go_on():
        for i in range(20):
            accept(ledger, [make_label(1000 + i)])

    with pytest.raises(LedgerError, match="totals"):
        go_on()
    with pytest.raises(LedgerError, match="totals"):
        ledger.sums()
    ledger.close()
