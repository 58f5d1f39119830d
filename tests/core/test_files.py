"""A file is written whole or not at all, whatever fails on the way."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from injection import Fault, under

from calib_serve.core.files import write_atomically, write_whole


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_until_the_block_ends_the_old_file_is_there_and_the_new_one_is_hidden(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_text("old")
    with write_atomically(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
        assert partial.parent == tmp_path
        assert partial.name.startswith(".")
        assert partial.suffix == ".pt2"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["model.pt2"]


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(error: type, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")

    def write() -> None:
        with write_atomically(tmp_path / "x") as partial:
            partial.write_text("half")
            raise error("no")

    with pytest.raises(error):
        write()
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_text() == "old"


def test_a_secret_is_nobody_elses_from_its_first_byte_on(tmp_path: Path) -> None:
    with write_atomically(tmp_path / "keys", mode=0o600) as partial:
        partial.write_text("half")
        assert stat.S_IMODE(partial.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600


def write_much(path: Path) -> None:
    write_whole(path, bytes(100_000))


@pytest.mark.server
@pytest.mark.parametrize("room", [0, 99_999])
def test_without_room_the_old_file_stays_and_no_crumbs(room: int, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    ended = under(Fault(no_room_after=room), write_much, tmp_path / "x")
    assert "too large" in ended.said
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_text() == "old"
