"""Run the notebooks of docs/notebooks and keep what they print and draw.

    python scripts/notebooks.py [NAME ...]

Each runs in an empty folder, from top to bottom, and stops at an error. Needs the extra dev.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
_SET_UP = "import matplotlib; matplotlib.rcParams['figure.dpi'] = 110"

# torch 2.13 warns of a use of its own when it copies an exported program.
_TORCHS_OWN = "FutureWarning: `isinstance(treespec, LeafSpec)` is deprecated"


def executed(path: Path, folder: Path, *, kernel: str = "python3") -> Any:
    """The notebook with its outputs, run in ``folder``.

    nbclient's CellExecutionError where a cell fails, RuntimeError where one warns.
    """
    book = nbformat.read(path, as_version=4)
    book.cells.insert(0, nbformat.v4.new_code_cell(_SET_UP))
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=300, resources=where, record_timing=False, kernel_name=kernel).execute()
    del book.cells[0]
    for number, cell in enumerate((one for one in book.cells if one.cell_type == "code"), start=1):
        cell.execution_count = number
        cell.outputs = _kept(cell.outputs)
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return book


def _kept(outputs: list[Any]) -> list[Any]:
    """What is printed, as one output, and what is drawn; what libraries log is of one run, and left out."""
    aside = "".join(one.text for one in outputs if one.get("name") == "stderr")
    if "Warning" in aside.replace(_TORCHS_OWN, ""):
        raise RuntimeError(f"a reader would see this warning, so change the cell:\n{aside}")
    printed = "".join(one.text for one in outputs if one.get("name") == "stdout")
    drawn = [one for one in outputs if one.output_type == "display_data"]
    return [*([nbformat.v4.new_output("stream", name="stdout", text=printed)] if printed else []), *drawn]


def main() -> None:
    """Renew those that are named, or all."""
    for name in sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(executed(FOLDER / f"{name}.ipynb", Path(folder)), FOLDER / f"{name}.ipynb")


if __name__ == "__main__":
    main()
