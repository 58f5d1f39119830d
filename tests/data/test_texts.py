"""Tables of texts and labels: read the same from each format, refused where a row says too little."""

from __future__ import annotations

import json

import pytest
from hugging_face import table

from calib_serve.data import read_texts
from calib_serve.errors import InputError

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
