"""A real TorchServe over REST: predictions, receipts, labels, counters, on two workers."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import numpy as np
import pytest
from deciding import deciding
from live_server import (
    NAMES,
    Running,
    exported,
    inputs,
    samples,
    temperature_artifact,
    total,
    until,
)
from sizes import sized

from calib_serve import Bins
from calib_serve.torchserve import pack

pytestmark = pytest.mark.server

MODEL = "counted_to_the_last"
DECIDING = deciding(temperature_artifact(), "raps", below=0.3)


@pytest.fixture(scope="module")
def running(register: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Running:
    folder = tmp_path_factory.mktemp("counted")
    return register(
        pack(exported(folder / "net.pt2"), DECIDING, folder, name=MODEL, workers=2, unproven=True)
    )


def test_without_the_token_nothing_is_answered_but_the_metrics(running: Running) -> None:
    bare = httpx.post(f"{running.server.inference}/predictions/{MODEL}", json=[0.0] * 16, trust_env=False)
    assert bare.status_code == 400
    assert "Token" in bare.json()["message"]
    assert httpx.get(f"{running.server.inference}/ping", trust_env=False).status_code == 400
    assert "calib_predictions_total" in running.server.scrape()


def of_model(text: str, name: str) -> list[object]:
    return [key for key in samples(text, name) if ("model", MODEL) in key]


def test_all_requests_on_two_workers_are_counted_to_the_last(running: Running) -> None:
    replies = running.predict_all(inputs(sized(1000, 5000), seed=2))
    assert {r.status_code for r in replies} == {200}
    assert len({r.headers["x-calib-worker"] for r in replies}) == 2, "both workers must have answered"
    confidence = [r["confidence"] for r in running.served]
    own = Bins.tally(confidence, np.ones(len(confidence)))
    text = running.settled()
    for name, sums in (
        ("calib_predictions_total", own.count),
        ("calib_predictions_confidence_total", own.confidence),
    ):
        live = [total(text, name, model=MODEL, version="1.0", bin=str(b)) for b in range(15)]
        np.testing.assert_allclose(live, sums, rtol=1e-12)
        assert len(of_model(text, name)) == 15, "every bin exists, empty ones too"
    until(
        lambda: len(of_model(running.server.scrape(), "calib_window_sums")) == 5 * 4 * 15
    )  # and those of labels


def test_labels_come_home_once_and_the_live_ece_is_the_offline_ece(running: Running) -> None:
    replies = [r.json() for r in running.predict_all(inputs(300, seed=3))]
    labels = np.random.default_rng(0).integers(0, 10, 300).tolist()
    items = [{"receipt": r["receipt"], "label": y} for r, y in zip(replies, labels, strict=True)]
    items[0]["label"] = NAMES[labels[0]]  # by name
    sums = ("feedback", "feedback_confidence", "feedback_correct")

    def counted() -> np.ndarray:
        text = running.server.scrape()
        day = {"name": "calib_window_sums", "model": MODEL, "window": "24h"}
        return np.array([[total(text, **day, sum=n, bin=str(b)) for b in range(15)] for n in sums])

    def duplicates() -> float:
        return total(running.server.scrape(), "calib_feedback_refused_total", reason="duplicate")

    before, twice = counted(), -1.0
    while twice != (twice := duplicates()):  # counts of earlier labels come late
        time.sleep(2)
    assert running.label(items).json()["accepted"] == 300
    again = running.label(items[:50]).json()
    assert (again["accepted"], {o["reason"] for o in again["outcomes"]}) == (0, {"duplicate"})
    own = Bins.tally(
        [r["confidence"] for r in replies],
        [r["predicted"] == y for r, y in zip(replies, labels, strict=True)],
    )
    until(lambda: counted()[0].sum() >= before[0].sum() + 300)
    live = Bins(*(counted() - before))
    assert live.count.tolist() == own.count.tolist()
    assert live.correct.tolist() == own.correct.tolist()
    assert abs(live.ece() - own.ece()) < 1e-9
    until(lambda: duplicates() == twice + 50)
