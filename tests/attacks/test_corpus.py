"""Files that broke a program once, or could: used, or refused by an error of ours, at once and in little."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from attack_bytes import endless
from cage import Cage
from openers import READERS
from small_models import temperature

from calib_serve.core.errors import FuseError
from calib_serve.fuse import fuse_onnx

pytestmark = pytest.mark.server

FATES = dict(
    line.rsplit(" ", 1) for line in (Path(__file__).parent / "fates.txt").read_text("utf-8").splitlines()
)
"""What becomes of each: used ("fine") or refused. A file that begins to be refused was taken before."""

OWNED = Path("/tmp/calib-serve-was-owned")


@pytest.mark.parametrize("file", FATES)
def test_an_attack_is_used_or_refused(cage: Cage, file: str) -> None:
    reader, _, name = file.partition("/")
    fate = cage.run(reader, cage.files(reader)[name])
    assert fate.kind == FATES[file], fate.told
    assert not OWNED.exists(), "something was unpickled or evaluated"
    # An error that quotes the whole attack would flood a log.
    assert len(fate.told) <= 320
    if "version" not in name and "format" not in name:  # else for another reason than its own
        assert not re.search(r"newer|of format|of schema|has schema|is not known", fate.told), fate.told


def test_every_file_has_a_fate_and_every_reader_files(cage: Cage) -> None:
    found = {reader: cage.files(reader) for reader in READERS}
    assert set(FATES) == {f"{reader}/{name}" for reader in READERS for name in found[reader]}
    assert min(map(len, found.values())) >= 5


def test_a_graph_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calib_serve.fuse.onnx._parity.PATIENCE", 1.0)
    (tmp_path / "endless.onnx").write_bytes(endless())
    with pytest.raises(FuseError, match="terminate flag"):
        fuse_onnx(tmp_path / "endless.onnx", temperature(), tmp_path / "out.onnx", unproven=True)
    assert not (tmp_path / "out.onnx").exists()
