"""The label column of a table of scores: names or ids, refused where a text may be two classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calib_serve.data import read_labelled
from calib_serve.errors import InputError


def csv(folder: Path, header: str, *labels: str) -> Path:
    path = folder / "z.csv"
    rows = [f"{k}.5,{-k}.25,0.1,{label}\n" for k, label in enumerate(labels)]
    path.write_text(f"{header},label\n" + "".join(rows))
    return path


def test_a_label_is_a_name_or_the_digits_of_an_id(tmp_path: Path) -> None:
    assert read_labelled(csv(tmp_path, "a,b,c", "a", "2", "c", " 1", "1.0")).labels.tolist() == [
        0,
        2,
        2,
        1,
        1,
    ]
    assert read_labelled(csv(tmp_path, "0,1,2", "0", "2", "1")).labels.tolist() == [0, 2, 1]


def test_a_label_that_may_be_two_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'1' is the name of class 0 and the id of class 1"):
        read_labelled(csv(tmp_path, "1,2,3", "1", "2", "1"))
    with pytest.raises(InputError, match="got 'd'"):
        read_labelled(csv(tmp_path, "a,b,c", "a", "d"))
    with pytest.raises(InputError, match="from 0 to 2"):
        read_labelled(csv(tmp_path, "a,b,c", "a", "3"))


def test_numbers_of_parquet_are_ids_and_its_texts_are_names(tmp_path: Path) -> None:
    path = tmp_path / "z.parquet"
    scores = {name: np.arange(3) * 0.1 for name in ("1", "2", "3")}
    pq.write_table(pa.table({**scores, "label": [0, 1, 2]}), path)
    assert read_labelled(path).labels.tolist() == [0, 1, 2]
    pq.write_table(pa.table({**scores, "label": ["3", "0", "3"]}), path)
    assert read_labelled(path).labels.tolist() == [2, 0, 2]
    pq.write_table(pa.table({**scores, "label": ["1", "2", "3"]}), path)
    with pytest.raises(InputError, match="say which is meant"):
        read_labelled(path)


def test_a_parquet_of_scores_that_is_a_bomb_or_names_a_column_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "z.parquet"
    pq.write_table(pa.table({"a": pa.repeat(0.5, 10**7), "label": pa.repeat(1, 10**7)}), path)
    with pytest.raises(InputError, match="as a bomb does"):
        read_labelled(path)
    pq.write_table(pa.Table.from_arrays([pa.array([0.5])] * 3, ["a", "b", "a"]), path)
    with pytest.raises(InputError, match="names a column twice: a"):
        read_labelled(path)
