"""A multi-label prediction is L decisions: each is counted, signed, labelled once and sliced like classes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_watch import RING, talk_to

from calib_serve import Artifact
from calib_serve.artifact import LogitMap
from calib_serve.ledger import Ledger
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import Keyring
from calib_serve.receipts.policy import LabelPolicy
from calib_serve.receipts.recorder import count_choices
from calib_serve.torchserve._channel import Emitter
from calib_serve.torchserve._observer import Observer

pytestmark = pytest.mark.store

TAGS = ("cat", "dog", "false")
NOW = 1_700_000_000.0


def tags_artifact(names: tuple[str, ...] = TAGS) -> Artifact:
    maps = (LogitMap(np.ones(len(names)), np.zeros(len(names))),)
    return Artifact(
        maps, method="platt", classes=len(names), class_names=names, model={"outputs": "label_logits"}
    )


def watch_tags(folder: Path, *, names: tuple[str, ...] = TAGS, **options: Any) -> Watch:
    clock = options.pop("clock", lambda: NOW)
    watched = {("tags", "1"): Watched.of(tags_artifact(names))}
    return Watch(RING, Ledger(folder / "l.db", clock=clock), models=watched, **options)


def observer(sent: list[str], policy: LabelPolicy | None = None, ring: Keyring = RING) -> Observer:
    emitter = Emitter(write=sent.append, interval=3600)
    return Observer(emitter, model="tags", version="1", bins=15, keyring=ring, policy=policy)


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


def test_weighing_by_the_chance_brings_back_what_all_labels_would_say(tmp_path: Path) -> None:
    # Rows of 200 labels, overconfident by .1: the 32 drawn ones say so.
    rng, watching = np.random.default_rng(1), observer([], ring=RING)
    names = tuple(f"tag {k}" for k in range(200))
    with watch_tags(tmp_path, names=names, detector=None, clock=time.time) as watch:
        items = []
        for _ in range(40):
            p = rng.uniform(0.55, 0.95, 200)
            truth = rng.random(200) < p - 0.1
            for one in count_choices(watching, [p], threshold=0.5, tags=[])[0]:
                items.append({"receipt": one.receipt, "label": bool(truth[one.label])})
        assert all(outcome.accepted for outcome in watch.labels(items))
        sums = watch.ledger.sums()["tags", "1"]
    weight = sums["calib_feedback_weight_total"].sum()
    gap = (
        sums["calib_feedback_confidence_total"].sum() - sums["calib_feedback_correct_total"].sum()
    ) / weight
    assert weight == pytest.approx(40 * 200)
    assert gap == pytest.approx(0.1, abs=0.05)
