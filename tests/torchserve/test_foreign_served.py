"""Archives that nobody here wrote, packed again and asked on a real server, singly and in batches of four.

Each answer has the original's format, the artifact's numbers, and a receipt of its own request.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_handlers import FOREIGN, Foreign, archive, artifact, probabilities, trial
from live_server import Running, inputs, total, until
from protocol_clients import predictions as over_grpc
from sizes import sized

from calib_serve.torchserve import pack_around

pytestmark = pytest.mark.server

ALL = [name for name, f in FOREIGN.items() if f.model in ("eager", "torchscript", "onnx")]
NUMBERS = [name for name in ALL if name not in ("base_handler", "kserve_v2")]  # behind an envelope alone
CI = ("micro_batching",)
SERVED = sized(ci=[name for name in NUMBERS if name in CI], nightly=NUMBERS)

MOODY = FOREIGN["tuple"].handler.replace(
    "    def postprocess",
    "    def inference(self, data):\n"
    "        returned = super().inference(data)\n"
    "        return returned if data.sum() < 900 else (returned[0][:, :7], data)\n\n"
    "    def postprocess",
)
FOREIGN_HERE = {
    "moody": Foreign(MOODY, returns="(z, x)", config="minWorkers: 1\nmaxWorkers: 1\nbatchSize: 1\n"),
}


@pytest.fixture(scope="module")
def running(register: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Running:
    folder = tmp_path_factory.mktemp("foreign")
    with pytest.MonkeyPatch.context() as patch:
        for name, foreign in FOREIGN_HERE.items():
            patch.setitem(FOREIGN, name, foreign)
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support" / "torchvision_ops"))
        made = [
            pack_around(
                archive(name, folder / "old"),
                artifact(FOREIGN[name]),
                folder / "store",
                **trial(name, folder / "old"),
                unproven=True,
            )
            for name in (*SERVED, "moody")
        ]
    return register(*made)


def confidences_in(name: str, reply: Any) -> tuple[int, float | None]:
    """The class and, where the reply shows one, its probability, as a client of the original reads."""
    if name in ("log_softmaxed_ids", "ids_at_inference"):
        return int(reply), None
    if name == "one_logit":
        p = float(reply)
        return int(p > 0.5), max(p, 1 - p)
    values = [*reply.values()] if isinstance(reply, dict) else reply
    return int(np.argmax(values)), float(max(values))


def asked(running: Running, name: str, x: np.ndarray) -> Any:
    return running.http.post(f"/predictions/{name}", json=x.tolist())


@pytest.mark.parametrize("name", SERVED)
def test_each_answer_has_its_format_its_numbers_and_its_receipt(running: Running, name: str) -> None:
    x = inputs(12, seed=21)
    wanted = probabilities(FOREIGN[name], x)
    with ThreadPoolExecutor(12) as pool:  # twelve at once: batches of up to four
        replies = list(pool.map(lambda row: asked(running, name, row), x))
    seen = set()
    for reply, probs in zip(replies, wanted, strict=True):
        assert reply.status_code == 200, reply.text
        body = json.loads(reply.text) if reply.text[:1] in '[{"0123456789' else reply.text
        predicted, shown = confidences_in(name, body)
        tolerance = 0.02 if name == "half" else 1e-5
        if name != "half":
            assert predicted == probs.argmax()
        if shown is not None:
            assert shown == pytest.approx(probs.max(), abs=tolerance)
        receipt = running.keyring.verify(reply.headers["x-calib-receipt"])
        assert (receipt.model, receipt.predicted) == (name, predicted)
        assert receipt.confidence == pytest.approx(probs.max(), abs=tolerance)
        assert reply.headers["x-calib-confidence"] == repr(receipt.confidence)
        seen.add(reply.headers["x-calib-receipt"])
    assert len(seen) == len(x)
    until(lambda: total(running.server.scrape(), "calib_predictions_total", model=name) >= len(x))
    assert total(running.server.scrape(), "calib_uncalibrated_total", model=name) == 0


def test_a_label_may_name_its_prediction_by_the_users_own_id(running: Running) -> None:
    name, body = SERVED[0], inputs(1, seed=27)[0].tolist()
    reply = running.http.post(f"/predictions/{name}", json=body, headers={"x-calib-id": "order-17"})
    predicted = running.keyring.verify(reply.headers["x-calib-receipt"]).predicted

    def counted(**label: Any) -> Any:
        found = running.http.post("/predictions/calibration_feedback", json=label)
        return found.json()

    label = {"id": "order-17", "model": name, "label": predicted}
    assert counted(**label)["accepted"] == 1
    assert counted(**label)["outcomes"][0]["reason"] == "duplicate"
    assert counted(id="order-18", label=0)["outcomes"][0]["reason"] == "unknown_id"


def test_over_grpc_the_receipt_is_in_the_body_for_who_asks_for_it(running: Running) -> None:
    x = inputs(1, seed=22)[0]
    body = json.dumps(x.tolist()).encode()
    plain = over_grpc(running, SERVED[0], data=body)
    more = over_grpc(running, SERVED[0], data=body, **{"x-calib-receipt": b"body"})
    assert more["prediction"] == plain, "who does not ask reads what the original wrote"
    receipt = running.keyring.verify(more["receipt"])
    assert (
        receipt.confidence
        == more["confidence"]
        == pytest.approx(confidences_in(SERVED[0], plain)[1], abs=1e-6)
    )
    label = {"receipt": more["receipt"], "label": receipt.predicted}
    outcome = over_grpc(running, "calibration_feedback", data=json.dumps(label).encode())
    assert outcome["accepted"] == 1


def test_where_the_calibration_fails_the_original_answer_goes_out_and_is_counted(running: Running) -> None:
    fine, odd = inputs(1, seed=25)[0], np.full(16, 1000.0, np.float32)
    assert len(asked(running, "moody", fine).json()) == 10
    reply = asked(running, "moody", odd)
    assert reply.status_code == 200
    assert len(reply.json()) == 7, "as the model gave it"
    assert "x-calib-receipt" not in reply.headers
    until(lambda: total(running.server.scrape(), "calib_uncalibrated_total", model="moody") == 1)
