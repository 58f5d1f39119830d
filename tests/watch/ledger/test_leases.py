"""Leases: who holds a writer's name, for how long, and what is left to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

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
