"""Class shares of what is served, by predictions alone: per window, over HTTP, on the page and as gauges."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from calib_serve import Artifact, Keyring, Watch, calibrate, create_app
from calib_serve.receipts.batch import ServedPrediction

pytestmark = pytest.mark.store

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

V, BARE = ("pets", "1"), ("pets", "0")
NAMES = ("cat", "dog", "<cow>")


def drawn(shares, n, seed, *, blur=1.0):
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=shares)
    return 2 * (blur * rng.normal(size=(n, 3)) + 1.5 * np.eye(3)[y]), y


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return calibrate(*drawn([0.5, 0.3, 0.2], 4000, 0), "temperature", class_names=NAMES, outputs="logits")


@pytest.fixture
def watch(artifact, tmp_path):
    ledger = tmp_path / "l.db"
    with Watch.open({V: artifact, BARE: 3}, keyring=Keyring.new(), ledger=ledger, maturity=0) as watch:
        yield watch


def serve(watch, artifact, shares, n=3000, seed=1, *, version=V, labels=True, **how):
    z, y = drawn(shares, n, seed, **how)
    probs = artifact.probs(z)
    items = [ServedPrediction(*version, int(p.argmax()), float(min(p.max(), 1))) for p in probs]
    receipts = watch.predictions(items)
    if labels:
        watch.labels([{"receipt": r, "label": int(k)} for r, k in zip(receipts, y, strict=True)])
    return probs, y


def test_shares_are_those_of_the_traffic_and_labels_agree(watch, artifact) -> None:
    new = [0.2, 0.2, 0.6]
    probs, y = serve(watch, artifact, new)
    found = watch.class_shares(V)
    assert found.kind == "moved"
    assert "most that of <cow>: 19.9 % to 5" in found.says.replace("\xa0", " ")
    for one, share in zip(found.classes, np.bincount(y) / len(y), strict=True):
        assert one.share == pytest.approx(share, abs=1e-9)
        assert one.high - one.low == pytest.approx(2 * 1.96 * (share * (1 - share) / len(y)) ** 0.5, rel=1e-3)
        at = probs.argmax(axis=1) == NAMES.index(one.name)
        assert one.labelled.value == pytest.approx((y[at] == NAMES.index(one.name)).mean(), abs=0.01)
        assert one.labelled.low - 0.02 < one.expected < one.labelled.high + 0.02


def test_they_are_on_the_page_and_in_the_api(watch, artifact) -> None:
    serve(watch, artifact, [0.2, 0.2, 0.6])
    expected = watch.class_shares(V)
    with TestClient(create_app(watch, hosts=["testserver"])) as client:
        told = client.get("/v1/class-shares", params={"model": "pets", "version": "1"}).json()
        page = client.get("/?model=pets&version=1").text
        gone = client.get("/v1/class-shares", params={"model": "cars", "version": "1"})
        bad = client.get("/v1/class-shares", params={"model": "pets", "version": "1", "window": "2h"})
    assert [one["share"] for one in told["classes"]] == [one.share for one in expected.classes]
    assert told["kind"] == "moved"
    assert told["classes"][2]["class"] == "<cow>"
    assert "&lt;cow&gt;" in page
    assert "<cow>" not in page
    assert (gone.status_code, bad.status_code) == (404, 400)
