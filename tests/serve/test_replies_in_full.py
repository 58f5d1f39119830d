"""Every field of every reply, of predictions made by hand: exactly as a client reads it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from calib_serve import Artifact, LogitMap
from calib_serve.artifact import Abstain, Clause, Contract, PredictionSets
from calib_serve.fuse.mar_options import KEYRING, LABEL_BUDGET, ModelOptions
from calib_serve.receipts.receipt import SignedReceipt, UnwantedReceipt
from calib_serve.reporter.decisions import Decision
from calib_serve.serve.carrying import SaidOfLabels, in_protocol
from calib_serve.serve.classifier import device_of
from calib_serve.serve.decided import NOTHING, Decided, as_dict, decide_rows
from calib_serve.serve.protocols import Message, Tensor
from calib_serve.serve.replies import (
    in_full,
    label_columns,
    of_labels,
    own_columns,
    prediction_columns,
    refusal,
    v2_reply,
)
from calib_serve.serve.results import Failure, LabelsPrediction, Prediction, all_or_none

NAMES = ("ant", "bee", "cat", "dog")
P = np.array([0.2, 0.4, 0.1, 0.3])
OPTIONS = ModelOptions("onnx", "m.onnx", "0" * 64, top=3, probabilities=False)
ONE = Prediction(P, 1, 0.4, np.log(P))
OTHER = Prediction(P[::-1].copy(), 2, 0.45, np.log(P[::-1]))
ARTIFACT = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=4, class_names=NAMES)


def told(
    prediction: Prediction = ONE, names: tuple[str, ...] = NAMES, **options: object
) -> dict[str, object]:
    return in_full(prediction, replace(OPTIONS, **options), names, model="pets", version="3.1")


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


def test_a_receipt_says_no_more_than_whether_its_label_is_not_wanted() -> None:
    wanted = told(replace(ONE, receipt=SignedReceipt("abc")))
    assert wanted["receipt"] == "abc"
    assert "label_wanted" not in wanted
    other = told(replace(ONE, receipt=UnwantedReceipt("abc")))
    assert (other["receipt"], other["label_wanted"]) == ("abc", False)


def test_a_decision_is_in_the_reply_as_it_is() -> None:
    for abstain in (True, False):
        for act in (True, False):
            reply = told(replace(ONE, decided=Decided((3, 1), abstain, act)))
            assert (reply["set"], reply["abstain"], reply["act"]) == (["dog", "bee"], abstain, act)
    assert told(replace(ONE, decided=Decided((3, 1))), names=())["set"] == [3, 1]
    assert told(replace(ONE, decided=Decided(())))["set"] == []
    assert as_dict(NOTHING, NAMES) == {}


# What is decided


def test_rows_are_decided_by_the_artifact_or_by_the_archives_threshold() -> None:
    probs = [P, np.array([0.05, 0.05, 0.7, 0.2])]
    assert decide_rows(ARTIFACT, probs) == [NOTHING, NOTHING]
    assert decide_rows(ARTIFACT, []) == []
    # At the threshold there is an answer.
    assert decide_rows(ARTIFACT, probs, abstain_below=0.5) == [Decided(None, True), Decided(None, False)]
    assert decide_rows(ARTIFACT, probs, abstain_below=0.4) == [Decided(None, False), Decided(None, False)]
    own = replace(ARTIFACT, abstain=Abstain(0.75, risk=0.05))
    assert [one.abstain for one in decide_rows(own, probs, abstain_below=0.1)] == [True, True]
    # LAC: classes of 1 - p at most 0.75, likeliest first.
    sets = replace(ARTIFACT, sets=PredictionSets(np.array(0.75), coverage=0.9))
    assert [one.in_set for one in decide_rows(sets, probs)] == [(1, 3), (2,)]
    assert [one.abstain for one in decide_rows(sets, probs)] == [None, None]
    even = np.array([0.3, 0.4, 0.3, 0.0])
    assert decide_rows(sets, [even])[0].in_set == (1, 0, 2)


def test_rows_may_be_acted_on_by_confidence_class_and_segment() -> None:
    clauses = (Clause("act", 0.9, above=0.45), Clause("act", 0.95, above=0.8, predicted=1))
    nord = Clause("act", 0.99, above=0.72, segment="nord")
    acting = replace(ARTIFACT, contract=Contract((*clauses, nord)))
    probs = [
        np.array([0.5, 0.3, 0.1, 0.1]),
        np.array([0.2, 0.6, 0.1, 0.1]),
        np.array([0.1, 0.1, 0.1, 0.7]),
        P,
    ]
    assert [one.act for one in decide_rows(acting, probs)] == [True, False, True, False]
    assert [one.act for one in decide_rows(acting, probs, segments="nord")] == [False] * 4
    assert [one.act for one in decide_rows(acting, probs, segments=["", "", "nord", ""])] == [
        True, False, False, False,
    ]  # fmt: skip
    silent = replace(ARTIFACT, contract=Contract((Clause("calibration", 0.05),)))
    assert decide_rows(silent, probs)[0].act is None


# Several labels


def labels(*receipts: SignedReceipt | None) -> LabelsPrediction:
    decided = [Decision(k, k == 1, 0.9 - k / 10, receipt) for k, receipt in enumerate(receipts)]
    return LabelsPrediction(P, (1, 3), decided, np.log(P))


def test_a_multi_label_reply_lists_labels_by_id_and_by_name() -> None:
    assert of_labels(labels(None), OPTIONS, NAMES, model="pets", version="3") == {
        "predicted": [1, 3], "labels": ["bee", "dog"], "model": "pets", "version": "3", "top": told()["top"],
    }  # fmt: skip
    bare = of_labels(labels(None), replace(OPTIONS, top=0, probabilities=True), (), model="m", version="v")
    assert bare == {"predicted": [1, 3], "model": "m", "version": "v", "probabilities": [0.2, 0.4, 0.1, 0.3]}
    every = replace(OPTIONS, top=0, probabilities=True)
    named = of_labels(labels(None), every, NAMES, model="m", version="v")
    assert named["probabilities"] == {"ant": 0.2, "bee": 0.4, "cat": 0.1, "dog": 0.3}
    twice = of_labels(labels(None), every, ("ant", "ant", "cat", "dog"), model="m", version="v")
    assert twice["probabilities"] == [0.2, 0.4, 0.1, 0.3]  # two of one name would be one entry
    assert twice["labels"] == ["ant", "dog"]


def test_a_multi_label_reply_has_receipts_where_one_is_signed() -> None:
    given = labels(SignedReceipt("a"), UnwantedReceipt("b"), None)
    reply = of_labels(given, OPTIONS, NAMES, model="m", version="v")
    assert reply["receipts"] == [
        {"label": "ant", "predicted": False, "confidence": 0.9, "receipt": "a"},
        {"label": "bee", "predicted": True, "confidence": 0.8, "receipt": "b", "label_wanted": False},
        {"label": "cat", "predicted": False, "confidence": 0.7},
    ]
    assert "receipts" not in of_labels(labels(None, None), OPTIONS, NAMES, model="m", version="v")


def test_labels_go_beside_the_predictions_of_each_protocol() -> None:
    row = SaidOfLabels(
        [Decision(0, True, 0.9, SignedReceipt("a")), Decision(1, False, 0.8, None)], ("x", "y")
    )
    each = [
        {"label": "x", "predicted": True, "confidence": 0.9, "receipt": "a"},
        {"label": "y", "predicted": False, "confidence": 0.8},
    ]
    v1 = in_protocol({"predictions": [[1]]}, Message("v1", {}, {}), [row])
    assert v1 == {"predictions": [[1]], "labels": [each]}
    outputs = {"outputs": [{"name": "z", "data": [1]}]}
    (v2,) = in_protocol(outputs, Message("v2", {}, {}), [row])["outputs"]
    assert json.loads(v2["parameters"]["labels"]) == each
    _, *tensors = in_protocol(outputs, Message("v2", {}, {}, grpc=True), [row])["outputs"]
    assert {one["name"]: (one["shape"], one["data"]) for one in tensors} == {
        "confidence": ([1, 2], [0.9, 0.8]),
        "receipt_label": ([1, 2], [0, 1]),
    }


# Tensors of the Open Inference Protocol


def plain(column: Tensor) -> tuple[str, str, list[object]]:
    values = column.values if isinstance(column.values, list) else column.values.tolist()
    return column.name, column.datatype, values


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (KEYRING, LABEL_BUDGET):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_columns_have_a_row_for_each_prediction(bare: pytest.MonkeyPatch) -> None:
    contract = Contract((Clause("act", 0.9, above=0.42),))
    sets = PredictionSets(np.array(0.75), coverage=0.9)
    full = replace(ARTIFACT, sets=sets, abstain=Abstain(0.42, risk=0.05), contract=contract)
    rows = [
        replace(ONE, decided=Decided((1, 3), True, False), receipt=SignedReceipt("r0")),
        replace(OTHER, decided=Decided((2,), False, True), receipt=UnwantedReceipt("r1")),
        replace(OTHER, decided=Decided((), True, True)),
    ]
    made = prediction_columns(replace(OPTIONS, probabilities=True), full)
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
    bare.setenv(KEYRING, "keys.json")
    made = prediction_columns(OPTIONS, ARTIFACT)
    assert [*made] == ["predicted", "confidence", "label", "receipt"]
    assert plain(made["receipt"](rows)) == ("receipt", "BYTES", ["r0", "r1", ""])
    bare.setenv(LABEL_BUDGET, "0.1")
    made = prediction_columns(OPTIONS, ARTIFACT)
    assert plain(made["label_wanted"](rows)) == ("label_wanted", "BOOL", [True, False, False])


def test_columns_that_say_nothing_are_left_out(bare: pytest.MonkeyPatch) -> None:
    unnamed = replace(ARTIFACT, class_names=())
    assert [*prediction_columns(OPTIONS, unnamed)] == ["predicted", "confidence"]
    assert [*prediction_columns(replace(OPTIONS, abstain_below=0.0), unnamed)][2:] == ["abstain"]
    silent = replace(unnamed, contract=Contract((Clause("calibration", 0.05),)))
    assert "act" not in prediction_columns(OPTIONS, silent)
    bare.setenv(LABEL_BUDGET, "0.1")  # without a keyring there are no receipts
    assert [*prediction_columns(OPTIONS, unnamed)] == ["predicted", "confidence"]
    assert [*label_columns(OPTIONS, unnamed)] == ["predicted"]


def test_columns_of_labels_have_a_number_for_each_label(bare: pytest.MonkeyPatch) -> None:
    rows = [labels(SignedReceipt("a"), UnwantedReceipt("b")), labels(None, SignedReceipt("d"))]
    options = replace(OPTIONS, probabilities=True, threshold=0.3)
    made = label_columns(options, ARTIFACT)
    assert {name: plain(make(rows))[1:] for name, make in made.items()} == {
        "predicted": ("BOOL", [[False, True, False, True]] * 2),
        "probabilities": ("FP64", [P.tolist()] * 2),
    }
    bare.setenv(KEYRING, "keys.json")
    made = label_columns(OPTIONS, ARTIFACT)
    assert {name: plain(make(rows)) for name, make in made.items() if name != "predicted"} == {
        "receipt": ("receipt", "BYTES", [["a", "b"], ["", "d"]]),
        "receipt_label": ("receipt_label", "INT64", [[0, 1], [0, 1]]),
        "confidence": ("confidence", "FP64", [[0.9, 0.8], [0.9, 0.8]]),
    }
    assert made["receipt"](rows).values.dtype == object  # type: ignore[union-attr]
    assert made["confidence"](rows).values.dtype == np.float64  # type: ignore[union-attr]
    bare.setenv(LABEL_BUDGET, "0.1")
    made = label_columns(OPTIONS, ARTIFACT)
    assert plain(made["label_wanted"](rows)) == ("label_wanted", "BOOL", [[True, False], [False, True]])


def test_replies_of_a_handler_of_its_own_go_as_text(bare: pytest.MonkeyPatch) -> None:
    made = own_columns(lambda one: f"<{one.predicted}>", multilabel=False)
    assert plain(made["reply"]([ONE, OTHER])) == ("reply", "BYTES", ["<1>", "<2>"])
    assert [*made] == ["reply"]
    bare.setenv(KEYRING, "keys.json")
    assert [*own_columns(str, multilabel=False)] == ["reply", "receipt"]
    assert [*own_columns(str, multilabel=True)] == ["reply", "receipt", "receipt_label", "confidence"]


def test_tensors_go_flat_with_their_shape() -> None:
    asked = Message("v2", {}, {}, id="7")
    outputs = [
        Tensor("probabilities", "FP64", np.array([[0.1, 0.9], [0.5, 0.5]])),
        Tensor("label", "BYTES", ["a", "b"])
    ]  # fmt: skip
    assert v2_reply(asked, outputs, model="pets", version="3") == {
        "id": "7", "model_name": "pets", "model_version": "3",
        "outputs": [
            {"name": "probabilities", "datatype": "FP64", "shape": [2, 2], "data": [0.1, 0.9, 0.5, 0.5]},
            {"name": "label", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]},
        ],
    }  # fmt: skip


def test_a_refusal_is_said_as_its_protocol_says_it() -> None:
    def refused(form: str, *, grpc: bool = False) -> dict[str, object]:
        message = Message(form, {}, {}, id="7", grpc=grpc)  # type: ignore[arg-type]
        return refusal(message, 400, "too short", model="pets", version="3")

    assert refused("plain") == {"code": 400, "message": "too short"}
    assert refused("v1") == refused("v2") == {"error": "too short"}
    assert refused("v2", grpc=True) == {
        "id": "7", "model_name": "pets", "model_version": "3",
        "outputs": [
            {"name": "error", "datatype": "BYTES", "shape": [1], "data": ["too short"]},
            {"name": "code", "datatype": "INT32", "shape": [1], "data": [400]},
        ],
    }  # fmt: skip


# Where it runs, and what fails


def test_a_request_of_several_fails_for_what_the_client_can_mend_first() -> None:
    good: list[object] = [1, 2]
    assert all_or_none(good) == good
    rows = [1, Failure(500, "no"), Failure(400, "b"), Failure(400, "a")]
    assert all_or_none(rows) == [Failure(400, "instance 2: b")]
    assert all_or_none([1, Failure(503, "no")]) == [Failure(503, "instance 1: no")]


@pytest.mark.parametrize(
    ("gpu", "there", "device"),
    [
        (None, True, "cpu"), (0, True, "cuda:0"), (3, True, "cuda:3"), ("1", True, "cuda:1"),
        (3, False, "cpu"),
    ],
)  # fmt: skip
def test_a_worker_runs_on_the_gpu_that_it_was_given(
    gpu: object, there: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)

    class Context:
        system_properties = {} if gpu is None else {"gpu_id": gpu}

    assert device_of(Context()) == device
