"""Leases: who holds a writer's name, for how long, and what is left to the next."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from calib_serve.errors import InputError, LedgerError
from calib_serve.watch.ledger import SqliteLedger, WriterLease
from calib_serve.watch.ledger.file_leases import FileLeases
from calib_serve.watch.ledger.leases import Held, Holder, RowLeases

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


def test_where_no_file_can_be_the_error_names_it(tmp_path: Path) -> None:
    leases = FileLeases(tmp_path / "gone" / "l.db")
    with pytest.raises(LedgerError, match=r"cannot be kept in .+gone/l\.db\.writer-a: .*No such file"):
        leases.take("a", ONE)


class Rows:
    """A ledger's state, in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.lock = threading.RLock()

    def transaction(self) -> threading.RLock:
        return self.lock

    def load(self, key: str) -> bytes | None:
        return self.kept.get(key)

    def store(self, key: str, value: bytes) -> None:
        self.kept[key] = value


def test_a_row_is_held_for_its_seconds_and_renewed() -> None:
    now = [1000.0]
    leases = RowLeases(Rows(), seconds=15.0, clock=lambda: now[0])
    assert leases.look("a") is None
    assert leases.take("a", ONE) is None
    now[0] += 10
    assert leases.take("a", TWO) == leases.look("a") == Held(ONE, 5.0)
    assert leases.take("a", ONE) is None
    assert leases.look("a") == Held(ONE, 15.0)
    now[0] += 15
    assert leases.look("a") is None
    assert leases.take("a", TWO) is None
    leases.release("a", ONE)
    assert leases.look("a") == Held(TWO, 15.0)
    now[0] -= 1  # dated ahead of the clock
    assert leases.look("a") is None
    leases.take("a", TWO)
    leases.release("a", TWO)
    assert leases.look("a") is None
    leases.remember("a", b"note")
    assert (leases.recall("a"), leases.recall("b")) == (b"note", None)


@pytest.mark.parametrize("spoiled", [b"", b"{", b"7", b"[]", b'{"until": "soon"}', b'{"until": 1005.0}'])
def test_a_spoiled_row_holds_nobody_up(spoiled: bytes) -> None:
    rows = Rows()
    rows.store("lease/a", spoiled)
    leases = RowLeases(rows, clock=lambda: 1000.0)
    assert leases.look("a") is None
    assert leases.take("a", ONE) is None


def test_a_holder_says_who_it_is() -> None:
    assert str(TWO) == "process 2 on b since 1970-01-02T00:00:00+00:00"
    assert str(Holder("two", "b", 2, 86_400.75)) == str(TWO)
    assert Holder.unpacked(TWO.packed()) == TWO
    for text in ("", "{", "[]", '{"id": "x"}', json.dumps({"id": "x", "host": "h", "pid": "p", "since": 0})):
        assert Holder.unpacked(text) == Holder("", "an unknown host", 0, 0.0)
    assert str(Holder("x", "h", 3, 1e300)) == "process 3 on h since an unknown time"
    assert Holder.here("shared").id == "shared"
    assert Holder.here().id != Holder.here().id


@pytest.fixture
def ledger(tmp_path: Path):
    opened = SqliteLedger(tmp_path / "l.db")
    opened.leases = RowLeases(opened, seconds=0.6)
    yield opened
    opened.close()


def test_a_lease_is_renewed_while_it_lives_and_free_once_it_is_closed(ledger: SqliteLedger) -> None:
    lease = WriterLease(ledger, name="a")
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        held = ledger.leases.look("a")
        assert held is not None
        assert held.holder == lease.holder
        time.sleep(0.05)
    assert (lease.hold(), lease.lost, ledger.writer) == ("a", 0, "a")
    lease.close()
    assert ledger.leases.look("a") is None
    time.sleep(0.4)
    assert ledger.leases.look("a") is None, "the beat has ended"


def test_a_name_whose_holder_may_have_died_is_waited_for(ledger: SqliteLedger) -> None:
    dead = WriterLease(ledger, name="a")
    dead._stop.set()
    begun = time.monotonic()
    heir = WriterLease(ledger, name="a", strict=True)
    assert heir.name == "a"
    assert time.monotonic() - begun < 5
    with pytest.raises(InputError, match="'a' of this ledger is held by process"):
        WriterLease(ledger, name="a", strict=True)
    assert (dead.hold(), dead.lost) == ("a-2", 1)
    heir.close()


def test_whoever_wants_one_name_is_told_soon_that_its_holder_lives(ledger: SqliteLedger) -> None:
    lease = WriterLease(ledger, name="a")
    begun = time.monotonic()
    with pytest.raises(InputError, match="'a' of this ledger is held by process"):
        WriterLease(ledger, name="a", strict=True)
    assert time.monotonic() - begun < 6 * ledger.leases.seconds
    lease.close()


def test_whoever_wants_one_name_does_not_look_at_others(ledger: SqliteLedger) -> None:
    dead, alive = WriterLease(ledger, name="a"), WriterLease(ledger, name="a-2")
    dead._stop.set()
    heir = WriterLease(ledger, name="a", strict=True)
    assert heir.name == "a"
    for lease in (heir, alive):
        lease.close()


def test_a_lease_that_cannot_be_asked_for_is_held_as_long_as_it_lasts(ledger: SqliteLedger) -> None:
    lease = WriterLease(ledger, name="a")
    lease._stop.set()

    def fails(name: str, holder: Holder) -> None:
        raise LedgerError("the store is away")

    ledger.leases.take = fails  # type: ignore[method-assign]
    assert lease.hold() == "a"
    lease._sure = time.monotonic() - 0.7
    with pytest.raises(LedgerError, match="is away"):
        lease.hold()


def test_names_that_cannot_be_part_of_a_file_are_refused(ledger: SqliteLedger) -> None:
    for name in ("a" * 61, "a\nb"):
        with pytest.raises(InputError, match="at most 60 printable characters"):
            WriterLease(ledger, name=name)
    WriterLease(ledger, name="a" * 60).close()


def test_those_of_one_id_share_a_name_and_leave_it_to_the_last(ledger: SqliteLedger) -> None:
    one, two = (WriterLease(ledger, name="a", shared="x") for _ in range(2))
    assert (one.name, two.name, one.holder.id) == ("a", "a", "x")
    one.close()
    held = ledger.leases.look("a")
    assert held is not None
    assert held.holder.id == "x"
    other = WriterLease(ledger, name="a", shared="y")
    assert other.name != "a" or ledger.leases.look("a").holder.id == "y"
    for lease in (two, other):
        lease.close()


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


def test_a_lease_lasts_as_long_as_its_process(ledger: SqliteLedger) -> None:
    before = set(threading.enumerate())
    lease = WriterLease(ledger, name="a")
    (beat,) = (one for one in threading.enumerate() if one.name == "calib-lease" and one not in before)
    assert beat.daemon, "it keeps no process alive"
    lease.close()
    beat.join(10)
    assert not beat.is_alive()


def test_a_spoiled_file_is_of_nobody_and_has_no_note(tmp_path: Path) -> None:
    leases = FileLeases(tmp_path / "l.db")
    leases.take("a", ONE)
    leases.remember("a", b"note")
    for spoiled in ("{", "7", "[]", ""):
        (tmp_path / "l.db.writer-a").write_text(spoiled)
        assert leases.recall("a") is None
        assert leases.take("a", TWO) == Held(Holder("", "an unknown host", 0, 0.0), float("inf"))
    leases.release("a", ONE)
    assert leases.take("a", TWO) is None
    leases.release("a", TWO)
    assert oct((tmp_path / "l.db.writer-a").stat().st_mode & 0o777) == "0o600"


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


def test_a_shared_name_that_another_takes_meanwhile_is_not_shared(ledger: SqliteLedger) -> None:
    rows = Rows()
    other = RowLeases(rows, seconds=0.6)

    class Meanwhile(RowLeases):
        def look(self, name: str) -> Held | None:
            held = super().look(name)
            if name == "a":  # another one takes it, and renews it
                if held is not None and held.holder.id == "x":
                    other.release(name, held.holder)
                other.take(name, TWO)
            return held

    other.take("a", Holder.here("x"))
    ledger.leases = Meanwhile(rows, seconds=0.6)
    lease = WriterLease(ledger, name="a", shared="x")
    assert lease.name == "a-2"
    lease.close()


def test_a_shorter_note_takes_the_place_of_a_longer_one(tmp_path: Path) -> None:
    leases = FileLeases(tmp_path / "l.db")
    leases.take("a", ONE)
    for note in (b"until here, and then for long", b"until here"):
        leases.remember("a", note)
        assert leases.recall("a") == note
    leases.release("a", ONE)
