"""``verify`` of both ledgers: nothing while all is well, and the damage by its name."""

import sqlite3
from contextlib import closing

import pytest
from ledgers import FOREVER, NOW, accept, entries, make_label, open_one

from calib_serve.errors import LedgerError
from calib_serve.watch.checks import Checks
from calib_serve.watch.ledger import (
    Key,
    Once,
    SqliteLedger,
    backup_ledger,
    prune_ledger,
    restore_ledger,
    set_aside_rows,
    verify_file,
    verify_ledger,
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
        "UPDATE totals SET sums = zeroblob(10)",
        "DELETE FROM totals WHERE name = 's1'",
        "UPDATE totals SET model = 'n'",
        "UPDATE epochs SET bits = x'0000'",
        "UPDATE journal SET slices = '[]' WHERE id = 3",
        "DELETE FROM epochs",
        "UPDATE journal SET correct = 1 - correct WHERE id = 3",
        "UPDATE journal SET id = id + 1000 WHERE id = 3",
        "DELETE FROM journal WHERE id = 3",
        "UPDATE spans SET start = start + 300",
        "DELETE FROM batches",
        "UPDATE batches SET content = x'00'",
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


def test_what_was_set_aside_is_told_until_it_is_deleted_and_keeps_no_backup_from_being_made(tmp_path):
    path = tmp_path / "l.db"
    ledger = SqliteLedger(path)
    accept(ledger, [make_label(i) for i in range(5)])
    ledger._db.execute("UPDATE epochs SET bits = x'0000'")
    ledger.close()
    with closing(SqliteLedger(path)) as ledger:
        (said,) = ledger.set_aside()
        assert said.startswith("epochs: ")
        checks = Checks(*ledger.checks())
        checks.run()
        assert "1 rows" in checks.reasons()["damage"]
        assert checks.status == "degraded"
    backup_ledger(str(path), tmp_path / "b")
    assert restore_ledger(tmp_path / "b", str(path), replace=True).aside
    assert verify_ledger(str(path)) == []
    assert set_aside_rows(str(path)) == [said]
    assert prune_ledger(str(path), set_aside=True).set_aside == 1
    assert verify_ledger(str(path)) == set_aside_rows(str(path)) == []
    with closing(SqliteLedger(path)) as ledger:
        checks = Checks(*ledger.checks())
        checks.run()
        assert checks.reasons()["damage"] is None


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


# --- Redis ------------------------------------------------------------------------------------


@pytest.fixture
def redis_ledger(request):
    ledger = open_one(
        "redis", (request.getfixturevalue("redis_url"), request.node.name[:60].replace("[", ""))
    )
    yield ledger
    ledger.close()


def name_of(redis, key):
    return redis.smembers(key).pop().decode()


def test_values_of_a_redis_ledger_that_cannot_be_read_are_named(redis_ledger):
    fill(redis_ledger)
    redis, root = redis_ledger._redis, redis_ledger._root
    total = f"{root}:total:{name_of(redis, f'{root}:totals')}"
    redis.hset(total, "3", "many")
    redis.rpush(f"{root}:journal", "[1,")
    wrong = "\n".join(redis_ledger.verify())
    assert "total" in wrong
    assert "many" in wrong
    assert "journal" in wrong
    redis.ltrim(f"{root}:journal", 0, -2)
    with pytest.raises(LedgerError, match="restore"):
        assert redis_ledger.slices("segment") == redis_ledger.slices("class")


def test_sums_that_a_redis_lost_show_against_its_bits(redis_ledger):
    fill(redis_ledger)
    redis, root = redis_ledger._redis, redis_ledger._root
    assert redis_ledger.verify() == []
    for name in redis.smembers(f"{root}:totals"):
        redis.delete(f"{root}:total:{name.decode()}")
    (said,) = redis_ledger.verify()
    assert "30 receipts are remembered, and only 0 labels" in said


def test_bits_that_a_redis_lost_are_said_and_their_labels_count_no_second_time(redis_ledger):
    fill(redis_ledger)
    labels = [make_label(i) for i in range(30)]
    redis, root = redis_ledger._redis, redis_ledger._root
    (epoch,) = redis.scan_iter(f"{root}:epoch:*".replace("[", "\\["))
    redis.delete(epoch)
    assert "fewer are remembered" in redis_ledger.verify()[0]
    assert redis_ledger.accept(entries([*labels, make_label(40)])) == ["forgotten"] * 31
    assert "refused as forgotten" in redis_ledger.verify()[0]
    assert redis_ledger.accept(entries([make_label(1 << 16)])) == ["counted"]
    assert redis_ledger.sums()["m", "1"].labels.sum() == 31
