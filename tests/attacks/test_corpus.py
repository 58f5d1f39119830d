"""Files that broke a program once, or could: used, or refused by an error of ours, at once and in little."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks_on_graphs import endless
from cage import CORPUS, Cage
from readers import READERS
from small_models import temperature

from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.graph import fuse_onnx

FILES = [
    pytest.param(reader, path, id=f"{reader}/{path.name}")
    for folder in sorted(CORPUS.iterdir())
    for reader in folder.name.split("+")
    for path in sorted(folder.iterdir())
]
FATES = dict(
    line.rsplit(" ", 1) for line in (Path(__file__).parent / "fates.txt").read_text("utf-8").splitlines()
)
"""What becomes of each: used ("fine") or refused. A file that begins to be refused was taken before."""

OWNED = Path("/tmp/calib-serve-was-owned")


@pytest.fixture(scope="module")
def cage() -> Iterator[Cage]:
    with Cage() as cage:
        yield cage


@pytest.mark.parametrize(("reader", "path"), FILES)
def test_an_attack_is_used_or_refused(cage: Cage, reader: str, path: Path) -> None:
    fate = cage.run(reader, path)
    assert fate.kind == FATES[f"{reader}/{path.name}"], fate.told
    assert not OWNED.exists(), "something was unpickled or evaluated"
    # An error that quotes the whole attack would flood a log.
    assert len(fate.told) <= 320


def test_every_reader_has_a_sound_file_and_attacks() -> None:
    for reader in READERS:
        paths = [path for one, path in (p.values for p in FILES) if one == reader]
        assert len(paths) >= 5, reader


def test_every_fate_is_of_a_file() -> None:
    assert set(FATES) == {str(p.id) for p in FILES}
    assert set(FATES.values()) == {"fine", "refused"}


def test_the_cage_tells_what_is_wrong() -> None:
    """So that the tests above can fail."""
    with Cage(patience=3.0) as cage:
        for reader, told in (
            ("raises", "KeyError"), ("swells", "MemoryError"), ("dies", "ended with"), ("sleeps", "it hung"),
        ):  # fmt: skip
            fate = cage.feed(f"broken.{reader}", b"")
            assert fate.kind == "defect"
            assert told in fate.told
        assert cage.feed("properties", b"a=1").kind == "fine", "the next one meets a fresh process"


def test_a_graph_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calib_serve.fuse.onnx.parity.PATIENCE", 1.0)
    (tmp_path / "endless.onnx").write_bytes(endless())
    with pytest.raises(FuseError, match="terminate flag"):
        fuse_onnx(tmp_path / "endless.onnx", temperature(), tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()
