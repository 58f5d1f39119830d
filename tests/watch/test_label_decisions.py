"""A multi-label prediction is L decisions: each is counted, signed, labelled once and sliced like classes."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_watch import RING, talk_to

from calib_serve import Artifact, LogitMap
from calib_serve.errors import InputError
from calib_serve.fuse.mar_options import ModelOptions
from calib_serve.receipts import Keyring
from calib_serve.reporter.decisions import MOST, decisions
from calib_serve.reporter.recorder import Tag
from calib_serve.serve.emit import Emitter
from calib_serve.serve.observer import Observer
from calib_serve.watch.batch import ServedPrediction
from calib_serve.watch.decisions import decide
from calib_serve.watch.http.page import render
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.policy import LabelPolicy
from calib_serve.watch.service import Watch, Watched
from calib_serve.workflows.refit import refit_served

TAGS = ("cat", "dog", "false")
NOW = 1_700_000_000.0


def tags_artifact(names: tuple[str, ...] = TAGS) -> Artifact:
    maps = (LogitMap(np.ones(len(names)), np.zeros(len(names))),)
    return Artifact(
        maps, method="platt", classes=len(names), class_names=names, model={"outputs": "label_logits"}
    )


def watch_tags(folder: Path, *, names: tuple[str, ...] = TAGS, **options: Any) -> Watch:
    clock = options.setdefault("clock", lambda: NOW)
    watched = {("tags", "1"): Watched.of(tags_artifact(names))}
    return Watch(RING, SqliteLedger(folder / "l.db", clock=clock), models=watched, **options)


def observer(sent: list[str], policy: LabelPolicy | None = None, ring: Keyring = RING) -> Observer:
    emitter = Emitter(write=sent.append, interval=3600)
    return Observer(emitter, model="tags", version="1", bins=15, keyring=ring, policy=policy)


def token(label: int, yes: bool, confidence: float = 0.75, **more: Any) -> str:
    facts = {"model": "tags", "version": "1", "time": NOW - 5, **more}
    return RING.sign(predicted=2 * label + yes, confidence=confidence, **facts)


def test_a_decision_has_the_probability_of_what_it_says() -> None:
    probs = np.array([[0.1, 0.5, 0.9]])
    assert [found.tolist() for found in decide(probs)] == [[[0, 3, 5]], [[0.9, 0.5, 0.9]]]
    classes, confidence = decide(probs, threshold=0.05)
    assert classes.tolist() == [[1, 3, 5]]
    assert confidence.tolist() == [[0.1, 0.5, 0.9]]


@pytest.mark.parametrize(
    ("label", "sent", "right"),
    [
        *((0, sent, True) for sent in (1, True, "true", "True", "cat")),
        *((0, sent, False) for sent in (0, False, "false", "not cat")),
        *((2, sent, False) for sent in ("not false", 0, False)),
    ],
)
def test_a_label_is_0_or_1_or_a_truth_or_one_of_the_two_names(
    label: int, sent: object, right: bool, tmp_path: Path
) -> None:
    with watch_tags(tmp_path) as watch:
        (outcome,) = watch.labels([{"receipt": token(label, yes=True), "label": sent}])
        assert outcome.accepted, outcome.message
        sums = watch.ledger.sums()["tags", "1"]
        assert sums["calib_feedback_correct_total"].sum() == right


@pytest.mark.parametrize(
    ("label", "sent"),
    [(0, 2), (0, -1), (0, 1.0), (0, "dog"), (0, None), (0, "yes"), (2, "false"), (7, 1)],
    ids=str,
)
def test_what_may_be_meant_otherwise_is_refused(label: int, sent: object, tmp_path: Path) -> None:
    with watch_tags(tmp_path) as watch:
        (outcome,) = watch.labels([{"receipt": token(label, yes=True), "label": sent}])
        assert outcome.reason == "bad_label"


def test_each_label_counts_once_under_its_own_name(tmp_path: Path) -> None:
    with watch_tags(tmp_path, detector=None, maturity=0.0) as watch, talk_to(watch) as client:
        items = [
            {"model": "tags", "version": "1", "predicted": 2 * k + 1, "confidence": 0.8, "group": "row 1"}
            for k in range(3)
        ]
        receipts = [
            one["receipt"] for one in client.post("/v1/predictions", json={"items": items}).json()["items"]
        ]
        labels = [{"receipt": receipt, "label": bool(k)} for k, receipt in enumerate(receipts)]
        for accepted in (3, 0):
            assert client.post("/v1/labels", json={"items": labels}).json()["accepted"] == accepted
        known = {(key.kind, key.name): s.labels.sum() for key, s in watch.ledger.slices("class").items()}
        assert known == {("class", "1"): 1, ("class", "3"): 1, ("class", "5"): 1}
        page = render(watch, model="tags", version="1", window="all")
    assert all(name in page for name in ("cat", "dog"))
    schema = client.get("/openapi.json").text
    assert "boolean" in schema


def test_logits_and_labels_beyond_the_model_are_refused(tmp_path: Path) -> None:
    with watch_tags(tmp_path) as watch:
        bad = [
            ServedPrediction("tags", "1", 6, 0.9),
            ServedPrediction("tags", "1", 1, 0.9, logits=(0.0, 1.0, 2.0)),
        ]
        assert [one.reason for one in watch.predictions(bad)] == ["malformed"] * 2


def test_of_few_labels_each_has_a_receipt_and_a_row_is_a_group() -> None:
    sent: list[str] = []
    probs = np.array([[0.1, 0.6, 0.9], [0.2, 0.3, 0.4]])
    told = decisions(observer(sent), [*probs], threshold=0.5, tags=[Tag("north"), Tag("", "patient 7")])
    receipts = [[RING.verify(one.receipt) for one in row] for row in told]
    assert [[r.predicted for r in row] for row in receipts] == [[0, 3, 5], [0, 2, 4]]
    assert [[r.inclusion for r in row] for row in receipts] == [[1.0] * 3] * 2
    np.testing.assert_allclose(
        [[r.confidence for r in row] for row in receipts], np.maximum(probs, 1 - probs)
    )
    groups = [{r.group for r in row} for row in receipts]
    assert all(len(group) == 1 for group in groups), "labels of one row depend on one another"
    assert groups[0] != groups[1]
    assert 0 not in groups[0]
    assert {r.segment for r in receipts[0]} == {"north"}


def test_of_many_labels_some_are_drawn_with_a_chance_that_they_carry_and_all_are_counted() -> None:
    sent: list[str] = []
    watching, labels = observer(sent), 400
    probs = np.random.default_rng(0).random((30, labels))
    told = [decisions(watching, [row], threshold=0.5, tags=[])[0] for row in probs]
    assert {len(row) for row in told} == {MOST}
    receipts = [RING.verify(one.receipt) for row in told for one in row]
    assert {r.inclusion for r in receipts} == {MOST / labels}
    assert len(Counter(one.label for row in told for one in row)) > labels / 2, "not always the same ones"
    watching.flush()
    lines = [line for line in "".join(sent).splitlines() if "calib_predictions_total" in line]
    assert sum(float(re.search(r":([0-9.]+)\|", line)[1]) for line in lines) == labels * len(probs), lines[:3]


def test_a_policy_draws_among_receipts_and_both_chances_multiply() -> None:
    told = decisions(observer([], LabelPolicy.uniform(0.5)), [np.full(64, 0.5)], threshold=0.5, tags=[])
    assert {RING.verify(one.receipt).inclusion for one in told[0]} == {0.25}
    wanted = [one.receipt.wanted for one in told[0] if one.receipt]
    assert 0 < sum(wanted) < len(wanted)


def test_weighing_by_the_chance_brings_back_what_all_labels_would_say(tmp_path: Path) -> None:
    # Rows of 200 labels, overconfident by .1: the 32 drawn ones say so.
    rng, watching = np.random.default_rng(1), observer([], ring=RING)
    names = tuple(f"tag {k}" for k in range(200))
    with watch_tags(tmp_path, names=names, detector=None, clock=time.time) as watch:
        items = []
        for _ in range(40):
            p = rng.uniform(0.55, 0.95, 200)
            truth = rng.random(200) < p - 0.1
            for one in decisions(watching, [p], threshold=0.5, tags=[])[0]:
                items.append({"receipt": one.receipt, "label": bool(truth[one.label])})
        assert all(outcome.accepted for outcome in watch.labels(items))
        sums = watch.ledger.sums()["tags", "1"]
    weight = sums["calib_feedback_weight_total"].sum()
    gap = (
        sums["calib_feedback_confidence_total"].sum() - sums["calib_feedback_correct_total"].sum()
    ) / weight
    assert weight == pytest.approx(40 * 200)
    assert gap == pytest.approx(0.1, abs=0.05)


def test_a_refit_on_samples_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no samples are kept .* calib-serve fit"):
        refit_served(tags_artifact().save(tmp_path / "a"), tmp_path, name="tags", version="1")


@pytest.mark.parametrize("threshold", [0.0, 1.0, float("nan")])
def test_a_threshold_is_between_0_and_1(threshold: float) -> None:
    with pytest.raises(Exception, match="threshold must be between 0 and 1"):
        ModelOptions(kind="onnx", model="", sha256="", outputs="label_logits", threshold=threshold)
