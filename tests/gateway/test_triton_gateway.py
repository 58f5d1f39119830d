"""The gateway before a real tritonserver, spoken to by Triton's own clients, over REST and gRPC."""

from __future__ import annotations

import gzip
import json
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from deciding import IN_SEGMENTS, acts_by_hand
from gateways import CLASSES, Running, X, artifact, logits, probs
from live_server import until
from tritonclient.utils import InferenceServerException

from calib_serve import Keyring

pytestmark = pytest.mark.server

LOGITS = [{"name": "logits"}]
ADDED = ("confidence", "receipt", "abstain", "set", "act", "decision")


def over(
    client: Any,
    running: Running,
    model: str = "digits",
    x: np.ndarray = X,
    *,
    outputs: tuple[str, ...] = (),
    version: str = "",
    form: dict[str, bool],
    **more: Any,
) -> dict[str, np.ndarray]:
    """Ask by one of Triton's clients; ``form``: of tensors."""
    sent = client.InferInput("x", list(x.shape), "FP32")
    sent.set_data_from_numpy(x, **form)
    wanted = [client.InferRequestedOutput(name, **form) for name in outputs] or None
    address = running.grpc if client is grpc_client else running.http.removeprefix("http://")
    with client.InferenceServerClient(address) as asking:
        found = asking.infer(model, [sent], outputs=wanted, model_version=version, **more)
        reply = found.get_response()
        names = [one.name for one in reply.outputs] if client is grpc_client else map(_name, reply["outputs"])
        return {name: found.as_numpy(name) for name in names}


_name = itemgetter("name")
over_rest = partial(over, http_client, form={"binary_data": True})
over_grpc = partial(over, grpc_client, form={})
# Triton does not send float16 as JSON.
over_json = partial(over, http_client, form={"binary_data": False}, outputs=("logits", "best", "name"))

ASKS = {"rest, json": over_json, "rest, binary": over_rest, "grpc": over_grpc}
each_way = pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
each_binary = pytest.mark.parametrize("ask", [over_rest, over_grpc], ids=["rest", "grpc"])


def softmaxed(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores.astype("f8"))
    return e / e.sum(axis=1, keepdims=True)


def texts(values: np.ndarray) -> list[str]:
    return [one.decode() if isinstance(one, bytes) else one for one in values.tolist()]


@each_way
def test_the_named_output_is_calibrated_and_the_rest_is_added(
    running: Running, folder: Path, ask: Any
) -> None:
    found = ask(running)
    assert {*found} - {"half"} == {"logits", "best", "name", *ADDED}
    assert found["logits"].dtype == np.float32
    np.testing.assert_allclose(softmaxed(found["logits"]), probs(), atol=1e-6)
    np.testing.assert_array_equal(found["best"].ravel(), logits().argmax(axis=1))
    if "half" in found:
        np.testing.assert_allclose(found["half"].astype("f4"), logits(), rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(found["confidence"], probs().max(axis=1), atol=1e-7)
    assert found["confidence"].dtype == np.float64
    np.testing.assert_array_equal(found["abstain"], probs().max(axis=1) < 0.5)
    np.testing.assert_array_equal(found["act"], acts_by_hand(probs()))
    assert texts(found["decision"]) == artifact().choice.names(probs())
    assert found["set"].shape == (len(X), CLASSES)
    np.testing.assert_array_equal(found["set"], artifact().sets(probs()))
    ring = Keyring.load(folder / "keys.json")
    for row, token in enumerate(texts(found["receipt"])):
        receipt = ring.verify(token)
        assert (receipt.model, receipt.predicted) == ("digits", probs()[row].argmax())
        assert receipt.confidence == pytest.approx(probs()[row].max(), abs=1e-7)


@each_binary
def test_what_may_be_acted_on_goes_by_the_segment_of_the_request(
    running: Running, folder: Path, ask: Any
) -> None:
    x, ring = 3 * X, Keyring.load(folder / "keys.json")
    for segment in ("", "nord", "sud"):
        found = ask(running, x=x, headers={"x-calib-segment": segment} if segment else {})
        assert found["act"].tolist() == acts_by_hand(probs(x), segment)
        receipts = [ring.verify(token) for token in texts(found["receipt"])]
        again = [IN_SEGMENTS.acts_on(one.confidence, one.predicted, one.segment) for one in receipts]
        assert found["act"].tolist() == again


@each_way
def test_only_what_is_asked_for_comes_and_the_scores_stay_behind(running: Running, ask: Any) -> None:
    assert set(ask(running, outputs=("best",))) == {"best", *ADDED}
    assert set(ask(running, outputs=("best", "confidence"))) == {"best", "confidence"}
    assert set(ask(running, outputs=("receipt",))) == {"receipt"}
    found = ask(running, outputs=("logits", "set"))
    assert set(found) == {"logits", "set"}
    np.testing.assert_allclose(softmaxed(found["logits"]), probs(), atol=1e-6)


@each_way
def test_a_version_is_calibrated_by_its_own_artifact_or_passes_and_is_counted(
    running: Running, ask: Any
) -> None:
    before = running.series("calib_uncalibrated_total").get('{model="versions",version="1"}', 0)
    as_it_is = ask(running, "versions", version="1")
    assert set(as_it_is) - {"half"} == {"logits", "best", "name"}
    np.testing.assert_allclose(as_it_is["logits"], logits(), rtol=1e-5)
    assert running.series("calib_uncalibrated_total")['{model="versions",version="1"}'] == before + 1
    assert "receipt" in ask(running, "versions", version="2")


@each_way
def test_an_output_that_is_calibrated_already_stays_and_gets_receipts(running: Running, ask: Any) -> None:
    found = ask(running, "ready-made")
    np.testing.assert_allclose(found["logits"], logits(), rtol=1e-5)
    np.testing.assert_allclose(found["confidence"], softmaxed(logits()).max(axis=1), atol=1e-6)
    assert set(found) - {"half"} == {"logits", "best", "name", "confidence", "receipt"}


def test_replies_that_are_compressed_come_compressed(running: Running) -> None:
    for coding in ("gzip", "deflate"):
        found = over_rest(
            running, request_compression_algorithm=coding, response_compression_algorithm=coding
        )
        np.testing.assert_allclose(softmaxed(found["logits"]), probs(), atol=1e-6)
        found = over_rest(running, outputs=("best",), request_compression_algorithm=coding)
        assert "receipt" in found
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    content = gzip.compress(json.dumps(request(outputs=LOGITS)).encode())
    reply = running.client.post(infer(running), content=content, headers=headers)
    assert reply.headers["content-encoding"] == "gzip"
    assert "receipt" in named(reply)


def request(x: np.ndarray = X, **more: Any) -> dict[str, Any]:
    sent = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    return {"inputs": [sent], **more}


def infer(running: Running, model: str = "digits") -> str:
    return f"{running.http}/v2/models/{model}/infer"


def named(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 200, reply.text
    return {one["name"]: one for one in reply.json()["outputs"]}


@pytest.mark.parametrize("name", ["classification", "shared_memory_region"])
def test_forms_that_cannot_be_calibrated_are_refused(running: Running, name: str) -> None:
    outputs = [{"name": "logits", "parameters": {name: 1 if name == "classification" else "mine"}}]
    reply = running.client.post(infer(running), json=request(outputs=outputs))
    assert reply.status_code == 400
    assert name in reply.json()["error"]
    if name == "classification":
        wanted = grpc_client.InferRequestedOutput("logits", class_count=1)
        sent = grpc_client.InferInput("x", list(X.shape), "FP32")
        sent.set_data_from_numpy(X)
        with (
            grpc_client.InferenceServerClient(running.grpc) as client,
            pytest.raises(InferenceServerException, match="classification") as raised,
        ):
            client.infer("digits", [sent], outputs=[wanted])
        assert raised.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_labels_come_home_at_the_same_address_and_count_once(running: Running) -> None:
    before = running.counted("calib_feedback_total")
    items = []
    for ask in ASKS.values():
        found = ask(running, headers={"x-calib-segment": "DE"})
        best = probs().argmax(axis=1).tolist()
        items += [{"receipt": r, "label": k} for r, k in zip(texts(found["receipt"]), best, strict=True)]
    sent = running.client.post(f"{running.http}/v1/labels", json={"items": items})
    assert sent.json()["accepted"] == len(items) == 15
    again = running.client.post(f"{running.http}/v1/labels", json={"items": items})
    assert (again.json()["accepted"], again.json()["items"][0]["reason"]) == (0, "duplicate")
    assert running.counted("calib_feedback_total") == before + 15
    until(
        lambda: any('"DE"' in of and '"24h"' in of for of in running.series("calib_slice_gap")),
        seconds=20,
    )
    assert running.client.get(f"{running.http}/calibration/").status_code == 200
