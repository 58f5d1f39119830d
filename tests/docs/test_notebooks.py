"""The notebooks run from top to bottom, and print what is kept in them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import nbformat
import pytest
from doc_blocks import DOCS, ROOT, unlike
from sizes import nightly

sys.path.insert(0, str(ROOT / "scripts"))
import docs_notebooks
import notebooks

BOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
QUICK = {"read-a-report", "watch-a-stream"}


def printed(book: nbformat.NotebookNode) -> str:
    return "\n".join(one.text for cell in book.cells for one in cell.get("outputs", ()) if "text" in one)


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
@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[] if p.stem in QUICK else [nightly]) for p in BOOKS]
)
def test_a_notebook_runs_and_prints_what_it_shows(path: Path, kernel: str, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    kept = nbformat.read(path, as_version=4)
    run = notebooks.executed(path, folder, kernel=kernel)
    assert unlike(printed(kept).splitlines(), printed(run)) is None, printed(run)
    assert drawn(kept) == drawn(run) > 0


def test_there_are_five_and_none_holds_a_path_a_warning_or_an_error() -> None:
    assert len(BOOKS) == 5
    for path in BOOKS:
        text = path.read_text("utf-8")
        assert not re.search(r"/(tmp|home|root|work)/|Warning|Traceback|\"stderr\"", text), path.name
        nbformat.validate(nbformat.read(path, as_version=4))


def test_the_page_of_a_notebook_shows_its_code_its_output_and_its_pictures() -> None:
    for path in BOOKS:
        book = json.loads(path.read_text("utf-8"))
        text, pictures = docs_notebooks.page(book, path.stem)
        assert len(pictures) == drawn(nbformat.read(path, as_version=4))
        assert all(picture.startswith(b"\x89PNG") and len(picture) < 200_000 for picture in pictures.values())
        for cell in book["cells"]:
            assert "".join(cell["source"]) in text
