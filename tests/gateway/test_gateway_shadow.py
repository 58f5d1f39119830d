"""A shadow in the gateway: on the same output as the artifact that is served, in every receipt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gateways import CLASSES, artifact, gateway, logits
from recording_server import recording, reply
from test_counting import receipts
from test_hostile import document, post

from calib_serve import Artifact, InputShift, Keyring, LogitMap, Watch
from calib_serve.errors import CalibServeError
from calib_serve.gateway.opening import Named, open_gateway
from calib_serve.metrics import softmax

pytestmark = pytest.mark.server


def temperature(t: float, classes: int = CLASSES) -> Artifact:
    return Artifact((LogitMap.temperature(t),), method="temperature", classes=classes)


def test_every_receipt_says_what_the_shadow_made_of_the_same_output(tmp_path: Path) -> None:
    artifact().save(tmp_path / "artifact")
    shadow = temperature(0.5)
    shadow.save(tmp_path / "shadow")
    option = ["--shadow", f"digits={tmp_path / 'shadow'}"]
    with recording() as server:
        server.answer = lambda _: reply(document())
        with gateway(
            tmp_path, server.url, "--output", "logits", *option, models=(f"digits={tmp_path / 'artifact'}",)
        ) as running:
            ring = Keyring.load(tmp_path / "keys.json")
            found = [ring.verify(one) for one in receipts(post(running))]
            assert running.series("calib_monitor_errors_total")['{stage="shadow"}'] == 0
    served, beside = (softmax(logits().astype("f8") / t) for t in (2.0, 0.5))
    assert [one.confidence for one in found] == pytest.approx(served.max(axis=1).tolist())
    assert [one.shadow.confidence for one in found] == pytest.approx(beside.max(axis=1).tolist(), rel=1e-6)
    assert [one.shadow.predicted for one in found] == np.argmax(beside, axis=1).tolist()
    assert {one.shadow.tag.hex() for one in found} == {shadow.fingerprint[:8]}


@pytest.mark.parametrize(
    ("shadow", "option", "told"),
    [
        (temperature(0.5, 4), "{}", "3 classes"),
        (
            Artifact((InputShift(np.ones(4)), LogitMap.temperature(2.0)), method="x", classes=CLASSES),
            "{}",
            "changes the model in other ways",
        ),
        (temperature(0.5), "cats={}", "none of the models given"),
        (temperature(0.5), "digits={}/nowhere", "nowhere"),
    ],
)
def test_a_shadow_that_cannot_run_there_is_refused_at_the_start(
    shadow: Artifact, option: str, told: str, tmp_path: Path
) -> None:
    shadow.save(tmp_path / "shadow")
    models = {("digits", "1"): CLASSES}
    ring = Keyring.new()
    with Watch.open(models, keyring=ring, ledger=tmp_path / "ledger.db") as watch:
        opened = open_gateway(
            models,
            "http://127.0.0.1:1",
            output=Named.read(["logits"], "--output"),
            scores=Named.read(["logits"], "--scores"),
            keyring=ring,
            watch=watch,
            shadow=Named.read([option.format(tmp_path / "shadow")], "--shadow"),
        )
        with pytest.raises(CalibServeError, match=told), opened:
            pass
