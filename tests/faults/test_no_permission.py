"""Folders and files that may not be read or written, for root too: said, and nothing is changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from injection import Fault, under
from ledgers import accept, make_label
from small_models import archive, linear_onnx, temperature

from calib_serve import Artifact, Keyring
from calib_serve.data.logits_file import read_logits
from calib_serve.fit.checkpoint import Checkpoints
from calib_serve.fuse.onnx.graph import fuse_onnx
from calib_serve.fuse.torchserve.archive import read_archive
from calib_serve.serve.properties import read_properties
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.samples import SampleLog


def save_artifact(folder: Path) -> None:
    temperature().save(folder / "artifact")


def save_keys(folder: Path) -> None:
    Keyring.load(folder / "keys.json").rotated().save(folder / "keys.json")


def pack_archive(folder: Path) -> None:
    archive(folder)


def fuse_graph(folder: Path) -> None:
    fuse_onnx(folder / "net.onnx", temperature(), folder / "out.onnx", samples=1)


def save_checkpoint(folder: Path) -> None:
    Checkpoints(folder).save("key", {"x": np.zeros(3)})


def open_ledger(folder: Path) -> None:
    accept(SqliteLedger(folder / "l.db"), [make_label(1)])


def start_samples(folder: Path) -> None:
    SampleLog(folder / "log")


@pytest.mark.parametrize(
    "write",
    [save_artifact, save_keys, pack_archive, fuse_graph, save_checkpoint, open_ledger, start_samples],
)
def test_a_read_only_folder_is_said(write, tmp_path: Path) -> None:
    linear_onnx(tmp_path / "net.onnx")
    Keyring.new().save(tmp_path / "keys.json")
    there = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    tmp_path.chmod(0o500)
    try:
        ended = under(Fault(powerless=True), write, tmp_path)
    finally:
        tmp_path.chmod(0o700)
    assert ended.ours, ended
    assert str(tmp_path) in ended.said
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == there


def load_artifact(folder: Path) -> None:
    Artifact.load(folder / "artifact")


def load_keys(folder: Path) -> None:
    Keyring.load(folder / "keys.json")


def load_archive(folder: Path) -> None:
    read_archive(folder / "digits.mar")


def load_logits(folder: Path) -> None:
    read_logits(folder / "logits.npy")


def load_settings(folder: Path) -> None:
    read_properties(folder / "config.properties")


READERS = {
    "artifact/manifest.yaml": load_artifact,
    "keys.json": load_keys,
    "digits.mar": load_archive,
    "logits.npy": load_logits,
    "config.properties": load_settings,
    "l.db": open_ledger,
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_may_not_be_read_is_said(name: str, tmp_path: Path) -> None:
    archive(tmp_path)
    temperature().save(tmp_path / "artifact")
    Keyring.new().save(tmp_path / "keys.json")
    np.save(tmp_path / "logits.npy", np.zeros((2, 3)))
    (tmp_path / "config.properties").write_text("a=1\n")
    SqliteLedger(tmp_path / "l.db").close()
    (tmp_path / name).chmod(0o000)
    ended = under(Fault(powerless=True), READERS[name], tmp_path)
    assert ended.ours, ended
    assert Path(name).name in ended.said
