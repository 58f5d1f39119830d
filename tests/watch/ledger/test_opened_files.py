"""The three files of a SQLite ledger stay those that were opened, and go aside together."""

from __future__ import annotations

from pathlib import Path

import pytest

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger.sqlite_store import Files, quarantine, set_leftovers_aside

pytestmark = pytest.mark.store


@pytest.fixture
def files(tmp_path: Path) -> Files:
    found = Files(tmp_path / "ledger")
    for part in ("", "-wal", "-shm"):
        (tmp_path / f"ledger{part}").write_text(f"the first{part}")
    found.opened()
    return found


def gone(files: Files, *parts: str) -> None:
    for part in parts:
        files.path.with_name(f"ledger{part}").unlink()


def test_what_is_in_the_journal_can_be_saved_where_its_file_alone_is_missing(files: Files) -> None:
    assert not files.journal_only
    gone(files, "-wal")
    assert files.journal_only
    assert "the -wal file of the ledger" in str(files.error())


@pytest.mark.parametrize("parts", [("",), ("-shm",), ("", "-wal"), ("-wal", "-shm")])
def test_else_it_cannot(files: Files, parts: tuple[str, ...]) -> None:
    gone(files, *parts)
    assert not files.journal_only


def test_nor_where_another_file_took_its_place(files: Files) -> None:
    wal = files.path.with_name("ledger-wal")
    wal.rename(wal.with_name("kept"))  # so that the other one is another file indeed
    wal.write_text("another")
    assert not files.journal_only


def test_a_damaged_ledger_and_its_journal_go_aside_together(files: Files) -> None:
    aside = quarantine(files.path, clock=lambda: 5.0)
    assert aside.name == "ledger.damaged-5"
    assert not list(files.path.parent.glob("ledger")) + list(files.path.parent.glob("ledger-*"))
    for part in ("", "-wal", "-shm"):
        assert aside.with_name(aside.name + part).read_text() == f"the first{part}"


def test_a_ledger_that_is_missing_or_another_is_named(files: Files) -> None:
    gone(files, "")
    assert str(files.error()).startswith(f"the ledger {files.path} is missing")


def another(path: Path) -> None:
    path.rename(path.with_name("kept"))  # so that the other one is another file indeed
    path.write_text("another")


@pytest.mark.parametrize("part", ["", "-wal", "-shm"])
def test_a_file_that_was_replaced_or_removed_is_changed(files: Files, part: str) -> None:
    path = files.path.with_name(f"ledger{part}")
    files.check()
    assert not files.changed()
    another(path)
    assert files.changed()
    assert files.changed(part)
    assert [files.changed(other) for other in ("", "-wal", "-shm")].count(True) == 1
    with pytest.raises(LedgerError, match="was replaced"):
        files.check()
    path.unlink()
    assert files.changed()
    assert files.changed(part)
    with pytest.raises(LedgerError, match=r"was removed|is missing"):
        files.check()


def test_each_file_is_told_by_its_name_and_what_became_of_it(files: Files) -> None:
    another(files.path)
    assert str(files.error()).startswith(f"the ledger {files.path} was replaced by another file")
    files.opened()
    another(files.path.with_name("ledger-shm"))
    said = str(files.error())
    assert said.startswith(f"the -shm file of the ledger {files.path} was replaced while in use")
    assert "may be missing in part" in said
    gone(files, "-wal")
    said = str(files.error(saved=True))
    assert said.startswith(f"the -wal file of the ledger {files.path} was removed while in use")
    assert "was saved into the ledger" in said


def test_a_ledger_that_is_replaced_while_it_is_opened_is_refused(files: Files) -> None:
    at_first = Files(files.path)
    another(files.path)
    for _ in range(2):
        with pytest.raises(LedgerError, match="was replaced by another file"):
            at_first.opened()
        assert at_first.changed()


def test_files_that_were_not_there_may_come(tmp_path: Path) -> None:
    files = Files(tmp_path / "ledger")
    (tmp_path / "ledger").write_text("")
    files.opened()
    (tmp_path / "ledger-wal").write_text("")
    assert not files.changed()
    assert not files.journal_only
    files.check()


def test_what_another_ledger_left_goes_aside_under_a_name_of_its_own(files: Files) -> None:
    set_leftovers_aside(files.path, clock=lambda: 5.0)
    assert not files.changed(), "its own journal stays"
    gone(files, "")
    files.path.with_name("ledger.damaged-5-wal").write_text("of before")
    set_leftovers_aside(files.path, clock=lambda: 5.0)
    for part in ("-wal", "-shm"):
        assert files.path.with_name(f"ledger.damaged-5-2{part}").read_text() == f"the first{part}"
    assert sorted(path.name for path in files.path.parent.glob("ledger*")) == [
        "ledger.damaged-5-2-shm", "ledger.damaged-5-2-wal", "ledger.damaged-5-wal",
    ]  # fmt: skip
    set_leftovers_aside(files.path, clock=lambda: 5.0)  # nothing is left
    for i in (3, 4):
        files.path.write_text(f"{i}")
        assert quarantine(files.path, clock=lambda: 5.5).name == f"ledger.damaged-5-{i}"
