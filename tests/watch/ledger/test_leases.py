"""Leases: who holds a writer's name, for how long, and what is left to the next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calib_serve.errors import InputError
from calib_serve.watch.ledger import SqliteLedger, WriterLease
from calib_serve.watch.ledger.leases import FileLeases, Held, Holder

pytestmark = pytest.mark.store

ONE, TWO = Holder("one", "a", 1, 0.0), Holder("two", "b", 2, 86_400.0)


def test_a_file_is_held_by_one_until_it_is_given_back(tmp_path: Path) -> None:
    here, there = FileLeases(tmp_path / "l.db"), FileLeases(tmp_path / "l.db")
    assert here.seconds == 0, "the kernel knows at once"
    assert here.take("a", ONE) is None
    assert here.take("a", ONE) is None
    assert there.take("a", TWO) == Held(ONE, float("inf"))
    assert here.take("a", TWO) == Held(ONE, float("inf"))
    assert there.take("b", TWO) is None
    here.release("a", ONE)
    assert there.take("a", TWO) is None
    assert here.take("a", ONE) == Held(TWO, float("inf"))
    for leases, name in ((there, "a"), (there, "b")):
        leases.release(name, TWO)


def test_several_of_one_id_hold_a_file_together(tmp_path: Path) -> None:
    here, there, other = (FileLeases(tmp_path / "l.db") for _ in range(3))
    assert here.take("a", ONE) is there.take("a", ONE) is None
    here.release("a", ONE)
    assert other.take("a", TWO) == Held(ONE, float("inf"))
    there.release("a", ONE)
    assert other.take("a", TWO) is None
    other.release("a", TWO)


def test_a_note_is_there_for_the_next_holder(tmp_path: Path) -> None:
    first, second = FileLeases(tmp_path / "l.db"), FileLeases(tmp_path / "l.db")
    first.take("a", ONE)
    assert first.recall("a") is None
    first.remember("a", b"until here")
    assert first.recall("a") == b"until here"
    second.remember("a", b"not its own")
    assert second.recall("a") is None
    first.release("a", ONE)
    assert second.take("a", TWO) is None
    assert second.recall("a") == b"until here"
    second.release("a", TWO)
    (file,) = tmp_path.glob("*.writer-a")
    assert json.loads(file.read_text()) == {"holder": TWO.packed(), "note": "until here"}


@pytest.fixture
def ledger(tmp_path: Path):
    opened = SqliteLedger(tmp_path / "l.db")
    yield opened
    opened.close()


def test_names_that_cannot_be_part_of_a_file_are_refused(ledger: SqliteLedger) -> None:
    for name in ("a" * 61, "a\nb"):
        with pytest.raises(InputError, match="at most 60 printable characters"):
            WriterLease(ledger, name=name)
    WriterLease(ledger, name="a" * 60).close()


def test_names_are_looked_for_one_after_the_other(ledger: SqliteLedger) -> None:
    unnamed = [WriterLease(ledger) for _ in range(3)]
    assert [lease.name for lease in unnamed] == ["", "2", "3"]
    named = [WriterLease(ledger, name="a") for _ in range(3)]
    assert [lease.name for lease in named] == ["a", "a-2", "a-3"]
    unnamed[1].close()
    again = WriterLease(ledger)
    assert (again.name, ledger.writer) == ("2", "2")
    for lease in (*unnamed, *named, again):
        lease.close()


def test_a_name_whose_file_is_deleted_is_taken_anew(tmp_path: Path) -> None:
    here, there = FileLeases(tmp_path / "l.db"), FileLeases(tmp_path / "l.db")
    here.take("a/b c", ONE)
    file = tmp_path / "l.db.writer-a%2Fb%20c"
    file.unlink()
    assert here.take("a/b c", ONE) is None
    assert file.exists()
    assert there.take("a/b c", TWO) == Held(ONE, float("inf"))
    here.release("a/b c", ONE)
    here.release("a/b c", ONE)
    assert here.recall("a/b c") is None
    assert here.take("", ONE) is None
    assert (tmp_path / "l.db.writer").exists()
    here.release("", ONE)
