"""An archive with another artifact in the shadow of the served one, and a contract, on a real TorchServe."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from live_server import (
    CLASSES,
    Running,
    exported,
    foreign,
    inputs,
    network,
    temperature_artifact,
    total,
    until,
)

from calib_serve.artifact import Clause, Contract
from calib_serve.ledger import Ledger
from calib_serve.monitor.contracts.states import contract_states
from calib_serve.monitor.shadow import shadow_states
from calib_serve.monitor.windows import Maturity
from calib_serve.receipts import shadow_tag
from calib_serve.scores import softmax
from calib_serve.torchserve import pack, pack_around, recalibrated, same_model

pytestmark = pytest.mark.server

V = ("shadowed", "1.0")
CONTRACT = Contract((Clause(0.5, above=0.6),))
SERVED = temperature_artifact(2.0, contract=CONTRACT)
SHADOW = temperature_artifact(0.5)
X = inputs(60, seed=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shadows")
    pack(
        exported(folder / "net.pt2"),
        SERVED,
        folder / "store",
        name="shadowed",
        shadow=SHADOW,
        unproven=True,
    )
    return folder / "store"


@pytest.fixture(scope="module")
def running(
    register: Callable[..., Running], store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Running:
    # A worker's own archive with a shadow that was damaged on its way.
    damaged = tmp_path_factory.mktemp("damaged")
    with zipfile.ZipFile(store / "shadowed.mar") as whole, zipfile.ZipFile(damaged / "d.mar", "w") as less:
        for name in whole.namelist():
            if not name.startswith("shadow/params"):
                less.writestr(name, whole.read(name).replace(b'"shadowed"', b'"damaged"'))
    return register(store / "shadowed.mar", (damaged / "d.mar").rename(damaged / "damaged.mar"))


def test_receipts_say_what_the_shadow_would_have_and_labels_count_for_both(running: Running) -> None:
    logits = network()(torch.from_numpy(X)).detach().numpy().astype(float)
    replies = [reply.json() for reply in running.predict_all(X)]
    receipts = [running.keyring.verify(one["receipt"]) for one in replies]
    expected = softmax(logits / 0.5)
    for one, p in zip(receipts, expected, strict=True):
        assert one.shadow is not None
        assert one.shadow.tag == shadow_tag(SHADOW.fingerprint)
        assert one.shadow.predicted == p.argmax()
        assert one.shadow.confidence == pytest.approx(p.max(), abs=1e-6)
    acted = softmax(logits / 2.0).max(axis=1) >= 0.6
    assert [one["act"] for one in replies] == acted.tolist()
    assert 0 < acted.sum() < len(acted)
    told = [{"receipt": one["receipt"], "label": one["predicted"]} for one in replies]
    assert running.label(told).json()["accepted"] == len(X)
    ledger = Ledger(running.server.folder / "ledger.sqlite")
    try:
        until(lambda: [one.labels for one in shadow_states(ledger, V)] == [len(X)])
        (state,) = contract_states(ledger, V, CONTRACT, maturity=Maturity(0.0, given=True), now=2e9)
        assert state.labels == acted.sum()
    finally:
        ledger.close()


def test_a_broken_shadow_is_counted_and_changes_no_reply(running: Running) -> None:
    whole, broken = running.predict(X[0].tolist()).json(), running.predict(X[0].tolist(), "damaged").json()
    same = ("predicted", "confidence", "act", "probabilities")
    assert {name: whole[name] for name in same} == {name: broken[name] for name in same}
    assert running.keyring.verify(broken["receipt"]).shadow is None
    until(lambda: total(running.server.scrape(), "calib_monitor_errors_total", stage="shadow") >= 1)


def test_archives_of_one_model_are_told_from_those_of_another(store: Path, tmp_path: Path) -> None:
    again = recalibrated(store / "shadowed.mar", SHADOW, tmp_path, version="1.1")
    other = torch.nn.Linear(16, CLASSES)
    pack(
        exported(tmp_path / "other.pt2", other),
        SERVED,
        tmp_path,
        name="digits",
        version="1.2",
        unproven=True,
    )
    assert same_model(store / "shadowed.mar", again)
    assert not same_model(store / "shadowed.mar", tmp_path / "digits.mar")
    code = "class H:\n    def initialize(self, context): pass\n    def inference(self, x): return x\n"
    code += "    def handle(self, data, context): return []\n"
    wrapped = [
        pack_around(
            foreign(tmp_path, name, f"{code}# {name}"), SERVED, tmp_path / name, untried=True, unproven=True
        )
        for name in ("one", "two")
    ]
    assert same_model(wrapped[0], recalibrated(wrapped[0], SHADOW, tmp_path, version="2"))
    assert not same_model(*wrapped)
