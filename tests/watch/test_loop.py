"""The loop closed on a real TorchServe: drift, alarm, refit, a new version swapped in, ECE back down."""

import json
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.bins import Bins
from calib_serve.cli import app as cli
from calib_serve.fuse.torchserve import Batching, labelled_models, pack, pack_feedback
from calib_serve.metrics import softmax
from calib_serve.receipts import Keyring
from calib_serve.serve.properties import Ports
from calib_serve.serve.server import Server
from calib_serve.watch.samples import SampleLog

pytestmark = pytest.mark.server

WIDTH, CLASSES, DRIFT = 16, 5, 3.0


def network():
    generator = torch.Generator().manual_seed(1)
    net = torch.nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.6)
    return net.eval()


def ask(client, keyring, x):
    def one(row):
        answer = client.post("/predictions/digits", json=row.tolist()).raise_for_status().json()
        return answer, keyring.verify(answer["receipt"])

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, x))


def send_labels(client, answers, labels):
    items = [{"receipt": a["receipt"], "label": int(y)} for (a, _), y in zip(answers, labels, strict=True)]
    for at in range(0, len(items), 200):
        body = client.post("/predictions/calibration_feedback", json=items[at : at + 200]).json()
        assert body["refused"] == 0, body


def ece(answers, labels):
    c = [a["confidence"] for a, _ in answers]
    return Bins.tally(c, [a["predicted"] == y for (a, _), y in zip(answers, labels, strict=True)]).ece()


def swap(server, store, version):
    """Register a version, make it the default, and let the feedback model know it."""
    headers = {"Authorization": f"Bearer {server.tokens.management}"}
    with server.client() as client:

        def call(method, path, **query):
            url = f"{server.management}{path}"
            client.request(method, url, params=query, headers=headers).raise_for_status()

        (server.folder / "models.json").write_text(
            json.dumps(json.loads((server.folder / "models.json").read_text()) + labelled_models([store]))
        )
        call("PUT", "/models/calibration_feedback", min_worker=0, max_worker=0, synchronous="true")
        call("PUT", "/models/calibration_feedback", min_worker=1, max_worker=1, synchronous="true")
        call("POST", "/models", url=store.name, initial_workers=1, synchronous="true")
        call("PUT", f"/models/digits/{version}/set-default")


def test_after_drift_a_refit_version_is_swapped_in_and_ece_comes_down(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is what TorchServe is given
        torch.jit.save(torch.jit.script(network()), str(tmp_path / "net.pt"))
    facts = {"model": {"input_shape": [WIDTH]}}
    Artifact((LogitMap.temperature(1.0),), method="temperature", classes=CLASSES, **facts).save(
        tmp_path / "old"
    )
    store = tmp_path / "store"
    one = Batching(workers=1, batch_size=8)
    pack(tmp_path / "net.pt", tmp_path / "old", store, name="digits", version="1.0", batching=one)
    pack_feedback(store, arl=10_000, maturity="0")
    folder = tmp_path / "serving"
    folder.mkdir()
    keyring = Keyring.new()
    keyring.save(folder / "keyring.json")
    server = Server(
        store,
        ["digits.mar", "calibration_feedback.mar"],
        folder=folder,
        ports=Ports.free(),
        settings={"enable_model_api": "true"},
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(650, WIDTH)).astype("f4")
    z = network()(torch.from_numpy(x)).detach().numpy()
    # The world has changed: what the model is sure of is far less sure.
    y = np.array([rng.choice(CLASSES, p=p) for p in softmax(z / DRIFT)])
    with server, server.client() as client:
        before = ask(client, keyring, x[:350])
        send_labels(client, before, y[:350])
        log = SampleLog(tmp_path / "log", rate=1.0)
        log.predicted(
            "digits", "1.0", [r.nonce for _, r in before], z[:350], times=[r.time for _, r in before]
        )
        log.labelled(labels_of(before, y[:350]))
        log.close()
        until(lambda: alarms(server) >= 1)

        out = tmp_path / "new"
        refit = (
            f"refit {store / 'digits.mar'} --samples {tmp_path / 'log'} -o {out} --method temperature "
            "--new-version 1.1"
        )
        result = CliRunner().invoke(cli, refit.split())
        assert result.exit_code == 0, result.output
        swap(server, store / "digits-1.1.mar", "1.1")

        after = ask(client, keyring, x[350:])
        assert {r.version for _, r in after} == {"1.1"}
        send_labels(client, after, y[350:])
    assert ece(before, y[:350]) > 0.2
    assert ece(after, y[350:]) < 0.1
    assert Path(out / "manifest.yaml").exists()


def labels_of(answers, labels):
    from calib_serve.receipts import Label

    return [Label(receipt, int(y)) for (_, receipt), y in zip(answers, labels, strict=True)]


def alarms(server):
    lines = server.scrape().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("calib_drift_alarms_total{"))


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not true within {seconds} s"
        time.sleep(0.2)
