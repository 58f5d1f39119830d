"""A label that is a text: the name of a class, the digits of an id, and refused where it may be two."""

from __future__ import annotations

import pytest

from calib_serve.core.errors import Refused
from calib_serve.receipts.classes import Classes

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


def test_a_whole_number_is_an_id_however_it_is_written() -> None:
    classes = Classes(3, ("a", "b", "c"))
    assert found(classes, 1.0, "1.0", "2.", "2.000", 1.5, "1.5", float("nan"), float("inf"), "1e0") == [
        *(1, 1, 2, 2),
        *["bad_label"] * 5,
    ]
    assert found(classes, 1.0, "1.0", by="name") == ["bad_label"] * 2
    assert found(Classes.of_labels(2), 1.0, "1.0", 0.0, 2.0) == [1, 1, 0, "bad_label"]


def test_a_name_that_is_written_like_a_float_is_still_one_class_or_refused() -> None:
    # As pandas writes the classes "1", "2" and "3" where one label is missing.
    assert found(Classes(3, SHIFTED), "1.0", "3.0", "0.0") == ["bad_label", 2, 0]
    assert found(Classes(3, SHIFTED), "1.0", "3.0", by="name") == [0, 2]
    versions = Classes(2, ("1.0", "1.1"))
    assert found(versions, "1.0", "1.1", "0") == ["bad_label", 1, 0]
    assert found(versions, "1.0", by="name") + found(versions, "1.0", by="id") == [0, 1]
