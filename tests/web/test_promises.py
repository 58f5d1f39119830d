"""Contracts and shadows on the page of ``watch``, in its API and in its metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from real_watch import RING, talk_to

from calib_serve.artifact import Artifact, Contract, LogitMap
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import Shadow
from calib_serve.receipts.batch import ServedPrediction

pytestmark = pytest.mark.store


def test_a_watch_of_a_broken_promise_says_so_everywhere_and_how_its_shadow_compares(tmp_path: Path) -> None:
    text = "contract: 1\nact: {above: 0.9, accuracy: 0.98}\nclasses: {2: {act: {above: 0.5, accuracy: 0.5}}}"
    artifact = Artifact(
        (LogitMap.temperature(1.5),), method="temperature", classes=3, contract=Contract.read(text)
    )
    rng = np.random.default_rng(0)
    models, ledger = {("m", "1"): artifact}, tmp_path / "l.db"
    with (
        Watch.open(models, keyring=RING, ledger=ledger, maturity=0) as watch,
        talk_to(watch) as client,
    ):
        none = client.get("/v1/contract?model=m&version=1").json()["clauses"]
        gone = [client.get(f"/v1/{what}?model=m&version=2").status_code for what in ("contract", "shadows")]
        for _ in range(4):
            confidence = rng.choice([0.6, 0.95], 500)
            # Of those that are acted on 90 % are right, and the shadow knows it.
            wrong = rng.random(500) < np.where(confidence > 0.9, 0.1, 0.4)
            items = [
                ServedPrediction("m", "1", 0, c, shadow=Shadow(0, min(c, 0.9), b"\x01\x23\xab\xcd"))
                for c in confidence.tolist()
            ]
            receipts = watch.predictions(items)
            watch.labels([{"receipt": r, "label": int(w)} for r, w in zip(receipts, wrong, strict=True)])
            watch.feed.tick()
        act, of_class = client.get("/v1/contract?model=m&version=1").json()["clauses"]
        (shadow,) = client.get("/v1/shadows?model=m&version=1").json()["shadows"]
        page, metrics = client.get("/").text, client.get("/metrics").text
    assert gone == [404, 404]
    assert [one["state"] for one in none] == ["unknown"] * 2
    assert {one[name] for one in none for name in ("value", "low", "budget_left", "said_at")} == {None}
    assert (act["state"], act["low"] < 0.9 < act["high"] < 0.98) == ("broken", True)
    assert act["budget_left"] == pytest.approx(1 - (1 - act["value"]) / 0.02)
    assert (of_class["state"], of_class["burn"]["1h"]) == ("unknown", {"rate": None, "low": None})
    assert (shadow["tag"], shadow["labels"]) == ("0123abcd", 2000)
    assert "Broken<" in page
    assert "<small>since 2" in page
    assert "<small>no label that is mature is of it</small>" in page
    assert shadow["says"] in page
    assert 'calib_contract_state{clause="act",model="m",version="1"} -1.0' in metrics
