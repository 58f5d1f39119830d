"""The label column of a table of scores: names or ids, refused where a text may be two classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calib_serve.errors import InputError
from calib_serve.scores import Scores


def csv(folder: Path, header: str, *labels: str) -> Path:
    path = folder / "z.csv"
    rows = [f"{k}.5,{-k}.25,0.1,{label}\n" for k, label in enumerate(labels)]
    path.write_text(f"{header},label\n" + "".join(rows))
    return path


def test_a_label_is_a_name_or_the_digits_of_an_id(tmp_path: Path) -> None:
    assert Scores.read(csv(tmp_path, "a,b,c", "a", " c", "b ")).labels.tolist() == [0, 2, 1]
    assert Scores.read(csv(tmp_path, "a,b,c", "2", " 1", "1.0")).labels.tolist() == [2, 1, 1]
    assert Scores.read(csv(tmp_path, "0,1,2", "0", "2", "1")).labels.tolist() == [0, 2, 1]
    assert Scores.read(csv(tmp_path, "2,0,1", "0", "2", "1")).labels.tolist() == [1, 0, 2]
    assert Scores.read(csv(tmp_path, "1,2,3", "1", "2", "1")).labels.tolist() == [0, 1, 0]


def test_a_label_that_is_no_class_or_may_be_two_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no class is called 'd'"):
        Scores.read(csv(tmp_path, "a,b,c", "a", "d"))
    with pytest.raises(InputError, match=r"\[0, 3\)"):
        Scores.read(csv(tmp_path, "a,b,c", "1", "3"))
    with pytest.raises(InputError, match="no class is called '2'"):
        Scores.read(csv(tmp_path, "a,b,c", "a", "2"))
    with pytest.raises(InputError, match="'0' is none of the classes '1', '2', '3'"):
        Scores.read(csv(tmp_path, "1,2,3", "0", "2", "1"))


def test_labels_are_names_where_names_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "z.parquet"
    scores = {name: np.arange(3) * 0.1 for name in ("1", "2", "3")}
    pq.write_table(pa.table({**scores, "label": [1, 2, 3]}), path)
    assert Scores.read(path, outputs="logits").labels.tolist() == [0, 1, 2]
    pq.write_table(pa.table({**scores, "label": ["1", "3", "2"]}), path)
    assert Scores.read(path, outputs="logits").labels.tolist() == [0, 2, 1]
    pq.write_table(pa.table({**scores, "label": [0, 1, 2]}), path)
    with pytest.raises(InputError, match="--class-names"):
        Scores.read(path, outputs="logits")
    assert Scores.read(path, outputs="logits", class_names=[0, 1, 2]).labels.tolist() == [0, 1, 2]


def test_a_parquet_of_scores_that_is_a_bomb_or_names_a_column_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "z.parquet"
    pq.write_table(pa.table({"a": pa.repeat(0.5, 10**7), "label": pa.repeat(1, 10**7)}), path)
    with pytest.raises(InputError, match="as a bomb does"):
        Scores.read(path)
    pq.write_table(pa.Table.from_arrays([pa.array([0.5])] * 3, ["a", "b", "a"]), path)
    with pytest.raises(InputError, match="names a column twice: a"):
        Scores.read(path)
