"""Which columns are classes is said or proved, and is the same in every run."""

from __future__ import annotations

import csv
from pathlib import Path
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


def test_a_class_that_is_called_as_a_role_is_one_of_the_classes(tmp_path: Path) -> None:
    """Of a table of languages, id is Indonesian."""
    path = tmp_path / "languages.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(
            [["en", "fr", "id", "label"], [1, 2, 3, "id"], [3, 1, 2, "en"], [0, 4, 1, "fr"]]
        )
    read = Scores.read(path, outputs="logits")
    assert (read.class_names, read.labels.tolist(), read.ids) == (("en", "fr", "id"), [2, 0, 1], None)


@pytest.mark.parametrize("outputs", ["logit", "probability"])
def test_what_is_one_number_a_sample_is_one_column(outputs: str) -> None:
    with pytest.raises(InputError, match="one number a sample"):
        Scores.of([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]], outputs=outputs)


def test_too_few_rows_that_sum_to_one_say_so() -> None:
    with pytest.raises(InputError, match="sum to 1, as so few"):
        Scores.of([[0.7, 0.3]])
    assert Scores.of([[0.7, 0.3]], outputs="probabilities").outputs == "probabilities"
