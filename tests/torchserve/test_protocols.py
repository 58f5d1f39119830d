"""Classifier and labels in every protocol of a real server, whatever envelope it puts before its models."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import protocol_clients as clients
import pytest
import torch
from live_server import (
    NAMES,
    WIDTH,
    Running,
    exported,
    inputs,
    network,
    temperature_artifact,
)
from protocol_clients import CLIENTS, Answer, columns, model_infer, predictions, v2_body
from sizes import sized

from calib_serve.receipts import group_number
from calib_serve.torchserve import pack

pytestmark = pytest.mark.server
ENVELOPES = ("", "kserve", "kservev2", "json")
SERVED = sized(ci=ENVELOPES[1:3], nightly=ENVELOPES)


@pytest.fixture(scope="module", params=SERVED, ids=lambda name: name or "none")
def running(
    request: pytest.FixtureRequest, register: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory
) -> Running:
    """``counted`` for one test alone."""
    folder = tmp_path_factory.mktemp("protocols")
    model = exported(folder / "net.pt2")
    archives = [pack(model, temperature_artifact(), folder, name="counted", unproven=True)]
    return replace(register(*archives, envelope=request.param), model="digits")


def probabilities(x: np.ndarray) -> np.ndarray:
    """The artifact's, straight from its definition."""
    with torch.inference_mode():
        logits = network()(torch.from_numpy(x)).numpy()
    return temperature_artifact().probs(logits)


def check(running: Running, model: str, answer: Answer, x: np.ndarray) -> None:
    """Every row has its own probabilities, class, confidence and receipt."""
    wanted = probabilities(x)
    np.testing.assert_allclose(answer.probabilities, wanted, atol=1e-6)
    assert answer.predicted == wanted.argmax(1).tolist()
    receipts = [running.keyring.verify(token) for token in answer.receipts]
    assert [one.predicted for one in receipts] == answer.predicted
    np.testing.assert_allclose([one.confidence for one in receipts], answer.confidence, atol=1e-6)
    np.testing.assert_allclose(answer.confidence, wanted.max(1), atol=1e-6)
    assert {one.model for one in receipts} == {model}


@pytest.mark.parametrize("ask", CLIENTS, ids=lambda ask: ask.__name__)
@pytest.mark.parametrize(
    ("rows", "requests"), sized(ci=[(1, 1), (3, 4)], nightly=[(1, 1), (1, 4), (3, 1), (3, 4)])
)
def test_every_row_has_its_probabilities_and_a_receipt_that_counts_once(
    running: Running, ask: Callable[..., Answer], rows: int, requests: int
) -> None:
    xs = [inputs(rows, seed=seed) for seed in range(requests)]
    with ThreadPoolExecutor(requests) as pool:  # in one batch of the server's
        answers = list(pool.map(lambda x: ask(running, "digits", x), xs))
    for x, answer in zip(xs, answers, strict=True):
        check(running, "digits", answer, x)
    tokens = [token for answer in answers for token in answer.receipts]
    assert len(set(tokens)) == requests * rows
    items = [{"receipt": token, "label": 3} for token in tokens]
    assert [running.label(items).json()["accepted"] for _ in range(2)] == [requests * rows, 0]


def some_receipts(running: Running, n: int = 2) -> list[str]:
    return clients.rest_v1(running, "digits", inputs(n)).receipts


def test_labels_come_as_json_and_instances(running: Running) -> None:
    post, name = running.http.post, "calibration_feedback"
    a, b = some_receipts(running)
    items = [{"receipt": a, "label": 3}, {"receipt": b, "label": NAMES[4]}, {"receipt": b, "label": 4}]
    outcomes = clients.checked(post(f"/v1/models/{name}:predict", json={"instances": items}))["predictions"]
    assert [one["accepted"] for one in outcomes] == [True, True, False]
    assert outcomes[2]["reason"] == "duplicate"

    tokens = some_receipts(running)
    lines = b"\n".join(json.dumps({"receipt": token, "label": 1}).encode() for token in tokens)
    assert predictions(running, name, data=lines)["accepted"] == 2
    clients.checked(post(f"/predictions/{name}", json={"receipt": some_receipts(running)[0], "label": 3}))


def test_over_grpc_a_failure_is_an_output_as_torchserve_drops_the_status(running: Running) -> None:
    found = model_infer(running, "digits", ("x", "FP32", [1, 4], [0.0] * 4))
    assert found["code"] == [400]
    assert "(16), got (4,)" in found["error"][0]
    found = model_infer(running, "digits", ("x", "FP32", [1, WIDTH], []), ("y", "INT64", [1], [1]))
    assert "raw_input_contents" in found["error"][0]  # what clients send that TorchServe does not pass on
    assert model_infer(running, "digits")["code"] == [400]
    found = model_infer(running, "calibration_feedback", ("label", "INT64", [1], [1]))
    assert (found["code"], "as JSON" in found["error"][0]) == ([400], True)


@pytest.mark.parametrize("running", ["kserve"], indirect=True)
def test_tags_come_by_header_parameter_input_or_tensor(running: Running) -> None:
    post, x, ring = running.http.post, inputs(2), running.keyring
    headers = {"X-Calib-Segment": "north"}
    v1: dict[str, Any] = {"instances": x.tolist(), "parameters": {"group": ["a", 7]}}
    found = clients.of_replies(
        clients.checked(post("/v1/models/digits:predict", json=v1, headers=headers))["predictions"]
    )
    seen = [ring.verify(token) for token in found.receipts]
    assert [(one.segment, one.group) for one in seen] == [
        ("north", group_number("a")),
        ("north", group_number("7")),
    ]
    v2 = {**v2_body(x), "parameters": {"segment": "south"}}
    outputs = columns(clients.checked(post("/v2/models/digits/infer", json=v2, headers=headers)))
    assert {ring.verify(token).segment for token in outputs["receipt"]} == {"south"}
    tensor = ("x", "FP32", list(x.shape), x.ravel().tolist())
    outputs = model_infer(running, "digits", tensor, ("x-calib-segment", "BYTES", [1], [b"east"]))
    assert {ring.verify(token).segment for token in outputs["receipt"]} == {"east"}
    named = {"data": json.dumps(x[0].tolist()).encode(), "x-calib-segment": b"west"}
    assert ring.verify(predictions(running, "digits", **named)["receipt"]).segment == "west"
    v1["parameters"] = {"group": ["a", "b", "c"]}
    refused = post("/v1/models/digits:predict", json=v1)
    assert refused.status_code == 400
    assert "a list of 2 of them" in refused.json()["error"]
