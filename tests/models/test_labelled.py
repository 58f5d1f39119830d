"""Samples as clients send them: requests, texts, and what each label means."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hugging_face import table

from calib_serve.core.errors import InputError
from calib_serve.models.labelled import LabelledRequests, read_requests
from calib_serve.models.labelled_texts import read_texts

KNOWN = (("n01", "cat"), ("n02", "crane"), ("n03", "crane"))


def by_class(folder: Path, **files: int) -> Path:
    """One folder a class, with so many files."""
    for name, n in files.items():
        (folder / name).mkdir(parents=True)
        for i in range(n):
            (folder / name / f"{i}.bin").write_bytes(b"x")
    return folder


def labels_csv(folder: Path, text: str) -> Path:
    """``text`` as labels.csv, and the files a and b beside it."""
    for name in "ab":
        (folder / name).write_text(name)
    (folder / "labels.csv").write_text(text)
    return folder


def test_folders_are_classes_in_the_order_of_imagefolder(tmp_path: Path) -> None:
    found = read_requests(by_class(tmp_path / "d", eel=2, cat=1, bat=0))
    assert found.names == ("bat", "cat", "eel")
    assert [file.parent.name for file in found.files] == ["cat", "eel", "eel"]
    assert found.class_ids(3).tolist() == [1, 2, 2]


def test_splits_are_folders_or_a_column(tmp_path: Path) -> None:
    by_class(tmp_path / "d" / "cal", cat=1, eel=1)
    assert len(read_requests(tmp_path / "d", "cal")) == 2
    with pytest.raises(InputError, match=r"is to hold the files of one class.*--split"):
        read_requests(tmp_path / "d")
    with pytest.raises(InputError, match=r"there is no folder .*val"):
        read_requests(tmp_path / "d", "val")
    (tmp_path / "t").mkdir()
    listed = labels_csv(tmp_path / "t", "file,label,split\na,cat,cal\nb,eel,test\n")
    found = read_requests(listed, "cal")
    assert (found.labels, found.names) == (("cat",), ("cat", "eel")), "a class of another split counts too"
    assert read_requests(listed / "labels.csv", "test").labels == ("eel",)


def test_arrays_are_rows_and_their_names_are_matched(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", inputs=np.eye(3), labels=[0, 1, 1], class_names=["crane", "n01"])
    found = read_requests(tmp_path / "d.npz")
    assert found.rows is not None
    assert found.called(2) == f"row 2 of {tmp_path / 'd.npz'}"
    assert found.class_ids(3, (("n01",), ("x",), ("crane",))).tolist() == [2, 0, 0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("file,label\n../a,1\n", "lies outside"),
        ("file,label\na,1\nc,1\n", "1 files of .* are not there, such as .*/c$"),
        ("file,label\na\n", ": row 1 has 1 of 2 cells"),
        ("file,label,label\na,b,c\n", "names a column twice: label"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        read_requests(labels_csv(tmp_path, text))


def of(*labels: str, names: tuple[str, ...] = ()) -> LabelledRequests:
    files = tuple(Path(f"{i}.png") for i in range(len(labels)))
    return LabelledRequests("data", labels, files, names=names)


@pytest.mark.parametrize(
    ("data", "classes", "known", "told"),
    [
        (of("0", "3"), 3, (), r"1.png: the label '3' is no class of the model: .* 0\.\.2"),
        (of("cat", "dog"), 3, KNOWN, "1.png: the label 'dog' is no class .* called n01, cat"),
        (of("crane"), 3, KNOWN, r"'crane' may be the classes \[1, 2\]"),
        (of("0"), 2, (("1",), ("0",)), r"'0' may be the classes \[0, 1\]"),
        (of("cat", names=("cat", "eel")), 3, (), "2 class names, such as cat, eel, the model has 3"),
        (of("10", names=("0", "1", "10", *"23456789")), 11, (), "whether 10 is the id"),
    ],
    ids=lambda value: "" if not isinstance(value, str) else value[:20],
)
def test_a_label_that_may_be_none_or_two_is_refused(
    data: LabelledRequests, classes: int, known: tuple[tuple[str, ...], ...], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        data.class_ids(classes, known)


def test_labels_of_a_multi_label_model_are_names_or_ids_with_a_semicolon_between(tmp_path: Path) -> None:
    rows = ["file,label", "a.txt,cat; eel", "b.txt,", "c.txt,2", "d.txt,cat;0"]
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(name)
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    found = read_requests(tmp_path)
    known = [("cat",), ("dog",), ("eel",)]
    assert found.label_sets(3, known).tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
    with pytest.raises(InputError, match=r"a.txt: the label 'eel' is no class"):
        found.label_sets(2, known[:2])
    with pytest.raises(InputError, match=r"a.txt: the label 'cat' is no class"):
        found.label_sets(3)


TEXTS = ["a film, odd", 'he said "no"\nand left', "größer ✓"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_the_formats_say_the_same(tmp_path, suffix) -> None:
    path = table(
        tmp_path / f"x{suffix}", TEXTS, [2, 0, 1], split=["cal", "test", "cal"], text_pair=["x", "y", "z"]
    )
    found = read_texts(path, "cal")
    assert found.texts == (TEXTS[0], TEXTS[2])
    assert found.pairs == ("x", "z")
    assert found.labels == ("2", "1")
    with pytest.raises(InputError, match="name one of its splits"):
        read_texts(path)
    with pytest.raises(InputError, match=r"splits are cal, test"):
        read_texts(path, "train")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "", "label": 1}, "text is empty"),
        ({"text": 5, "label": 1}, "must be a text"),
        ({"text": "a\ud800", "label": 1}, "half a character"),
        ({"text": "a", "label": None}, "label is missing"),
        ({"text": "a", "label": True}, "name or id"),
        ({"text": "a", "label": [0, 1]}, "whether they are ids"),
        ({"text": "a", "label": 1, "text_pair": None}, "text_pair is"),
        ({"text": "a", "label": 1, "text_pair": "b"}, "in 1 of 2 rows"),
        ({"text": "a", "label": 1, "split": "cal"}, "name one of its splits"),
        ([1], "a row is an object"),
    ],
)
def test_a_row_that_says_too_little_is_named(tmp_path, row, said) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, [{"text": "fine", "label": "x"}, row])))
    with pytest.raises(InputError, match=said):
        read_texts(path)
