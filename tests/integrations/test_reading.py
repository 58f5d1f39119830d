"""Labels as files have them: each row is read right, or named with its number and why it is none."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib_serve.core.errors import InputError
from calib_serve.core.options.label import LabelColumns
from calib_serve.integrations.collect.reading import USUAL, read_label_rows

ORDERS = LabelColumns(id_column="order_id", label_column="outcome")


def read(path: Path, columns: LabelColumns = USUAL) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """What is sent, and the place and the reason of what is not."""
    rows = list(read_label_rows(path, columns))
    dead = [(one.where.removeprefix(f"{path.parent}/"), one.reason) for row in rows for one in row.dead]
    return [one for row in rows for one in row.labels], dead


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes texts or bytes as a file."""

    def write(content: str | bytes, name: str = "l.csv") -> Path:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / name

    return write


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
def test_a_table_of_pandas_with_a_gap_keeps_all_rows_but_the_one_without_a_label(
    form: str, tmp_path: Path
) -> None:
    table = pd.DataFrame({"order_id": list("abcd"), "outcome": [1, 1, np.nan, 2], "note": "x"})
    path = tmp_path / f"l.{form}"
    if form == "csv":
        table.to_csv(path)
    elif form == "parquet":
        table.to_parquet(path)
    else:
        table.to_json(path, orient="records", lines=True)
    sent, dead = read(path, ORDERS)
    assert [(one["id"], float(one["label"])) for one in sent] == [("a", 1), ("b", 1), ("d", 2)]
    assert dead == [(f"l.{form} {'line' if form == 'jsonl' else 'row'} 3", "bad_label")]


def test_whole_numbers_of_a_database_are_ids_and_classes_and_no_digit_is_lost(tmp_path: Path) -> None:
    big = 2**53 + 1
    table = {
        "order_id": pa.array([Decimal(7), Decimal(big)], pa.decimal128(38, 0)),
        "outcome": pa.array([2.0, 1.0]),
    }
    pq.write_table(pa.table(table), tmp_path / "l.parquet")
    assert read(tmp_path / "l.parquet", ORDERS)[0] == [
        {"id": "7", "label": 2},
        {"id": str(big), "label": 1},
    ]
    floats = {"order_id": pa.array([17.0, float(2**60), 1.5]), "outcome": pa.array([1, 1, 1])}
    pq.write_table(pa.table(floats), tmp_path / "f.parquet")
    sent, dead = read(tmp_path / "f.parquet", ORDERS)
    assert sent == [{"id": "17", "label": 1}]
    assert dead == [("f.parquet row 2", "malformed"), ("f.parquet row 3", "malformed")]


@pytest.mark.parametrize("wrong", [np.inf, 1.5, Decimal("0.5"), b"\xff", [1], {"a": 1}, pd.Timestamp(0)])
def test_what_can_be_no_class_is_named_and_the_next_row_is_read(wrong: Any, tmp_path: Path) -> None:
    rows = [{"id": "a", "label": wrong}, {"id": "b", "label": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "l.parquet")
    sent, dead = read(tmp_path / "l.parquet")
    assert sent == []
    assert [where for where, _ in dead] == ["l.parquet row 1", "l.parquet row 2"]


def test_an_id_is_a_text_as_it_was_written(write: Callable[..., Path]) -> None:
    sent, dead = read(write("id,label\n007,1\n1e5,1\n 7,1\n,1\n"))
    assert [one["id"] for one in sent] == ["007", "1e5", " 7"]
    assert dead == [("l.csv row 4", "malformed")]


def test_by_goes_with_every_label_and_wins_over_a_column_of_that_name(write: Callable[..., Path]) -> None:
    path = write("order_id,outcome,by\na,1,ana\nb,2.0,name\n")
    assert [one.get("by") for one in read(path, ORDERS)[0]] == [None, "name"]
    asked = LabelColumns(id_column="order_id", label_column="outcome", by="id")
    assert [one["by"] for one in read(path, asked)[0]] == ["id", "id"]
    path = write('{"id": 3, "label": 2}\n{"id": 4, "label": true}\n', "l.jsonl")
    assert [one["label"] for one in read(path, LabelColumns(by="name"))[0]] == ["2", "True"]


def test_the_column_that_is_named_is_taken_and_no_other(write: Callable[..., Path]) -> None:
    # A shop's receipt is none of ours.
    path = write("order_id,receipt,label\na,POS-1,1\n")
    assert read(path, LabelColumns(id_column="order_id"))[0] == [{"id": "a", "label": "1"}]
    assert read(write("receipt,id,label\nr,a,1\n,b,2\n"))[0] == [
        {"receipt": "r", "label": "1"},
        {"id": "b", "label": "2"},
    ]
    both = LabelColumns(id_column="model", label_column="label")
    assert read(write("model,label\na,1\n"), both)[0] == [{"id": "a", "label": "1"}]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (LabelColumns(), "no column receipt or id"),
        (ORDERS, "no column order_id, outcome"),
        (LabelColumns(id_column="order_id", label_column="y"), "no column order_id"),
    ],
)
def test_a_table_without_the_columns_is_refused_and_says_which_it_has(
    columns: LabelColumns, told: str, write: Callable[..., Path]
) -> None:
    with pytest.raises(InputError, match=f"{told}.*'orders', 'y'"):
        read_label_rows(write("orders,y\na,1\n"), columns)


def test_one_column_cannot_be_two_things() -> None:
    for wrong in (
        {"id_column": "a", "label_column": "a"},
        {"receipt_column": "r", "id_column": "r"},
        {"label_column": ""},
    ):
        with pytest.raises(InputError, match="columns of their own"):
            LabelColumns(**wrong)


@pytest.mark.parametrize(
    "content",
    [
        "id,label,label\na,1,2\n",
        "id,label\na,1\n".encode("utf-16"),
        b"\x1f\x8b\x08\x00",
        b"PK\x03\x04",
        b"",
        "id;label\na;1\n",
        pytest.param("i" * (1 << 21), id="one line without end"),
    ],
)
def test_what_is_no_table_of_labels_is_refused_before_a_row_is_read(
    content: str | bytes, write: Callable[..., Path]
) -> None:
    with pytest.raises(InputError):
        read_label_rows(write(content))


def test_a_row_of_another_encoding_or_length_is_set_aside_alone(write: Callable[..., Path]) -> None:
    content = (
        "\ufeffid,label,who\n".encode()
        + "a,1,Zoë\n".encode("latin-1")  # in a column that is not read
        + "ü,1,b\n".encode("latin-1")
        + b"c,1\n"
        + b"d,1,x,y\n"
        + b"\n"
        + b'"e",1,"x\ny"\n'
    )
    sent, dead = read(write(content))
    assert [one["id"] for one in sent] == ["a", "e"]
    assert dead == [(f"l.csv row {n}", "malformed") for n in (2, 3, 4)]


def test_a_line_that_is_no_label_is_set_aside_as_it_came_and_the_others_are_read(
    write: Callable[..., Path],
) -> None:
    good = '{"id": "a", "label": 1}'
    lines = [good, "{", "", f'[{good}, 7, {{"id": "b"}}]', "[" * 10_000, '{"id": "\\ud800", "label": 1}']
    content = "\n".join([*lines, '{"id": "c", "label": 1e400}']).encode() + b"\n\x00\xff\n" + good.encode()
    rows = list(read_label_rows(write(content, "l.jsonl")))
    assert [len(row.labels) for row in rows] == [1, 0, 0, 1, 0, 0, 0, 0, 1]
    assert [[one.reason for one in row.dead] for row in rows] == [
        [], ["malformed"], [], ["malformed", "bad_label"], ["malformed"], ["malformed"], ["bad_label"],
        ["malformed"], [],
    ]  # fmt: skip
    letters = [json.loads(letter.json()) for row in rows for letter in row.dead]
    assert letters[0].pop("dead")["message"] == "it is no JSON"
    assert (letters[0], letters[-1]["base64"]) == ({"content": "{\n"}, "AP8K")


def test_a_quote_that_is_not_closed_ends_the_table_and_says_behind_which_row(
    write: Callable[..., Path],
) -> None:
    sent, dead = read(write('id,label\na,1\n"b,1\nc,1\n'))
    assert [one["id"] for one in sent] == ["a"]
    assert dead == [("l.csv behind row 1", "unreadable")]


def test_a_huge_file_is_streamed(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    with path.open("w") as file:
        file.write("id,label\n")
        for i in range(100_000):
            file.write(f"order-{i:060d},1\n")
    size = path.stat().st_size
    tracemalloc.start()
    assert sum(len(row.labels) for row in read_label_rows(path)) == 100_000
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < size / 10


@pytest.mark.parametrize("how", ["rows", "bytes", "texts"])
def test_a_parquet_bomb_is_refused_before_it_is_unpacked(how: str, tmp_path: Path) -> None:
    path = tmp_path / "l.parquet"
    if how == "rows":  # run-length encoded: a hundred million labels in a few kilobytes
        columns = {"receipt": pa.repeat("r", 10**7), "label": pa.repeat(1, 10**7)}
    elif how == "bytes":
        columns = {"receipt": [" " * (70 << 20)], "label": [1]}
    else:  # one long text in every row
        columns = {"receipt": pa.repeat("r" * 100_000, 10_000), "label": pa.repeat(1, 10_000)}
    pq.write_table(pa.table(columns), path, compression="zstd")
    assert path.stat().st_size < 1 << 20
    if how != "texts":
        with pytest.raises(InputError, match="as a bomb does"):
            read_label_rows(path)
        return
    sent, dead = read(path)
    assert (sent, dead) == ([], [("l.parquet behind row 0", "unreadable")])


# --- no row is lost, whatever it holds ------------------------------------------------------------

CELL = st.one_of(
    st.sampled_from(["", "1", "1.0", "nan", "True", "a,b", '"', "\n", "x" * 20, "\x00", "é"]),
    st.text(st.characters(codec="utf-8"), max_size=5),
)


@given(rows=st.lists(st.lists(CELL, min_size=1, max_size=3), max_size=20))
def test_of_each_row_of_a_csv_it_is_said_what_became_of_it(
    rows: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["id", "label"], *rows])
    path = tmp_path_factory.getbasetemp() / "property.csv"
    path.write_text(text.getvalue(), "utf-8", newline="")
    found = list(read_label_rows(path))
    assert len(found) == len(rows)
    for row, cells in zip(found, rows, strict=True):
        assert len(row.labels) + len(row.dead) == 1
        whole = len(cells) == 2 and all(cells)
        assert row.labels == ([{"id": cells[0], "label": cells[1]}] if whole else []), cells


VALUE = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just([1]))


@given(items=st.lists(st.dictionaries(st.sampled_from(["id", "label", "by", "model"]), VALUE), max_size=10))
def test_what_is_sent_of_json_can_be_sent_and_the_rest_can_be_mended(
    items: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "property.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in items))
    for item, row in zip(items, read_label_rows(path), strict=True):
        assert len(row.labels) + len(row.dead) == 1
        for sent in row.labels:
            json.dumps(sent, allow_nan=False).encode()
            assert isinstance(sent["id"], str)
            assert sent["label"] == item["label"]
        for letter in row.dead:
            assert json.loads(letter.json())["dead"]["reason"] in ("malformed", "bad_label")
