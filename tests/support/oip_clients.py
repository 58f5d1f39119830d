"""The Open Inference Protocol as clients of MLServer and KServe speak it: REST in JSON, and gRPC."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import numpy as np
from server_checks import Reply
from tritonclient.grpc import InferenceServerClient, InferInput

KINDS = {"predicted": "INT64", "confidence": "FP64", "receipt": "BYTES"}


def oip_rest(url: str) -> Callable[[np.ndarray], list[Reply]]:
    """Asks the model ``digits`` at ``url``; each output is of its own datatype, and of n rows."""

    def predict(x: np.ndarray) -> list[Reply]:
        tensor = {"name": "x", "datatype": "FP64", "shape": list(x.shape), "data": x.ravel().tolist()}
        answer = httpx.post(f"{url}v2/models/digits/infer", json={"inputs": [tensor]}, timeout=60)
        assert answer.status_code == 200, answer.text
        outputs = {one["name"]: one for one in answer.json()["outputs"]}
        assert {name: one["datatype"] for name, one in outputs.items()} == KINDS
        assert all(one["shape"] in ([len(x)], [len(x), 1]) for one in outputs.values())
        return [Reply(*one) for one in zip(*(outputs[name]["data"] for name in KINDS), strict=True)]

    return predict


def oip_grpc(address: str) -> Callable[[np.ndarray], list[Reply]]:
    """The same by ModelInfer."""

    def predict(x: np.ndarray) -> list[Reply]:
        tensor = InferInput("x", list(x.shape), "FP64")
        tensor.set_data_from_numpy(x.astype(float))
        with InferenceServerClient(address) as client:
            answer = client.infer("digits", [tensor], client_timeout=60)
        assert {one.name: one.datatype for one in answer.get_response().outputs} == KINDS
        predicted, confidence, receipt = (answer.as_numpy(name).ravel().tolist() for name in KINDS)
        told = [one.decode() for one in receipt]
        return [Reply(*one) for one in zip(predicted, confidence, told, strict=True)]

    return predict
