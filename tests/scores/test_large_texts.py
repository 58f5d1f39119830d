"""Large texts, which pyarrow reads, give what small ones do: the same columns, and the same refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calib_serve import Scores
from calib_serve.core.errors import CalibServeError
from calib_serve.scores import files

pytest.importorskip("pyarrow")
ROWS = "".join(f"0.{i},0.{9 - i},{i % 2}\n" for i in range(1, 9))
HEADER = "prob_a,prob_b,label\n"
TEXTS = {
    "plain": HEADER + ROWS,
    "a byte order mark": "\ufeff" + HEADER + ROWS,
    "CRLF": (HEADER + ROWS).replace("\n", "\r\n"),
    "empty lines": HEADER + ROWS.replace("\n", "\n\n"),
    "quotes": HEADER + ROWS.replace("0.1,", '"0.1",'),
    "blanks around numbers": HEADER + ROWS.replace("0.1,", " 0.1 ,"),
    "names of labels with commas and lines": HEADER + '0.2,0.8,"a, ""b"""\n0.7,0.3,"a\nb"\n',
    "a quote inside": HEADER + '0.2,0.8,a"b\n0.7,0.3,b\n',
    "labels called NA, null and nan": HEADER + "0.2,0.8,NA\n0.7,0.3,null\n0.7,0.3,nan\n",
    "a missing label": HEADER + ROWS + "0.2,0.8,\n",
    "a missing score": HEADER + ROWS + ",0.8,1\n",
    "NaN": HEADER + ROWS + "nan,0.8,1\n",
    "NA": HEADER + ROWS + "NA,0.8,1\n",
    "infinity": HEADER + ROWS + "inf,0.8,1\n",
    "a text": HEADER + ROWS + "high,0.8,1\n",
    "underscores in a number": HEADER + ROWS + "0.1_0,0.9,1\n",
    "hexadecimal": HEADER + ROWS + "0x1,0.0,1\n",
    "a cell too few": HEADER + ROWS + "0.2,0.8\n",
    "a cell too many": HEADER + ROWS + "0.2,0.8,1,1\n",
    "row names without a name": HEADER + "r1,0.2,0.8,1\nr2,0.7,0.3,0\n",
    "a name twice": "prob_a,prob_a,label\n" + ROWS,
    "no rows": HEADER,
    "columns left out": "age,prob_a,prob_b,label\nx,0.2,0.8,1\ny,0.7,0.3,0\n",
}


def read(path: Path) -> tuple[object, ...]:
    try:
        found = Scores.read(str(path))
    except CalibServeError as error:
        return type(error), str(error)
    return found.probs[:].tobytes(), found.labelled().tobytes(), found.class_names, found.remarks


@pytest.mark.parametrize("name", TEXTS)
def test_a_large_text_is_read_as_a_small_one(name: str, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "scores.csv"
    path.write_bytes(TEXTS[name].encode())
    small = read(path)
    monkeypatch.setattr(files, "_LARGE", 0)
    assert read(path) == small


def test_pyarrow_reads_what_is_plain(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(TEXTS["plain"])
    names = HEADER.strip().split(",")
    columns = files._read_fast(path, names, files.roles_of(names, files.Asked()))
    assert columns is not None
    assert columns["prob_a"].tolist() == [i / 10 for i in range(1, 9)]
    assert np.array_equal(columns["label"], [str(i % 2) for i in range(1, 9)])
