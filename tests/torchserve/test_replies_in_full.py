"""Every field of every reply, of predictions made by hand: exactly as a client reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calib_serve import Artifact
from calib_serve.artifact import Abstain, Clause, Contract, LogitMap, PredictionSets
from calib_serve.core.oip import Tensor
from calib_serve.receipts.environment import KEYRING, LABEL_BUDGET
from calib_serve.receipts.recorder import LabelChoice
from calib_serve.receipts.wire import SignedReceipt, UnwantedReceipt
from calib_serve.torchserve._predictions import (
    NOTHING,
    LabelsPrediction,
    Prediction,
    RowDecisions,
    row_decisions,
)
from calib_serve.torchserve._replies import (
    columns,
    full_reply,
    in_body,
    in_headers,
    in_protocol,
    refusal,
    v2_reply,
)
from calib_serve.torchserve._requests import Message
from calib_serve.torchserve.mar_options import ModelOptions

NAMES = ("ant", "bee", "cat", "dog")
P = np.array([0.2, 0.4, 0.1, 0.3])
OPTIONS = ModelOptions("onnx", "m.onnx", "0" * 64, top=3, probabilities=False)
ONE = Prediction(P, 1, 0.4, np.log(P))
OTHER = Prediction(P[::-1].copy(), 2, 0.45, np.log(P[::-1]))
ARTIFACT = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=4, class_names=NAMES)

MULTILABEL = replace(ARTIFACT, model={"outputs": "label_logits"})


def told(
    prediction: Prediction = ONE, names: tuple[str, ...] = NAMES, **options: object
) -> dict[str, object]:
    return full_reply(prediction, replace(OPTIONS, **options), names, model="pets", version="3.1")


# Plain replies


def test_a_reply_names_the_class_and_lists_the_likeliest_in_their_order() -> None:
    assert told() == {
        "predicted": 1, "label": "bee", "confidence": 0.4, "model": "pets", "version": "3.1",
        "top": [
            {"class": 1, "label": "bee", "probability": 0.4},
            {"class": 3, "label": "dog", "probability": 0.3},
            {"class": 0, "label": "ant", "probability": 0.2},
        ],
    }  # fmt: skip
    assert told(names=()) == {
        "predicted": 1, "confidence": 0.4, "model": "pets", "version": "3.1",
        "top": [
            {"class": 1, "probability": 0.4}, {"class": 3, "probability": 0.3},
            {"class": 0, "probability": 0.2},
        ],
    }  # fmt: skip


# What is decided


def test_rows_are_decided_by_the_artifact_or_by_the_archives_threshold() -> None:
    probs = [P, np.array([0.05, 0.05, 0.7, 0.2])]
    assert row_decisions(ARTIFACT, probs) == [NOTHING, NOTHING]
    assert row_decisions(ARTIFACT, []) == []
    # At the threshold there is an answer.
    assert row_decisions(ARTIFACT, probs, abstain_below=0.5) == [
        RowDecisions(None, True),
        RowDecisions(None, False),
    ]
    assert row_decisions(ARTIFACT, probs, abstain_below=0.4) == [
        RowDecisions(None, False),
        RowDecisions(None, False),
    ]
    own = replace(ARTIFACT, abstain=Abstain(0.75, risk=0.05))
    assert [one.abstain for one in row_decisions(own, probs, abstain_below=0.1)] == [True, True]
    # LAC: classes of 1 - p at most 0.75, likeliest first.
    sets = replace(ARTIFACT, sets=PredictionSets(np.array(0.75), coverage=0.9))
    assert [one.in_set for one in row_decisions(sets, probs)] == [(1, 3), (2,)]
    assert [one.abstain for one in row_decisions(sets, probs)] == [None, None]
    even = np.array([0.3, 0.4, 0.3, 0.0])
    assert row_decisions(sets, [even])[0].in_set == (1, 0, 2)


# Several labels


def labels(*receipts: SignedReceipt | None) -> LabelsPrediction:
    choices = [LabelChoice(k, k == 1, 0.9 - k / 10, receipt) for k, receipt in enumerate(receipts)]
    return LabelsPrediction(P, (1, 3), choices, np.log(P))


def test_a_multi_label_reply_lists_labels_by_id_and_by_name() -> None:
    assert full_reply(labels(None), OPTIONS, NAMES, model="pets", version="3") == {
        "predicted": [1, 3], "labels": ["bee", "dog"], "model": "pets", "version": "3", "top": told()["top"],
    }  # fmt: skip
    bare = full_reply(labels(None), replace(OPTIONS, top=0, probabilities=True), (), model="m", version="v")
    assert bare == {"predicted": [1, 3], "model": "m", "version": "v", "probabilities": [0.2, 0.4, 0.1, 0.3]}
    every = replace(OPTIONS, top=0, probabilities=True)
    named = full_reply(labels(None), every, NAMES, model="m", version="v")
    assert named["probabilities"] == {"ant": 0.2, "bee": 0.4, "cat": 0.1, "dog": 0.3}
    twice = full_reply(labels(None), every, ("ant", "ant", "cat", "dog"), model="m", version="v")
    assert twice["probabilities"] == [0.2, 0.4, 0.1, 0.3]  # two of one name would be one entry
    assert twice["labels"] == ["ant", "dog"]
    signed = full_reply(labels(SignedReceipt("r0")), replace(OPTIONS, top=0), (), model="m", version="v")
    receipts = [{"label": 0, "predicted": False, "confidence": 0.9, "receipt": "r0"}]
    assert signed == {"predicted": [1, 3], "model": "m", "version": "v", "receipts": receipts}


# Tensors of the Open Inference Protocol


def plain(column: Tensor) -> tuple[str, str, list[object]]:
    return column.name, column.datatype, column.values.tolist()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (KEYRING, LABEL_BUDGET):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_columns_have_a_row_for_each_prediction(bare: pytest.MonkeyPatch) -> None:
    contract = Contract((Clause(0.9, above=0.42),))
    sets = PredictionSets(np.array(0.75), coverage=0.9)
    full = replace(ARTIFACT, sets=sets, abstain=Abstain(0.42, risk=0.05), contract=contract)
    rows = [
        replace(ONE, decisions=RowDecisions((1, 3), True, False), receipt=SignedReceipt("r0")),
        replace(OTHER, decisions=RowDecisions((2,), False, True), receipt=UnwantedReceipt("r1")),
        replace(OTHER, decisions=RowDecisions((), True, True)),
    ]
    made = columns(replace(OPTIONS, probabilities=True), full)
    expected = {
        "predicted": ("INT64", [1, 2, 2]),
        "confidence": ("FP64", [0.4, 0.45, 0.45]),
        "label": ("BYTES", ["bee", "cat", "cat"]),
        "probabilities": ("FP64", [P.tolist(), P[::-1].tolist(), P[::-1].tolist()]),
        "set": ("BOOL", [[False, True, False, True], [False, False, True, False], [False] * 4]),
        "abstain": ("BOOL", [True, False, True]),
        "act": ("BOOL", [False, True, True]),
    }
    assert {name: plain(make(rows)) for name, make in made.items()} == {
        name: (name, *column) for name, column in expected.items()
    }
    assert [*columns(replace(OPTIONS, abstain_below=0.5), ARTIFACT)][-1] == "abstain"
    bare.setenv(KEYRING, "keys.json")
    made = columns(OPTIONS, ARTIFACT)
    assert [*made] == ["predicted", "confidence", "label", "receipt"]
    assert plain(made["receipt"](rows)) == ("receipt", "BYTES", ["r0", "r1", ""])
    bare.setenv(LABEL_BUDGET, "0.1")
    made = columns(OPTIONS, ARTIFACT)
    assert plain(made["label_wanted"](rows)) == ("label_wanted", "BOOL", [True, False, False])


def test_columns_of_labels_have_a_value_for_each_label(bare: pytest.MonkeyPatch) -> None:
    rows = [labels(SignedReceipt("r0"), UnwantedReceipt("r1")), labels(None, SignedReceipt("r3"))]
    made = columns(replace(OPTIONS, outputs="label_logits", threshold=0.3), MULTILABEL)
    assert {name: plain(make(rows)) for name, make in made.items()} == {
        "predicted": ("predicted", "BOOL", [[False, True, False, True]] * 2)
    }
    bare.setenv(KEYRING, "keys.json")
    bare.setenv(LABEL_BUDGET, "0.1")
    made = columns(replace(OPTIONS, outputs="label_logits"), MULTILABEL)
    assert {name: plain(make(rows))[1:] for name, make in made.items()} == {
        "predicted": ("BOOL", [[False] * 4] * 2),
        "receipt": ("BYTES", [["r0", "r1"], ["", "r3"]]),
        "receipt_label": ("INT64", [[0, 1]] * 2),
        "confidence": ("FP64", [[0.9, 0.8]] * 2),
        "label_wanted": ("BOOL", [[True, False], [False, True]]),
    }


def test_a_refusal_has_the_form_of_its_request() -> None:
    who = {"model": "pets", "version": "3"}
    for form, wanted in (("plain", {"code": 400, "message": "no"}), ("v1", {"error": "no"})):
        assert refusal(Message(form, None, {}), 400, "no", **who) == wanted
    assert refusal(Message("v2", None, {}, "7"), 400, "no", **who) == {"error": "no"}
    over_grpc = refusal(Message("v2", None, {}, "7", grpc=True), 400, "no", **who)
    assert over_grpc == {
        "id": "7", "model_name": "pets", "model_version": "3",
        "outputs": [
            {"name": "error", "datatype": "BYTES", "shape": [1], "data": ["no"]},
            {"name": "code", "datatype": "INT32", "shape": [1], "data": [400]},
        ],
    }  # fmt: skip
    assert v2_reply(Message("v2", None, {}, "8"), [], **who) == {**over_grpc, "id": "8", "outputs": []}


# Beside the replies of another handler


ROWS = [
    replace(ONE, decisions=RowDecisions((1, 3), True, False, "wait"), receipt=SignedReceipt("r0")),
    replace(OTHER, decisions=RowDecisions((2,), False, True, "go"), receipt=UnwantedReceipt("r1")),
]
FACTS: list[dict[str, Any]] = [
    {"confidence": 0.4, "set": ["bee", "dog"], "abstain": True, "act": False, "decision": "wait",
     "receipt": "r0"},
    {"confidence": 0.45, "set": ["cat"], "abstain": False, "act": True, "decision": "go", "receipt": "r1",
     "label_wanted": False},
]  # fmt: skip
CHOICES = labels(SignedReceipt("r0"), UnwantedReceipt("r1"), None)
"""Three labels: of the last none is asked, as it has no receipt."""


def headers(*rows: Prediction | LabelsPrediction) -> dict[str, str]:
    put: dict[str, str] = {}
    assert in_headers(put.__setitem__, rows)
    return {name.removeprefix("x-calib-"): text for name, text in put.items()}


def test_headers_hold_all_rows_in_order() -> None:
    assert headers(ONE) == {"confidence": "0.4"}
    assert headers(ROWS[0]) == {
        "confidence": "0.4", "receipt": "r0", "abstain": "true", "act": "false", "decision": '"wait"',
        "set": "1 3",
    }  # fmt: skip
    assert headers(*ROWS) == {
        "confidence": "0.4, 0.45", "receipt": "r0, r1", "abstain": "true, false", "act": "false, true",
        "decision": '"wait", "go"', "set": "1 3, 2", "label-wanted": "true, false",
    }  # fmt: skip
    assert headers(CHOICES) == {
        "confidence": "0.9, 0.8, 0.7", "label": "0, 1, 2", "receipt": "r0, r1", "label-wanted": "true, false",
    }  # fmt: skip


@pytest.mark.parametrize("more", [0, 1])
def test_sets_that_a_header_does_not_hold_are_left_out_and_said(more: int) -> None:
    put: dict[str, str] = {}
    rows = [replace(ONE, decisions=RowDecisions(tuple(range(n)))) for n in (200, 56 + more)]
    assert in_headers(put.__setitem__, rows) is not bool(more)
    assert put.keys() == {"x-calib-confidence", *(() if more else ("x-calib-set",))}


@pytest.mark.parametrize(
    ("reply", "parsed"),
    [('{"a": 1}', {"a": 1}), (b'{"a": 1}', {"a": 1}), (bytearray(b"\xff"), "\ufffd"), ([1], [1])],
)
def test_a_body_holds_the_reply_and_what_is_said_of_its_row_or_of_each(reply: Any, parsed: Any) -> None:
    assert in_body(reply, ROWS[:1], NAMES) == {"prediction": parsed, **FACTS[0]}
    assert in_body(reply, ROWS, NAMES) == {"prediction": parsed, "instances": FACTS}
    each = [{"label": name, "predicted": k == 1, "confidence": 0.9 - k / 10} for k, name in enumerate("012")]
    each = [{**one, "label": NAMES[k]} for k, one in enumerate(each)]
    each[0]["receipt"], each[1] = "r0", {**each[1], "receipt": "r1", "label_wanted": False}
    assert in_body(reply, [CHOICES], NAMES) == {"prediction": parsed, "labels": each}


def test_kserves_v1_has_lists_of_what_is_said_of_every_row() -> None:
    message = Message("v1", None, {})
    found = in_protocol('{"predictions": [7, 8]}', message, ROWS, NAMES, {})
    assert json.loads(found) == {
        "predictions": [7, 8], "confidences": [0.4, 0.45], "receipts": ["r0", "r1"],
        "sets": [["bee", "dog"], ["cat"]], "abstentions": [True, False], "acts": [False, True],
        "decisions": ["wait", "go"],
    }  # fmt: skip
    found = in_protocol({"predictions": [7, 8]}, message, [ROWS[0], ONE], NAMES, {})
    assert found == {"predictions": [7, 8], "confidences": [0.4, 0.4]}
    many = in_protocol({"predictions": [7]}, message, [CHOICES], (), {})["labels"]
    assert [one["label"] for one in many[0]] == [0, 1, 2]


def test_kserves_v2_has_parameters_and_over_grpc_tensors_as_well() -> None:
    body = {"outputs": [{"name": "a", "parameters": {"own": 1}}, {"name": "b"}]}
    wanted = [
        {"name": "a", "parameters": {"own": 1, **FACTS[0], "set": '["bee", "dog"]'}},
        {"name": "b", "parameters": {**FACTS[1], "set": '["cat"]'}},
    ]
    named = ["predicted", "receipt_label", "label_wanted", "confidence", "receipt", "probabilities", "label"]
    named += ["set", "abstain", "act", "decision"]
    made = {
        name: lambda rows, name=name: Tensor(name, "BYTES", np.array([len(rows)], object)) for name in named
    }
    assert in_protocol(body, Message("v2", None, {}), ROWS, NAMES, made) == {"outputs": wanted}
    found = in_protocol(body, Message("v2", None, {}, grpc=True), ROWS, NAMES, made)
    assert found["outputs"][:2] == wanted
    beside = ["confidence", "receipt", "receipt_label", "label_wanted", "set", "abstain", "act", "decision"]
    assert [(one["name"], one["data"]) for one in found["outputs"][2:]] == [(name, [2]) for name in beside]


@pytest.mark.parametrize("form", ["plain", "v1", "v2"])
@pytest.mark.parametrize(
    "reply", ["fine", b'{"a": 1}', '{"a":1}', [1], {"predictions": [7]}, {"outputs": None}, '{"outputs":[]}']
)
def test_any_other_reply_stays_as_it_is(form: Any, reply: Any) -> None:
    assert in_protocol(reply, Message(form, None, {}), ROWS, NAMES, {}) is reply
