"""Who may put a label in the place of another, how that is sent, and what is said of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from real_watch import RING, make_watch, talk_to
from starlette.requests import Request

from calib_serve.gateway import app as gateway
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import ServedPrediction
from calib_serve.web import Guard, Token, may_correct

pytestmark = pytest.mark.store

V = ("m", "1")
TOKENS = [
    Token.read(f"{name} {scopes} {name * 16}")
    for name, scopes in (("lab", "label"), ("desk", "label,correct,scrape"), ("app", "predict"))
]


def by(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name * 16}"}


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    one = make_watch(tmp_path)
    yield one
    one.close()


def signed(**more: Any) -> str:
    facts = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9, "time": time.time() - 5}
    return RING.sign(**facts | more)


def right(watch: Watch) -> float:
    """The labels that are right."""
    return float(watch.ledger.sums()[V].feedback.correct.sum())


@pytest.mark.parametrize("batch", [True, False])
def test_only_a_token_of_the_scope_correct_may_replace_a_label(watch: Watch, batch: bool) -> None:
    receipts = [signed() for _ in range(2)]
    plain = [{"receipt": one, "label": 1} for one in receipts]
    new: Any = [{"receipt": one, "label": 2, "replaces": True} for one in receipts]
    if batch:
        new = {"items": [{"receipt": one, "label": 2} for one in receipts], "replaces": True}
    with talk_to(watch, tokens=TOKENS) as client:
        assert client.post("/v1/labels", json=plain, headers=by("lab")).json()["accepted"] == 2
        refused = client.post("/v1/labels", json=new, headers=by("lab"))
        assert (refused.status_code, "scope correct" in refused.json()["detail"]) == (403, True)
        assert right(watch) == 2
        told = client.post("/v1/labels", json=new, headers=by("desk")).json()
        assert told == {"accepted": 2, "refused": 0, "items": [{"accepted": True, "corrected": True}] * 2}
        again = client.post("/v1/labels", json=new, headers=by("desk")).json()
        assert [one["reason"] for one in again["items"]] == ["duplicate"] * 2
        text = client.get("/metrics", headers=by("desk")).text
    assert right(watch) == 0
    assert 'calib_feedback_corrected_total{model="m",version="1"} 2.0' in text
    assert 'calib_feedback_accepted_total{model="m",version="1"} 2.0' in text
    sources = {key.name: float(one.labels.sum()) for key, one in watch.ledger.slices("source").items()}
    assert sources == {"desk": 2}


@pytest.mark.parametrize("value", ["yes", 1, None, [True]])
def test_what_is_neither_true_nor_false_is_malformed_and_counts_nothing(watch: Watch, value: Any) -> None:
    receipt = signed()
    watch.labels([{"receipt": receipt, "label": 1}])
    item = {"receipt": receipt, "label": 2}
    with talk_to(watch) as client:
        for body in ([item | {"replaces": value}], {"items": [item], "replaces": value}):
            (told,) = client.post("/v1/labels", json=body).json()["items"]
            assert told["reason"] == "malformed"
    assert right(watch) == 1


def test_corrections_by_an_own_id_and_of_one_label_of_many(tmp_path: Path) -> None:
    watch = make_watch(tmp_path)
    many = ("tags", "1")
    watch.register_version(many, {"classes": 2, "class_names": ["cat", "dog"], "multilabel": True})
    watch.predictions([ServedPrediction(*V, 1, 0.75, id="order-1")])
    choice = signed(model=many[0], predicted=3)
    watch.labels([{"id": "order-1", "label": 1}, {"receipt": choice, "label": True}])
    found = watch.labels(
        [
            {"id": "order-1", "label": 0, "replaces": True},
            {"receipt": choice, "label": False, "replaces": True},
            {"id": "order-9", "label": 0, "replaces": True},
        ]
    )
    assert [one.reason or one.corrected for one in found] == [True, True, "unknown_id"]
    (again,) = watch.labels([{"receipt": choice, "label": 0, "replaces": True}])
    assert again.reason == "duplicate"
    sums = watch.ledger.sums()
    assert (sums[V].feedback.correct.sum(), sums[many].feedback.correct.sum()) == (0, 0)
    watch.close()


def test_of_a_version_that_is_not_known_yet_the_first_label_waits_and_no_correction(watch: Watch) -> None:
    receipt = signed(version="2")
    (held,) = watch.labels([{"receipt": receipt, "label": 1}])
    (told,) = watch.labels([{"receipt": receipt, "label": 2, "replaces": True}])
    assert (held.held, told.accepted, told.reason) == (True, False, "unknown_version")
    watch.register_version(("m", "2"), {"classes": 3})
    (told,) = watch.labels([{"receipt": receipt, "label": 2, "replaces": True}])
    assert told.corrected


@pytest.mark.parametrize(("name", "allowed"), [("lab", False), ("desk", True)])
def test_a_gateway_before_an_open_watch_asks_for_the_scope_itself(
    name: str, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its watch has no tokens: what the client may not do is said on the way, whatever it sends itself."""
    scopes: list[dict[str, Any]] = []

    async def through(_upstream: object, scope: dict[str, Any], *_: object) -> None:
        scopes.append(scope)

    monkeypatch.setattr(gateway, "stream_through", through)
    app = gateway.of_watch_elsewhere(object(), CollectorRegistry(), Guard(TOKENS))
    headers = [(b"authorization", by(name)["authorization"].encode()), (b"connection", b"replaces")]
    scope = {
        "type": "http", "method": "POST", "path": "/v1/labels", "query_string": b"replaces=yes",
        "headers": [*headers, (b"content-type", b"application/json"), (b"host", b"gateway")],
    }  # fmt: skip
    asyncio.run(app(scope, None, None))
    (sent,) = scopes
    request = Request({**sent, "server": ("127.0.0.1", 80), "state": {}})
    assert may_correct(request) == allowed
