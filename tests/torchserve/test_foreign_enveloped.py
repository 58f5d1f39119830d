"""Archives that nobody here wrote, behind TorchServe's envelopes: each instance has its own receipt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deciding import ACTS, acts_by_hand, deciding
from foreign_handlers import FOREIGN, archive, artifact, probabilities
from live_server import Running, inputs
from protocol_clients import model_infer

from calib_serve import Artifact
from calib_serve.torchserve import pack_around

pytestmark = pytest.mark.server

X = inputs(3, seed=31)
REQUEST = {"name": "x", "shape": [16], "datatype": "FP32", "data": [0.5] * 16}


def fitted(name: str) -> Artifact:
    return replace(deciding(artifact(FOREIGN[name]), "aps", below=0.3), contract=ACTS)


Register = Callable[..., Running]


def running_behind(register: Register, folder: Path, envelope: str, name: str) -> Running:
    (folder / "requests" / "any").mkdir(parents=True)
    for k in range(3):
        body = [0.5 * j if j % 3 == k else 0.1 for j in range(16)]
        body = {**REQUEST, "data": body} if name == "kserve_v2" else body
        (folder / "requests" / "any" / f"{k}.json").write_text(json.dumps(body))
    old = archive(name, folder / "old")
    made = pack_around(old, fitted(name), folder / "store", probe_data=folder / "requests", unproven=True)
    return register(made, envelope=envelope)


@pytest.fixture(scope="module")
def v1(register: Register, tmp_path_factory: pytest.TempPathFactory) -> Running:
    return running_behind(register, tmp_path_factory.mktemp("v1"), "kserve", "base_handler")


@pytest.fixture(scope="module")
def v2(register: Register, tmp_path_factory: pytest.TempPathFactory) -> Running:
    return running_behind(register, tmp_path_factory.mktemp("v2"), "kservev2", "kserve_v2")


def check_decided(name: str, sets: list[Any], abstentions: list[bool], acts: list[bool], n: int) -> None:
    """Each is of its own row: ids of classes, likeliest first, or of each class whether it is in."""
    probs, made = probabilities(FOREIGN[name], X[:n]), fitted(name)
    assert made.sets is not None
    assert made.abstain is not None
    inside = made.sets(probs)
    if not isinstance(sets[0][0], bool):
        ranked = [[k for k in np.argsort(-p) if of[k]] for p, of in zip(probs, inside, strict=True)]
        assert sets == ranked
    else:
        assert sets == inside.tolist()
    assert abstentions == made.abstain(probs).tolist()
    assert acts == acts_by_hand(probs)


def check(running: Running, name: str, confidences: list[float], receipts: list[str], n: int) -> None:
    """Each is of its own row, and its label is counted."""
    wanted = probabilities(FOREIGN[name], X[:n])
    np.testing.assert_allclose(confidences, wanted.max(axis=1), atol=1e-6)
    found = [running.keyring.verify(receipt) for receipt in receipts]
    assert [(r.model, r.predicted) for r in found] == [(name, k) for k in wanted.argmax(axis=1)]
    assert len(set(receipts)) == n
    labels = [{"receipt": receipt, "label": 1} for receipt in receipts]
    assert running.label(labels).json()["accepted"] == n, "as documented, behind the envelope, too"


@pytest.mark.parametrize("n", [1, 3])
def test_kserve_v1_has_lists_beside_its_predictions(v1: Running, n: int) -> None:
    reply = v1.http.post("/v1/models/base_handler:predict", json={"instances": X[:n].tolist()})
    body = reply.json()
    assert set(body) == {"predictions", "confidences", "receipts", "sets", "abstentions", "acts"}
    wanted = probabilities(FOREIGN["base_handler"], X[:n])
    np.testing.assert_allclose(np.exp(body["predictions"]), wanted, atol=1e-6)
    assert reply.headers["x-calib-receipt"].split(", ") == body["receipts"]
    in_header = [[int(k) for k in ids.split()] for ids in reply.headers["x-calib-set"].split(", ")]
    assert in_header == body["sets"]
    assert json.loads(f"[{reply.headers['x-calib-abstain']}]") == body["abstentions"]
    assert json.loads(f"[{reply.headers['x-calib-act']}]") == body["acts"]
    check_decided("base_handler", body["sets"], body["abstentions"], body["acts"], n)
    check(v1, "base_handler", body["confidences"], body["receipts"], n)


def v2_inputs(n: int) -> list[dict[str, Any]]:
    return [{**REQUEST, "name": f"x{i}", "data": X[i].tolist()} for i in range(n)]


@pytest.mark.parametrize("n", [1, 3])
def test_kserve_v2_has_them_in_the_parameters_of_each_output(v2: Running, n: int) -> None:
    reply = v2.http.post("/v2/models/kserve_v2/infer", json={"id": "7", "inputs": v2_inputs(n)}).json()
    said = [output["parameters"] for output in reply["outputs"]]
    assert [output["name"] for output in reply["outputs"]] == [f"x{i}" for i in range(n)]
    check(v2, "kserve_v2", [one["confidence"] for one in said], [one["receipt"] for one in said], n)
    sets = [json.loads(one["set"]) for one in said]
    check_decided("kserve_v2", sets, *([one[name] for one in said] for name in ("abstain", "act")), n)


def test_over_grpc_v2_has_them_in_tensors(v2: Running) -> None:
    tensors = [(f"x{i}", "FP32", [16], X[i].tolist()) for i in range(2)]
    found = model_infer(v2, "kserve_v2", *tensors)
    check(v2, "kserve_v2", found["confidence"], found["receipt"], 2)
    check_decided("kserve_v2", found["set"], found["abstain"], found["act"], 2)
