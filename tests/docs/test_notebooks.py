"""The notebooks run from top to bottom, and print what is kept in them."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import nbformat
import pytest
from doc_blocks import DOCS, ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import notebooks

BOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
_A_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")


def printed(book: nbformat.NotebookNode) -> str:
    return "\n".join(one.text for cell in book.cells for one in cell.get("outputs", ()) if "text" in one)


def texts(text: str) -> list[str]:
    """What stands between the numbers, however the lines are broken."""
    return [" ".join(part.split()) for part in _A_NUMBER.split(text)]


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in _A_NUMBER.findall(text)]


def strange(kept: str, run: str) -> list[tuple[float, float]]:
    """The numbers that differ by more than another machine's arithmetic explains."""
    pairs = zip(numbers(kept), numbers(run), strict=True)
    return [(one, two) for one, two in pairs if not math.isclose(one, two, rel_tol=0.1, abs_tol=0.01)]


def drawn(book: nbformat.NotebookNode) -> int:
    return sum("image/png" in one.get("data", {}) for cell in book.cells for one in cell.get("outputs", ()))


@pytest.fixture
def kernel(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel in the environment where the package is installed from its wheel."""
    folder = tmp_path / "jupyter" / "kernels" / "wheel"
    folder.mkdir(parents=True)
    argv = [str(installed), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "wheel", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    return "wheel"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.server
@pytest.mark.nightly
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path: Path, kernel: str, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    kept = nbformat.read(path, as_version=4)
    run = notebooks.executed(path, folder, kernel=kernel)
    assert texts(printed(kept)) == texts(printed(run))
    assert not strange(printed(kept), printed(run))
    assert drawn(kept) == drawn(run) > 0
