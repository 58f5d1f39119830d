"""What pages show is held against what came, and a difference is seen."""

from __future__ import annotations

import json

import pytest
from doc_blocks import unlike, unlike_json

SHOWN = (
    '{"predicted": 7, "confidence": 0.93, "model": "digits", "ok": [{"accepted": true}], "receipt": "AQ..."}'
)


def answer(**other: object) -> str:
    told = {"predicted": 3, "confidence": 0.5, "model": "digits", "ok": [{"accepted": True}], "receipt": "AB"}
    return json.dumps({**told, **other})


def test_other_numbers_and_receipts_are_no_difference() -> None:
    assert unlike_json(SHOWN, answer()) is None
    assert unlike_json(SHOWN, answer(confidence=1)) is None


@pytest.mark.parametrize(
    "other",
    [
        {"model": "letters"},
        {"ok": [{"accepted": False}]},
        {"confidence": 93},
        {"predicted": "3"},
        {"more": 1},
    ],
)
def test_another_text_truth_kind_or_key_is_one(other: dict[str, object]) -> None:
    assert unlike_json(SHOWN, answer(**other)) is not None


def test_a_key_that_no_longer_comes_is_one_and_so_is_another_count() -> None:
    assert unlike_json('{"accepted": 1, "refused": 0}', '{"accepted": 1}') is not None
    assert unlike_json('{"accepted": 1, "refused": 0}', '{"accepted": 1, "refused": 2}') is not None


def test_lines_on_screen_come_in_their_order_with_any_numbers() -> None:
    printed = "ECE 4.3 %\n│ n │ 12 │\nwritten to a\ntoken: " + "x" * 40
    assert unlike(["ECE 5 %", "...", "written to a", f"token: {'y' * 40}"], printed) is None
    assert unlike(["...", "│ n │ 7 │", "..."], printed) is None
    assert unlike(["written to a", "...", "ECE 5 %"], printed) == "ECE 5 %"
    assert unlike(["written to b"], printed) == "written to b"
