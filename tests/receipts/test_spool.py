"""What waits on disk: nothing that is in memory hangs on it, and what is damaged costs itself alone."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calib_serve.core.errors import InputError, Rejected, Unanswered
from calib_serve.receipts import BATCH_LIFE, outbox, spool
from calib_serve.receipts.destination import Batch, Served
from calib_serve.receipts.items import WIRE_BYTES
from calib_serve.receipts.outbox import Outbox

NOW = 1_700_000_000.0


class Home:
    """A watch that is away or not, and counts each batch once under its name."""

    sample_rate = 1.0

    def __init__(self, *, away: bool = False, answers: bool = True, most: int = 1 << 22) -> None:
        self.away, self.answers, self.most = away, answers, most
        self.counted: dict[str, int] = {}
        self.calls, self.largest = 0, 0

    def _take(self, once: str, n: int, rows: list[Any]) -> None:
        self.calls += 1
        if self.away:
            raise Unanswered("nobody is there")
        size = len(json.dumps({"time": NOW, "items": rows}))
        self.largest = max(self.largest, size)
        if size > self.most:
            raise Rejected("too large", status=413)
        self.counted.setdefault(once, n)
        if not self.answers:
            raise Unanswered("the answer was lost")

    def count(self, batch: Batch) -> list[str]:
        rows = [one.as_item() if isinstance(one, Served) else vars(one) for one in batch.items]
        self._take(batch.name, sum(batch.counts), rows)
        return [""] * len(rows)

    @property
    def total(self) -> int:
        return sum(self.counted.values())


class Box(Outbox):
    """An outbox with what it could not do, by stage; its folder is beside the test."""

    def __init__(self, home: Home, folder: Path | None, **more: Any) -> None:
        self.failures: dict[str, int] = {}
        of = {"model": "m", "version": "1", "clock": lambda: NOW, "spool": folder}
        super().__init__(home, self.fail, **{**of, **more})  # type: ignore[arg-type]

    def fail(self, stage: str, times: int = 1) -> None:
        self.failures[stage] = self.failures.get(stage, 0) + times

    def serve(self, n: int, *, ids: str = "") -> None:
        self.put([(i % 10, 0.5) for i in range(n)])
        for i in range(n if ids else 0):
            assert self.put_one(Served("r" * 100, f"{ids}-{i}"))

    def flush(self) -> bool:
        return self.send(at_once=True)


def files(folder: Path, ending: str = "*.db") -> list[Path]:
    return sorted(folder.rglob(ending))


def left_behind(folder: Path, *, ids: int = 0, sums: int = 100) -> Path:
    """The file of a process that ended while the watch was away."""
    box, before = Box(Home(away=True), folder), set(files(folder))
    box.serve(sums)
    for i in range(ids):
        box.put_one(Served("r" * 100, f"order-{i}"))
    assert not box.flush()
    assert box.drop() == 0
    (path,) = set(files(folder)) - before
    return path


def test_what_is_in_memory_and_what_others_left_is_sent_though_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind(tmp_path / "s", ids=20)
    monkeypatch.setattr(spool, "SPOOL_BYTES", 1)
    home = Home(away=True)
    box = Box(home, tmp_path / "s")
    box.serve(1000, ids="order")
    assert not box.flush()
    assert box.failures == {"watch": 1, "spool": 1}
    assert len(box) == 2120
    home.away = False
    assert box.flush()
    assert (home.total, len(box), files(tmp_path)) == (2120, 0, [])


def test_a_disk_that_takes_nothing_loses_only_what_no_memory_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool.Spool, "_write", lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError()))
    home = Home(away=True)
    box = Box(home, tmp_path / "s", most=300)
    for at in range(10):
        box.serve(100, ids=f"{at}") if at < 3 else box.put([(1, 0.5)] * 100)
        assert not box.flush()
    assert not box.put_one(Served("r", "one more"))
    home.away = False
    assert box.flush()
    assert (home.total, box.failures["ids"]) == (1300, 1)


@pytest.mark.parametrize("how", ["newer", "locked", "a folder", "a link"])
def test_a_file_that_cannot_be_used_now_is_kept_and_counted_and_the_rest_is_sent(
    tmp_path: Path, how: str
) -> None:
    path = left_behind(tmp_path / "s")
    left_behind(tmp_path / "s", sums=7)
    aside = path.with_suffix(".aside")
    other = sqlite3.connect(path, isolation_level=None)
    if how == "newer":
        other.execute("PRAGMA user_version = 2")
    elif how == "locked":
        other.execute("BEGIN EXCLUSIVE")
    else:
        path.rename(aside)
        path.mkdir() if how == "a folder" else path.symlink_to(aside)
    home = Home()
    box = Box(home, tmp_path / "s")
    box.serve(5)
    for _ in range(3):
        assert box.flush()
    assert (home.total, box.failures) == (12, {"spool": 1})
    if how == "newer":
        other.execute("PRAGMA user_version = 1")
    other.close()
    if how in ("a folder", "a link"):
        path.rmdir() if how == "a folder" else path.unlink()
        aside.rename(path)
    assert box.flush()
    assert (home.total, files(tmp_path)) == (112, [])


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: -rng.choice([1, 2, 100, 4096, 5000, 12_288])]


def flip(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def zero(content: bytes, rng: random.Random) -> bytes:
    page = rng.randrange(len(content) // 4096)
    return content[: 4096 * page] + bytes(4096) + content[4096 * page + 4096 :]


@pytest.mark.parametrize("damage", [cut, flip, zero])
def test_what_is_damaged_is_kept_aside_and_counted_and_costs_itself_alone(
    tmp_path: Path, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    rng = random.Random(0)
    whole = left_behind(tmp_path / "s", ids=1400, sums=100)
    content, lost = whole.read_bytes(), []
    whole.unlink()
    for at in range(12):
        folder = tmp_path / str(at)
        left_behind(folder, sums=3)
        path = files(folder)[0].with_name("0.db")
        path.write_bytes(damage(content, rng))
        home = Home()
        box = Box(home, folder)
        box.serve(10)
        assert box.flush(), "nothing stands in the way of the rest"
        assert 13 <= home.total <= 1513
        missing, told = 1513 - home.total, box.failures.get("spool", 0)
        assert bool(missing) <= bool(told)
        assert told >= missing or len(files(folder, "*.damaged")) == 1
        assert bool(files(folder, "*.damaged")) == bool(told)
        lost.append(missing)
    assert statistics.median(lost) <= 500, "that is one batch of four"


def test_a_batch_that_may_not_be_known_any_more_is_dropped_and_counted_once_the_clock_is_sure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind(tmp_path / "s", ids=20)
    now, home = [NOW + BATCH_LIFE], Home(answers=False)
    box = Box(home, tmp_path / "s", clock=lambda: now[0])
    box.serve(1)
    assert not box.flush()
    assert home.total == 1, "it is not sent"
    now[0] = NOW + 60  # the clock was wrong for a while
    home.answers = True
    assert box.flush()
    assert (home.total, box.failures) == (121, {"watch": 1})
    left_behind(tmp_path / "s", ids=20)
    now[0] = NOW + BATCH_LIFE
    assert not box.flush()
    assert len(box) == 120
    monkeypatch.setattr(outbox, "_SURE", 0.0)
    assert box.flush()
    assert (home.total, box.failures, files(tmp_path)) == (121, {"watch": 1, "lost": 120}, [])


def test_a_folder_where_another_user_may_put_his_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, user = tmp_path / "made", os.geteuid()
    made.mkdir()
    if user:
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    else:
        os.chown(made, 12_345, -1)
    with pytest.raises(InputError, match="another user's"):
        Box(Home(), made)
    monkeypatch.undo()
    inner = tmp_path / "s" / f"user-{user}"
    for place in (lambda: inner.mkdir(mode=0o755), lambda: inner.symlink_to(tmp_path)):
        inner.parent.mkdir(exist_ok=True)
        place()
        with pytest.raises(InputError, match="for its owner"):
            Box(Home(), tmp_path / "s")
        inner.unlink() if inner.is_symlink() else inner.rmdir()
    left_behind(tmp_path / "s")
    inner.chmod(0o777)  # while it runs
    with pytest.raises(InputError, match="for its owner"):
        Box(Home(), tmp_path / "s")


@pytest.mark.parametrize("letter", ["x", "ü", "名", "\U0001f600", '"', "\0"])
def test_batches_are_cut_by_their_bytes_over_the_wire(letter: str) -> None:
    home = Home(most=WIRE_BYTES + 100)
    box = Box(home, None, model=letter * 255, version=letter * 255)
    for i in range(700):
        box.put([(i, 0.1 + i / 10_000)], [letter * 63])
        assert box.put_one(Served("r" * 200, letter * 255, b"\x55\x15" * (i % 3 * 300)))
    assert box.flush()
    assert (home.total, box.failures) == (1400, {})
    assert home.largest <= WIRE_BYTES + 100


def test_a_watch_that_takes_less_gets_halves_whose_names_are_the_same_again() -> None:
    home = Home(most=20_000, answers=False)
    box = Box(home, None)
    for i in range(400):
        box.put_one(Served("r" * 200, f"order-{i}"))
    for _ in range(20):
        assert not box.flush()
    home.answers, home.most = True, 1 << 22  # a larger bound makes it no other batch
    assert box.flush()
    assert (home.total, box.failures.keys()) == (400, {"watch"})
    box.failures.clear()
    home.most = 20_000
    box.put_one(Served("r" * 30_000, "too large for it"))
    assert box.flush()
    assert (home.total, box.failures) == (400, {"watch": 1})


def test_logits_that_no_batch_could_hold_stay_at_home() -> None:
    home = Home()
    box = Box(home, None)
    assert box.put_one(Served("r", "1", bytes(WIRE_BYTES)))
    assert not box.put_one(Served("r", "", bytes(WIRE_BYTES)))
    assert box.flush()
    assert (home.total, box.failures) == (1, {"logits": 2})


def test_a_long_time_of_little_traffic_is_few_batches(tmp_path: Path) -> None:
    home, now = Home(away=True), [NOW]
    box = Box(home, tmp_path / "s", clock=lambda: now[0])
    for i in range(60):
        box.put([(1, 0.5)])
        box.put_one(Served("r", str(i)))
        box.flush()
        now[0] += 0.5
    home.away, home.calls = False, 0
    assert box.flush()
    assert (home.total, box.failures.keys()) == (120, {"watch"})
    assert home.calls <= 4, "the first attempt, and all that came later"
    home.away = True
    box.put([(1, 0.5)])
    assert not box.flush()
    assert box.failures.keys() == {"watch"}, "the file, which went with its last batch, is not missed"


def test_a_folder_that_is_removed_loses_what_was_there_alone(tmp_path: Path) -> None:
    home = Home(away=True)
    box = Box(home, tmp_path / "s")
    box.serve(30, ids="a")
    box.flush()  # those that ended are on disk alone now
    box.serve(7, ids="b")
    box.flush()
    (path,) = files(tmp_path)
    alone = len(box._spool)  # type: ignore[arg-type]
    for one in path.parent.iterdir():
        one.unlink()
    path.parent.rmdir()
    path.parent.parent.rmdir()
    box.serve(5)
    box.flush()
    assert box.failures["spool"] == alone
    home.away = False
    assert box.flush()
    assert home.total == 79 - alone


def test_a_file_that_is_removed_costs_no_other_one(tmp_path: Path) -> None:
    other, home = left_behind(tmp_path / "s", sums=100), Home(away=True)
    box = Box(home, tmp_path / "s")
    box.serve(30)
    assert not box.flush()
    (own,) = set(files(tmp_path)) - {other}
    own.unlink()
    assert not box.flush()
    home.away = False
    assert box.flush()
    assert (home.total, box.failures["spool"]) == (130, 1)


def test_two_on_one_folder_leave_each_other_alone_and_a_third_sends_what_they_leave(tmp_path: Path) -> None:
    home = Home(away=True, answers=False)
    boxes = [Box(home, tmp_path / "s") for _ in range(2)]
    for round_ in range(3):
        for one in boxes:
            one.serve(50, ids=str(round_))
            one.flush()
    home.away = False
    for one in boxes:
        one.flush()  # counted, and not answered
    assert sum(one.drop() for one in boxes) == 0
    home.answers = True
    third = Box(home, tmp_path / "s")
    assert third.flush()
    assert (home.total, third.failures, files(tmp_path)) == (600, {}, [])
    assert not files(tmp_path, "*.lock")


def test_names_are_of_one_sender_and_their_numbers_rise(tmp_path: Path) -> None:
    home = Home()
    box = Box(home, tmp_path / "s")
    for _ in range(3):
        box.serve(10, ids="a")
        assert box.flush()
    senders, numbers = zip(*(name.split("-") for name in home.counted), strict=True)
    assert (len(set(senders)), numbers) == (1, ("1", "2", "3", "4", "5", "6"))
    box.after_fork()
    box.serve(1)
    assert box.flush()
    assert list(home.counted)[-1].split("-") == [list(home.counted)[-1].split("-")[0], "1"]
    assert list(home.counted)[-1].split("-")[0] != senders[0]
