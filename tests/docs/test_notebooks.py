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
from sizes import nightly

sys.path.insert(0, str(ROOT / "scripts"))
import docs_notebooks
import notebooks

BOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
QUICK = {"watch-a-stream"}
WIDE = 84  # characters of code or text that the site shows without a scrollbar
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
@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[] if p.stem in QUICK else [nightly]) for p in BOOKS]
)
def test_a_notebook_runs_and_prints_what_it_shows(path: Path, kernel: str, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    kept = nbformat.read(path, as_version=4)
    run = notebooks.executed(path, folder, kernel=kernel)
    assert texts(printed(kept)) == texts(printed(run))
    assert not strange(printed(kept), printed(run))
    assert drawn(kept) == drawn(run) > 0


def test_a_number_that_moved_is_seen_and_one_that_is_rounded_is_not() -> None:
    assert texts("ECE  4.3\n[1, 2]") == texts("ECE 1,000 [0.1, 3]") != texts("ECE 4.3 (1, 2)")
    assert strange("ECE 4.3, 0.013", "ECE 5.3, 0.014") == [(4.3, 5.3)]


def test_a_cell_that_warns_stops_the_run_unless_torch_warns_of_itself() -> None:
    def said(text: str) -> list[nbformat.NotebookNode]:
        return [nbformat.v4.new_output("stream", name="stderr", text=text)]

    assert notebooks._kept(said("shop 1.0: calibration drifted")) == []
    assert notebooks._kept(said("FutureWarning: `isinstance(treespec, LeafSpec)` is deprecated, use")) == []
    with pytest.raises(RuntimeError, match="change the cell"):
        notebooks._kept(said("x.py:1: UserWarning: mind"))


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
        assert f"({path.name})" in text, "the notebook can be downloaded"
        assert len(pictures) == drawn(nbformat.read(path, as_version=4))
        assert all(picture.startswith(b"\x89PNG") and len(picture) < 200_000 for picture in pictures.values())
        for cell in book["cells"]:
            assert "".join(cell["source"]) in text


def test_code_and_output_are_no_wider_than_the_page_and_pictures_have_a_text() -> None:
    for path in BOOKS:
        book = nbformat.read(path, as_version=4)
        assert 10 <= len(book.cells) <= 20
        titles = [cell.source for cell in book.cells if re.match("# ", cell.source)]
        assert titles == [book.cells[0].source], "one title, and sections below it"
        for cell in book.cells:
            shown = [one.text for one in cell.get("outputs", ()) if "text" in one]
            shown += [cell.source] if cell.cell_type == "code" else []
            assert max((len(line) for text in shown for line in text.splitlines()), default=0) <= WIDE, (
                cell.id
            )
            if any("image/png" in one.get("data", {}) for one in cell.get("outputs", ())):
                assert len(cell.metadata.alt) > 30, cell.id
