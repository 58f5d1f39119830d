"""The name of an action in replies of handlers, of the gateway and of a reporter."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from deciding import choosing
from prometheus_client import CollectorRegistry

from calib_serve import Artifact, Keyring
from calib_serve.artifact import LogitMap
from calib_serve.gateway.calibration import Calibration, Calibrations
from calib_serve.receipts import Reporter, Tag
from calib_serve.torchserve._predictions import Prediction, row_decisions
from calib_serve.torchserve._replies import columns, full_reply, in_body, in_headers, in_protocol
from calib_serve.torchserve._requests import Message
from calib_serve.torchserve.mar_options import ModelOptions

CHOICE = choosing(3)
ARTIFACT = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3, choice=CHOICE)
P = np.array([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3], [0.1, 0.2, 0.7]])
NAMES = CHOICE.names(P)
OPTIONS = ModelOptions("onnx", "m.onnx", "0" * 64, outputs="logits", input_shape=(3,))


def rows() -> list[Prediction]:
    decided = row_decisions(ARTIFACT, list(P))
    return [
        Prediction(p, int(p.argmax()), p.max(), np.log(p), None, d) for p, d in zip(P, decided, strict=True)
    ]


def test_own_replies_and_tensors_name_the_action() -> None:
    assert len(set(NAMES)) == 3
    told = [full_reply(one, OPTIONS, (), model="m", version="1")["decision"] for one in rows()]
    assert told == NAMES
    column = columns(OPTIONS, ARTIFACT)["decision"](rows())
    assert (column.datatype, column.values.tolist()) == ("BYTES", NAMES)
    assert "decision" not in columns(OPTIONS, replace(ARTIFACT, choice=None))
    assert row_decisions(replace(ARTIFACT, choice=None), list(P))[0].decision is None


def test_another_handlers_replies_have_it_in_headers_bodies_and_envelopes() -> None:
    put: dict[str, str] = {}
    assert in_headers(put.__setitem__, rows())
    assert put["x-calib-decision"].isascii()
    assert json.loads(f"[{put['x-calib-decision']}]") == NAMES
    assert [one["decision"] for one in in_body("{}", rows(), ())["instances"]] == NAMES
    v1 = in_protocol({"predictions": [1, 2, 3]}, Message("v1", {}, {}), rows(), (), {})
    assert v1["decisions"] == NAMES
    outputs = {"outputs": [{"name": "a"}] * 3}
    v2 = in_protocol(outputs, Message("v2", {}, {}), rows(), (), {})
    assert [one["parameters"]["decision"] for one in v2["outputs"]] == NAMES


def test_the_gateway_adds_it_where_it_is_decided_and_for_nan_it_is_empty() -> None:
    ring, registry = Keyring.new(), CollectorRegistry()
    with Reporter(ARTIFACT, model="m", version="1", keyring=ring, registry=registry) as reports:
        how = {"output": "z", "kind": "logits", "reports": reports}
        one = Calibration("m", "1", ARTIFACT, **how)
        z = np.r_[2 * np.log(P), [[np.nan] * 3]].astype("f4")
        added = {tensor.name: tensor for tensor in one(z, Tag()).added}
        assert [text.decode() for text in added["decision"].values] == [*NAMES, ""]
        assert "decision" in Calibrations([one]).added_to("m")
        plain = Calibration("m", "1", replace(ARTIFACT, choice=None), **how)
        assert "decision" not in Calibrations([plain]).added_to("m")


def test_a_logged_model_returns_it_and_none_for_a_row_that_is_not_finite() -> None:
    from calib_serve.integrations.mlflow import Calibrated

    class Inner:
        def predict(self, given: np.ndarray) -> np.ndarray:
            return given

    z = np.r_[2 * np.log(P), [[np.nan] * 3]]
    found = Calibrated(Inner(), ARTIFACT, outputs="logits").predict(z)
    assert [row.get("decision") for row in found] == [*NAMES, None]
