"""Archives that nobody here wrote, packed again and asked on a real server, singly and in batches of four.

Each answer has the original's format, the artifact's numbers, and a receipt of its own request.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreign_handlers import FOREIGN, Foreign, archive, artifact, probabilities
from live_server import Running, inputs, total, until
from protocol_clients import predictions as over_grpc
from sizes import sized

from calib_serve.fuse.torchserve import pack_around
from calib_serve.seam.request import made_up

pytestmark = pytest.mark.server

ALL = [name for name, f in FOREIGN.items() if not f.refused and f.model in ("eager", "torchscript", "onnx")]
NUMBERS = [name for name in ALL if name not in ("base_handler", "kserve_v2")]  # behind an envelope alone
CI = ("micro_batching",)
SERVED = sized(ci=[name for name in NUMBERS if name in CI], nightly=NUMBERS)

CACHED = FOREIGN["own_handle"].handler.replace(
    "    def handle(self, data, context):\n",
    "    kept = {}\n\n"
    "    def handle(self, data, context):\n"
    "        key = str(rows(data).tolist())\n"
    "        if key not in self.kept:\n"
    "            self.kept[key] = self.answered(data, context)\n"
    "        return self.kept[key]\n\n"
    "    def answered(self, data, context):\n",
)
MOODY = FOREIGN["tuple"].handler.replace(
    "    def postprocess",
    "    def inference(self, data):\n"
    "        returned = super().inference(data)\n"
    "        return returned if data.sum() < 900 else (returned[0][:, :7], data)\n\n"
    "    def postprocess",
)
FOREIGN_HERE = {
    "cached": Foreign(CACHED, config="minWorkers: 1\nmaxWorkers: 1\nbatchSize: 1\n"),
    "moody": Foreign(MOODY, returns="(z, x)", config="minWorkers: 1\nmaxWorkers: 1\nbatchSize: 1\n"),
}


@pytest.fixture(scope="module")
def running(register: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Running:
    folder = tmp_path_factory.mktemp("foreign")
    more = sized(ci=("moody",), nightly=("moody", "cached", "image_classifier", "text_classifier"))
    with pytest.MonkeyPatch.context() as patch:
        for name, foreign in FOREIGN_HERE.items():
            patch.setitem(FOREIGN, name, foreign)
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support" / "torchvision_ops"))
        made = [
            pack_around(
                archive(name, folder / "old"),
                artifact(FOREIGN[name]),
                folder / "store",
                **FOREIGN[name].options,
            )
            for name in (*SERVED, *more)
        ]
    return register(*made)


def confidences_in(name: str, reply: Any) -> tuple[int, float | None]:
    """The class and, where the reply shows one, its probability, as a client of the original reads."""
    if name == "log_softmaxed_ids":
        return int(reply), None
    if name == "ids_at_inference":
        return int(reply), None
    if name == "names_at_inference":
        return int(str(reply).removeprefix("class ")), None
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


@pytest.mark.nightly
def test_torchserve_s_own_image_classifier_answers_a_picture_and_its_label_by_name(running: Running) -> None:
    (picture,) = [one for one in made_up([3, 64, 48]) if one.content_type == "image/png"][:1]
    reply = running.http.post("/predictions/image_classifier", content=picture.body)
    names = reply.json()
    assert len(names) == 5
    assert all(name.startswith("thing ") for name in names)
    receipt = running.keyring.verify(reply.headers["x-calib-receipt"])
    assert names[f"thing {receipt.predicted}"] == pytest.approx(receipt.confidence, abs=1e-6)
    label = {"receipt": reply.headers["x-calib-receipt"], "label": f"thing {receipt.predicted}"}
    assert running.label(label).json()["accepted"] == 1


@pytest.mark.nightly
def test_torchserve_s_own_text_classifier_answers_words_with_its_numbers(
    running: Running, tmp_path: Path
) -> None:
    with zipfile.ZipFile(archive("text_classifier", tmp_path)) as mar:
        weights = torch.load(io.BytesIO(mar.read("weights.pt")))
    # "words that say nothing": the numbers 2 to 5 of the vocabulary, and 3 for each of three pairs.
    mean = weights["embedding.weight"][[2, 3, 4, 5, 3, 3, 3]].mean(0)
    logits = weights["last.weight"] @ mean + weights["last.bias"]
    wanted = torch.softmax(logits / 2, 0).numpy()
    reply = running.http.post("/predictions/text_classifier", content=b"<b>Words</b> that say NOTHING!")
    assert reply.status_code == 200, reply.text
    assert reply.json() == pytest.approx({str(k): p for k, p in enumerate(wanted)}, abs=1e-6)
    receipt = running.keyring.verify(reply.headers["x-calib-receipt"])
    assert (receipt.model, receipt.predicted) == ("text_classifier", wanted.argmax())
    assert receipt.confidence == pytest.approx(wanted.max(), abs=1e-6)


@pytest.mark.nightly
def test_answers_that_went_by_the_calibration_are_counted(running: Running) -> None:
    x = inputs(1, seed=24)[0]
    first, second = asked(running, "cached", x), asked(running, "cached", x)
    assert first.text == second.text
    assert "x-calib-receipt" in first.headers
    assert "x-calib-receipt" not in second.headers
    until(lambda: total(running.server.scrape(), "calib_uncalibrated_total", model="cached") == 1)


def test_where_the_calibration_fails_the_original_answer_goes_out_and_is_counted(running: Running) -> None:
    fine, odd = inputs(1, seed=25)[0], np.full(16, 1000.0, np.float32)
    assert len(asked(running, "moody", fine).json()) == 10
    reply = asked(running, "moody", odd)
    assert reply.status_code == 200
    assert len(reply.json()) == 7, "as the model gave it"
    assert "x-calib-receipt" not in reply.headers
    until(lambda: total(running.server.scrape(), "calib_uncalibrated_total", model="moody") == 1)
