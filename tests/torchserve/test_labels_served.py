"""Multi-label and one-logit models on a real TorchServe: replies are numpy's, each label counts once.

The archives are our own and of people's handlers; receipts come back to the server and to a real
``calib-serve watch`` that has its keys.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_handlers import archive, weights
from label_handlers import (
    LABELS,
    NAMES,
    array_files,
    calibrated,
    labels_artifact,
    logits_of,
)
from live_server import CLASSES, Running, exported, inputs, total, until
from protocol_clients import checked, predictions
from sizes import sized

from calib_serve.torchserve import pack, pack_around

pytestmark = pytest.mark.server

FOREIGN_LABELS = sized(ci=("tagger",), nightly=("tagger", "after_sigmoid", "by_numpy", "decided", "one_tag"))
SUPPORT = Path(__file__).parents[1] / "support"
X = inputs(3, seed=41)


@pytest.fixture(scope="module")
def running(register: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Running:
    folder = tmp_path_factory.mktemp("labels")
    store, old = folder / "store", folder / "old"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT / "torchvision_ops"), prepend=os.pathsep)
        for name in FOREIGN_LABELS:
            foreign = LABELS[name]
            more = {**foreign.options, **({"outputs": "label_logits"} if name == "one_tag" else {})}
            more["probe_data"] = array_files(folder)
            pack_around(
                archive(name, old, foreign), labels_artifact(labels=foreign.out), store, **more, unproven=True
            )
        net = exported(folder / "ours.pt2", weights(CLASSES))
        pack(net, labels_artifact(), store, name="ours", batch_size=4, top=2, unproven=True)
    return register(*sorted(store.glob("*.mar")))


def send(running: Running, receipts: list[str], labels: list[Any]) -> None:
    """Each is counted, and only once."""
    items = [{"receipt": r, "label": y} for r, y in zip(receipts, labels, strict=True)]
    outcomes = running.label(items).json()
    assert (outcomes["accepted"], outcomes["refused"]) == (len(items), 0), outcomes

    # Until the server knows the version, its labels are held, sent again or not.
    def refused_as_duplicates() -> bool:
        return {one.get("reason") for one in running.label(items).json()["outcomes"]} == {"duplicate"}

    until(refused_as_duplicates)


def check_receipts(running: Running, told: list[dict[str, Any]], probs: np.ndarray, model: str) -> list[str]:
    """Of one row: each is of its own label, with the confidence of what is decided."""
    for k, (one, p) in enumerate(zip(told, probs, strict=True)):
        receipt = running.keyring.verify(one["receipt"])
        assert one["label"] in (k, NAMES[k])
        assert (receipt.model, receipt.predicted) == (model, 2 * k + (p >= 0.5))
        assert receipt.confidence == one["confidence"] == pytest.approx(max(p, 1 - p), abs=1e-6)
    return [one["receipt"] for one in told]


def test_our_own_reply_has_each_label_by_name(running: Running) -> None:
    wanted = calibrated(logits_of(X))
    for x, probs in zip(X, wanted, strict=True):
        reply = checked(running.http.post("/predictions/ours", json=x.tolist()))
        assert list(reply["probabilities"]) == list(NAMES)
        np.testing.assert_allclose([*reply["probabilities"].values()], probs, atol=1e-6)
        assert reply["predicted"] == np.flatnonzero(probs >= 0.5).tolist()
        assert reply["labels"] == [NAMES[k] for k in reply["predicted"]]
        assert [one["class"] for one in reply["top"]] == np.argsort(-probs)[:2].tolist()
        receipts = check_receipts(running, reply["receipts"], probs, "ours")
        send(running, receipts, [0, True, "tag 2", "not tag 3", *[1] * (CLASSES - 4)])


@pytest.mark.parametrize("name", FOREIGN_LABELS)
def test_a_foreign_reply_keeps_its_format_with_calibrated_labels(running: Running, name: str) -> None:
    out = LABELS[name].out
    wanted = calibrated(logits_of(X, out), out)
    for x, probs in zip(X, wanted, strict=True):
        reply = running.http.post(f"/predictions/{name}", json=x.tolist())
        told = reply.json()
        shown = told["scores"] if name == "tagger" else told
        if name == "decided":
            assert shown == np.flatnonzero(probs > 0.5).tolist()
        else:
            np.testing.assert_allclose(shown, probs, atol=1e-6)
        heads = [reply.headers[f"x-calib-{what}"].split(", ") for what in ("label", "confidence", "receipt")]
        each = [
            {"label": int(k), "confidence": float(c), "receipt": r} for k, c, r in zip(*heads, strict=True)
        ]
        send(running, check_receipts(running, each, probs, name), [k % 2 for k in range(out)])
    more = predictions(running, name, data=json.dumps(X[0].tolist()).encode(), **{"x-calib-receipt": b"body"})
    assert more["prediction"] == running.http.post(f"/predictions/{name}", json=X[0].tolist()).json()
    check_receipts(running, more["labels"], wanted[0], name)
    assert total(running.server.scrape(), "calib_uncalibrated_total", model=name) == 0
