"""Which columns are classes is said or proved, and is the same in every run."""

from __future__ import annotations

from typing import Any

import pytest

from calib_serve.core.errors import InputError
from calib_serve.scores import Scores

TABLE: dict[str, Any] = {"owl": [1.0, 2.0], "cat": [2.0, 0.7], "dog": [0.8, -0.3], "animal": ["cat", "dog"]}


def test_a_class_without_a_sample_keeps_its_column() -> None:
    """Labels name two of three columns: the third may be a class that is rare, or none."""
    with pytest.raises(InputError, match="'owl'"):
        Scores.of(TABLE, "animal", outputs="logits")
    said = Scores.of(TABLE, "animal", outputs="logits", columns=["owl", "cat", "dog"])
    assert (said.classes, said.labels.tolist()) == (3, [1, 2])


def test_classes_are_in_the_order_of_their_columns() -> None:
    both = {name: column for name, column in TABLE.items() if name != "owl"}
    assert Scores.of(both, "animal", outputs="logits").class_names == ("cat", "dog")


@pytest.mark.parametrize("labels", [["cat", "dog"], ["cat", "cat"]])
def test_class_names_choose_and_order_the_columns(labels: list[str]) -> None:
    made = Scores.of({**TABLE, "animal": labels}, "animal", outputs="logits", class_names=["dog", "cat"])
    assert made.values.tolist() == [[0.8, 2.0], [-0.3, 0.7]]
    assert made.labels.tolist() == [int(label == "cat") for label in labels]
