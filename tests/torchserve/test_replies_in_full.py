"""Every field of every reply, of predictions made by hand: exactly as a client reads it."""

from __future__ import annotations

from dataclasses import replace

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
from calib_serve.torchserve._replies import columns, full_reply
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
    bare.setenv(KEYRING, "keys.json")
    made = columns(OPTIONS, ARTIFACT)
    assert [*made] == ["predicted", "confidence", "label", "receipt"]
    assert plain(made["receipt"](rows)) == ("receipt", "BYTES", ["r0", "r1", ""])
    bare.setenv(LABEL_BUDGET, "0.1")
    made = columns(OPTIONS, ARTIFACT)
    assert plain(made["label_wanted"](rows)) == ("label_wanted", "BOOL", [True, False, False])
