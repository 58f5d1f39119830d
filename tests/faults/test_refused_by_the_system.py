"""What the system refuses to write or to read: said by an error of ours, and what was there stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from injection import Fault, under
from ledgers import accept, make_label
from small_models import archive, linear_onnx, temperature

from calib_serve import Keyring
from calib_serve.fuse import fuse_onnx
from calib_serve.ledger import Ledger
from calib_serve.receipts.samples import SampleLog

pytestmark = pytest.mark.server

Work = Callable[[Path], object]


def save_artifact(folder: Path) -> None:
    temperature().save(folder / "artifact")


def save_keys(folder: Path) -> None:
    Keyring.new().save(folder / "keys.json")


def pack_archive(folder: Path) -> None:
    archive(folder)


def fuse_graph(folder: Path) -> None:
    fuse_onnx(folder / "net.onnx", temperature(), folder / "fused.onnx", unproven=True)


def open_ledger(folder: Path) -> None:
    ledger = Ledger(folder / "l.db")
    try:
        accept(ledger, [make_label(1)])
    finally:
        ledger.close()


def start_samples(folder: Path) -> None:
    SampleLog(folder / "log")


WRITERS = [save_artifact, save_keys, pack_archive, fuse_graph]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("write", WRITERS)
def test_without_room(write: Work, tmp_path: Path) -> None:
    linear_onnx(tmp_path / "net.onnx")
    write(tmp_path)
    there = contents(tmp_path)
    for n in (0, 1, 50, 90):  # every file written here is longer
        ended = under(Fault(no_room_after=n), write, tmp_path)
        assert ended.ours, ended
        assert "too large" in ended.said or "temporary" in ended.said, ended
        assert contents(tmp_path) == there
    write(tmp_path)  # with room again


@pytest.mark.parametrize("write", [*WRITERS, open_ledger, start_samples])
def test_in_a_folder_that_is_read_only(write: Work, tmp_path: Path) -> None:
    linear_onnx(tmp_path / "net.onnx")
    there = contents(tmp_path)
    tmp_path.chmod(0o500)
    try:
        ended = under(Fault(powerless=True), write, tmp_path)
    finally:
        tmp_path.chmod(0o700)
    assert ended.ours, ended
    assert str(tmp_path) in ended.said
    assert contents(tmp_path) == there
