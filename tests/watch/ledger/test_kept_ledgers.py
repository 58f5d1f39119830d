"""Ledgers that earlier formats wrote are read as they were, brought to today's, and count no label twice.

The files in ``tests/kept/ledgers`` were written by the programs of their time and are never made again. A
Redis is kept as the commands that make it.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ledgers import open_one

from calib_serve.errors import LedgerError
from calib_serve.receipts import Label, Receipt, Shadow
from calib_serve.watch.ledger import Entry, Key, Once, Shadowed, verify_file
from calib_serve.watch.ledger.formats import FORMAT

KEPT = Path(__file__).parents[2] / "kept" / "ledgers"
WHEN = 4_000_000_000.0  # far ahead: Redis forgets by its own clock
SQLITE, REDIS = range(1, FORMAT), (1, 2)


def open_sqlite(number, folder, **options):
    path = folder / "l.db"
    if not path.exists():
        shutil.copy(KEPT / f"sqlite-format-{number}.db", path)
    return open_one("sqlite", path, clock=lambda: WHEN, **options)


def open_redis(number, url, **options):
    import redis

    prefix = f"kept-{number}"
    with redis.Redis.from_url(url) as server:
        if not server.exists(f"{{{prefix}}}:bins"):
            for command, key, *told in json.loads((KEPT / f"redis-format-{number}.json").read_text()):
                name = key.replace("{kept}", f"{{{prefix}}}")
                server.execute_command(command, name, *(one.encode("latin-1") for one in told))
    return open_one("redis", (url, prefix), **options)


@pytest.fixture(params=[*(("sqlite", n) for n in SQLITE), *(("redis", n) for n in REDIS)], ids=str)
def kept(request, tmp_path):
    """(opens it, as often as wanted; what it said when it was written; its format)."""
    kind, number = request.param
    expected = json.loads((KEPT / f"format-{number}.json").read_text())[kind]
    if kind == "sqlite":
        yield lambda **more: open_sqlite(number, tmp_path, **more), expected, number
        return
    url = request.getfixturevalue("redis_url")
    yield lambda **more: open_redis(number, url, **more), expected, number
    forget(url, f"{{kept-{number}}}")


def forget(url, root):
    import redis

    with redis.Redis.from_url(url) as server:
        for key in server.scan_iter(f"{root}*"):
            server.delete(key)


def numbers(sums):
    bins = sums.feedback
    return [
        sums.predictions.sum(),
        sums.predictions_confidence.sum(),
        bins.count.sum(),
        bins.confidence.sum(),
        bins.correct.sum(),
    ]


def entry(nonce, version="1"):
    receipt = Receipt("k", "pets", version, WHEN, bytes.fromhex(nonce), 1, 0.9)
    return Entry(Label(receipt, 1), WHEN, (Key("pets", version),))


def test_a_ledger_of_every_format_says_what_it_said(kept) -> None:
    opened, expected, _ = kept
    with closing(opened(writer="w1")) as ledger:
        for own, name in ((False, "all"), (True, "own")):
            found = {**ledger.slices("segment", own=own), **ledger.slices("class", own=own)}
            assert set(found) == {Key(*one[:4]) for one in expected[name]}
            for *key, said in expected[name]:
                np.testing.assert_allclose(numbers(found[Key(*key)]), said, rtol=1e-9)
        dated = {(one.key, one.start, one.width): one.sums for one in ledger.dated(0.0, 5e9)}
        assert len(dated) == len(expected.get("dated", []))
        for key, start, width, said in expected.get("dated", []):
            np.testing.assert_allclose(numbers(dated[Key(*key), start, width]), said, rtol=1e-9)
        assert ledger.waiting() == {(m, v): n for m, v, n in expected.get("waiting", [])}
        assert ledger.load("note") == b"kept \x00"
        assert ledger.verify() == []


def test_a_ledger_of_every_format_counts_no_label_and_no_batch_twice_and_new_ones_once(kept) -> None:
    opened, expected, _ = kept
    for _ in range(2):  # also when it is opened again
        with closing(opened(writer="w1")) as ledger:
            assert set(ledger.accept([entry(nonce) for nonce in expected["counted"]])) == {"duplicate"}
            batch = Once.of(b"a client's batch-1", b"content", time=WHEN, earlier=b"batch-1")
            assert not ledger.add({}, time=WHEN, once=batch)
            assert ledger.verify() == []
    with closing(opened(writer="w1")) as ledger:
        assert ledger.accept([entry("03" * 10), entry("04" * 12)]) == ["counted"] * 2


def test_what_a_ledger_of_every_format_had_published_is_not_published_again(kept) -> None:
    opened, expected, number = kept
    with closing(opened(writer="w1")) as ledger:
        with ledger.emission("torchserve") as (fresh, counted):
            published = {version: n for version, sums in fresh.items() if (n := sums.labels.sum())}
        assert published == ({} if number == 1 else {("pets", "1"): 3})  # what came after
        labels = sum(said[2] for *key, said in expected["own"] if key[1] == "1" and key[3] == "segment")
        assert counted["pets", "1"].feedback.count.sum() == labels


def test_a_sqlite_ledger_that_was_converted_is_of_today_s_format_and_keeps_nothing_else(tmp_path) -> None:
    for number in SQLITE:
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(KEPT / f"sqlite-format-{number}.db", folder / "l.db")
        assert f"format {number}, and can be verified once" in verify_file(folder / "l.db")[0]
        open_sqlite(number, folder).close()
        assert verify_file(folder / "l.db") == []
        open_one("sqlite", tmp_path / "new.db").close()
        with (
            closing(sqlite3.connect(folder / "l.db")) as db,
            closing(sqlite3.connect(tmp_path / "new.db")) as new,
        ):
            assert db.execute("PRAGMA user_version").fetchone() == (FORMAT,)
            made = "SELECT name, sql FROM sqlite_master WHERE name <> 'sqlite_sequence' ORDER BY name"
            assert db.execute(made).fetchall() == new.execute(made).fetchall()
            # Names of batches lay among them once.
            assert not db.execute("SELECT 1 FROM nonces WHERE length(nonce) <> 12").fetchall()


@pytest.mark.parametrize("number", [1, 2])  # those that are written anew
def test_a_sqlite_ledger_whose_conversion_fails_stays_as_it_was(number: int, tmp_path: Path) -> None:
    shutil.copy(KEPT / f"sqlite-format-{number}.db", tmp_path / "l.db")
    with closing(sqlite3.connect(tmp_path / "l.db")) as db, db:
        db.execute("UPDATE emitted SET sums = 'a text'")
        db.execute("UPDATE nonces SET expires = 'soon'")
    with pytest.raises(LedgerError, match="quarantine"):
        open_sqlite(number, tmp_path)
    with closing(sqlite3.connect(tmp_path / "l.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (number,)
        assert db.execute("SELECT count(*) FROM nonces WHERE expires = 'soon'").fetchone()[0] > 0


def test_labels_that_waited_before_there_were_shadows_are_taken_out_with_those_of_after(kept) -> None:
    opened, expected, _ = kept
    receipt = Receipt(
        "k", "pets", "1", WHEN - 3.5, b"\x09" * 10, 1, 0.9, shadow=Shadow(2, 0.75, b"\x0a\0\xff\1")
    )
    shadowed = Entry(Label(receipt, 2), WHEN, (Key("pets", "1"),))
    with closing(opened(writer="w1")) as ledger:
        assert ledger.accept([shadowed]) == ["counted"]
        assert ledger.verify() == []
        with ledger.transaction():
            rows = ledger.take_waiting(("pets", "1"), until=WHEN + 10, most=100)
    assert len(rows) == 1 + sum(n for _, v, n in expected.get("waiting", []) if v == "1")
    assert [row.time for row in rows] == sorted(row.time for row in rows)
    assert [row.shadow for row in rows if row.shadow] == [Shadowed(0.75, True, False, "0a00ff01")]


def test_a_row_that_was_damaged_in_format_3_is_still_seen_to_be(tmp_path: Path) -> None:
    shutil.copy(KEPT / "sqlite-format-3.db", tmp_path / "l.db")
    with closing(sqlite3.connect(tmp_path / "l.db")) as db, db:
        db.execute("UPDATE journal SET confidence = 0.99 WHERE id = (SELECT min(id) FROM journal)")
    open_sqlite(3, tmp_path).close()
    with closing(open_sqlite(3, tmp_path)) as ledger:
        assert any("journal" in one for one in ledger.set_aside())


def test_what_the_first_format_may_have_forgotten_is_refused(tmp_path: Path) -> None:
    day, retention = 86_400.0, 30 * 86_400.0
    shutil.copy(KEPT / "sqlite-format-1.db", tmp_path / "l.db")
    with closing(sqlite3.connect(tmp_path / "l.db")) as db, db:
        pruned = repr(WHEN + retention - day)
        db.execute("INSERT OR REPLACE INTO state VALUES ('ledger/pruned_through', ?)", (pruned,))
    for _ in range(2):
        with closing(open_sqlite(1, tmp_path, retention=retention)) as ledger:
            fates = ledger.accept([late(entry("05" * 12), -day), late(entry("06" * 12), -day + 1)])
            assert fates[0] == "forgotten"
    assert fates[1] == "duplicate"


def late(one: Entry, seconds: float) -> Entry:
    receipt = replace(one.label.receipt, time=WHEN + seconds)
    return replace(one, label=replace(one.label, receipt=receipt))
