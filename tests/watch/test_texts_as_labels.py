"""A label that is a text: the name of a class, the digits of an id, and refused where it may be two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calib_serve.errors import InputError, Refused
from calib_serve.receipts import Keyring
from calib_serve.watch.intake import Classes, Intake
from calib_serve.watch.ledger import Ledger
from calib_serve.watch.sender import read_labels

RING = Keyring("k", {"k": bytes(32)})
SHIFTED = ("1", "2", "3")  # the class with id 0 is called "1"


def found(classes: Classes, *labels: object, by: str | None = None) -> list[object]:
    """Ids, and the reasons of refusals."""

    def one(label: object) -> object:
        try:
            return classes.find(label, by=by)  # type: ignore[arg-type]
        except Refused as refusal:
            return refusal.reason

    return [one(label) for label in labels]


def test_a_number_is_an_id_and_a_text_a_name() -> None:
    assert found(Classes(3, SHIFTED), 0, 1, 2, 3) == [0, 1, 2, "bad_label"]
    assert found(Classes(3, ("a", "b", "c")), "a", "c", "2", "02", "3", "d", "", "\u00b2", "\u0661") == [
        *(0, 2, 2, 2),
        *["bad_label"] * 5,
    ]
    assert found(Classes(3), "0", "2", "3") == [0, 2, "bad_label"]


def test_a_text_that_may_be_two_classes_is_refused_and_says_what_to_do() -> None:
    classes = Classes(3, SHIFTED)
    assert found(classes, "0", "1", "2", "3") == [0, "bad_label", "bad_label", 2]
    with pytest.raises(Refused, match=r"'1' is the name of class 0 and the id of class 1.*--by"):
        classes.find("1")
    assert found(classes, "1", "2", "3", "0", by="name") == [0, 1, 2, "bad_label"]
    assert found(classes, "1", "2", "3", 1, by="id") == [1, 2, "bad_label", 1]
    assert found(classes, 1, by="name") == ["bad_label"]


def intake(folder: Path, names: Sequence[str]) -> Intake:
    models = {("m", "1"): Classes(len(names), tuple(names))}
    return Intake(RING, Ledger(folder / "l.db"), models=models)


def receipts(count: int, predicted: int = 0) -> list[str]:
    return [RING.sign(model="m", version="1", predicted=predicted, confidence=0.9) for _ in range(count)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("receipt,label,label\nr,1,2\n", "names a column twice: label"),
        ("receipt,label\nr,crane, a bird\n", "row 1 of .* has 3 of 2 cells"),
        ("receipt,class\nr,1\n", "needs columns 'receipt' and 'label'"),
    ],
)
def test_a_table_that_would_lose_a_column_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(InputError, match=told):
        list(read_labels(tmp_path / "l.csv"))


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
    with pytest.raises(InputError, match=r"as a bomb does|a text of more than"):
        list(read_labels(path))
