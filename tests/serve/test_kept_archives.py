"""Archives and a Triton repository that version 0.1.0 packed still serve, unchanged, on today's code.

An archive names modules of this package, which makes their paths a file format. The files in
``tests/kept/version-0.1.0`` are never made again.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from live_server import Running, serve

from calib_serve import Keyring, Label
from calib_serve.errors import ModelError
from calib_serve.fuse.mar_options import ModelOptions
from calib_serve.fuse.sessions import open_session
from calib_serve.fuse.torchserve.archive import read_archive
from calib_serve.serve.classifier import CalibratedClassifier
from calib_serve.watch.ledger import Entry, Key, open_ledger
from calib_serve.watch.samples import read_samples
from calib_serve.watch.series import SEGMENTS, SERIES, WATCH

with warnings.catch_warnings():  # it leaves its version file open
    warnings.simplefilter("ignore", ResourceWarning)
    from ts.context import Context, RequestProcessor

KEPT = Path(__file__).parents[1] / "kept" / "version-0.1.0"
EXPECTED = json.loads((KEPT / "expected.json").read_text())
ARCHIVES = ("from_eager", "from_onnx", "from_torchscript")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("kept")
    store = folder / "store"
    store.mkdir()
    for path in KEPT.glob("*.mar"):
        shutil.copy(path, store)
    names = sorted(path.name for path in store.iterdir())
    yield from serve(store, names, folder / "run")


@pytest.mark.server
@pytest.mark.parametrize("model", ARCHIVES)
def test_a_kept_archive_answers_as_it_did(running: Running, model: str) -> None:
    for row, wanted in zip(EXPECTED["inputs"], EXPECTED["probabilities"], strict=True):
        reply = running.predict(row, model)
        assert reply.status_code == 200, reply.text
        np.testing.assert_allclose(reply.json()["probabilities"], wanted, rtol=1e-5)
        assert running.keyring.verify(reply.json()["receipt"]).model == model


@pytest.mark.server
def test_a_kept_wrapped_archive_answers_as_it_did(running: Running) -> None:
    for row, wanted in zip(EXPECTED["inputs"], EXPECTED["probabilities"], strict=True):
        reply = running.http.post("/predictions/wrapped", json=row)
        assert reply.status_code == 200, reply.text
        np.testing.assert_allclose(reply.json(), wanted, rtol=1e-5)
        assert running.keyring.verify(reply.headers["x-calib-receipt"]).model == "wrapped"


@pytest.mark.server
def test_a_kept_feedback_archive_counts_labels_of_the_kept_models(running: Running) -> None:
    receipts = [running.predict(EXPECTED["inputs"][0], model).json()["receipt"] for model in ARCHIVES]
    items = [{"receipt": receipt, "label": 1} for receipt in receipts]
    assert running.label(items).json()["accepted"] == len(ARCHIVES)
    assert running.label(items).json()["accepted"] == 0


@pytest.mark.parametrize("model", ["squeezed", "normalised"])
def test_a_kept_archive_of_pictures_answers_as_it_did_and_warns_of_what_it_does_not_say(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = KEPT / "pictures"
    with zipfile.ZipFile(folder / f"{model}.mar") as archive:
        archive.extractall(tmp_path)
    manifest = json.loads((tmp_path / "MAR-INF" / "MANIFEST.json").read_text())
    config = dict(read_archive(folder / f"{model}.mar").config)
    ctx = Context(model, str(tmp_path), manifest, 8, None, "0.12", model_yaml_config=config)
    handler = CalibratedClassifier()
    handler.initialize(ctx)
    ctx.request_processor = [RequestProcessor({})]
    (reply,) = handler.handle([{"body": bytearray((folder / "picture.png").read_bytes())}], ctx)
    wanted = json.loads((folder / "expected.json").read_text())[model]
    np.testing.assert_allclose(json.loads(reply)["probabilities"], wanted, rtol=1e-6)
    warned = caplog.text.count("does not say how pictures are prepared")
    assert warned == (1 if model == "squeezed" else 0)


def test_settings_of_before_that_no_picture_could_follow_leave_arrays_served() -> None:
    section = {"kind": "onnx", "model": "m", "sha256": "", "input_shape": [1, 4, 4], "mean": [0.1, 0.2, 0.3]}
    assert ModelOptions.read({"calib_serve": section}).pictures == "unknown"
    section |= {"input_shape": [16]}
    assert ModelOptions.read({"calib_serve": section}).pictures is None
    with pytest.raises(ModelError, match=r"unknown keys .*mean"):
        ModelOptions.read({"calib_serve": {**section, "pictures": "unknown"}})
    del section["mean"]
    for pictures in ("none", [], {"mean": 0}, {"mean": 0, "std": 1}):
        with pytest.raises(ModelError, match="cannot be read"):
            ModelOptions.read({"calib_serve": {**section, "pictures": pictures}})


def test_a_kept_triton_repository_still_finds_its_step_and_its_graph_its_numbers() -> None:
    assert _module(KEPT / "triton" / "pets_receipts" / "1" / "model.py").TritonPythonModel.execute
    session = open_session(str(KEPT / "triton" / "pets_onnx" / "1" / "model.onnx"))
    (found,) = session.run(["probabilities"], {"x": np.array(EXPECTED["inputs"], np.float32)})
    np.testing.assert_allclose(found, EXPECTED["probabilities"], rtol=1e-5)


def test_a_kept_ledger_knows_its_labels_and_counts_no_label_twice(tmp_path: Path) -> None:
    shutil.copy(KEPT / "ledger.db", tmp_path)
    book = open_ledger(str(tmp_path / "ledger.db"), writer="w1")
    try:
        (sums,) = book.sums().values()
        assert (sums.predictions.sum(), sums.feedback.n, sums.feedback.correct.sum()) == (3, 2, 2)
        ring = _keyring(tmp_path)
        kept = [ring.verify(token, now=EXPECTED["time"] + 1) for token in EXPECTED["receipts"]]
        labels = [Label(receipt, 1) for receipt in kept]
        entries = [Entry(one, EXPECTED["time"] + 1, (Key("pets", "1"),)) for one in labels]
        assert book.accept(entries) == ["duplicate", "duplicate", "counted"]
    finally:
        book.close()


def test_a_kept_sample_log_is_read() -> None:
    found = read_samples(KEPT / "samples", model="pets", version="1")
    assert found.labels.tolist() == EXPECTED["counted"]
    np.testing.assert_allclose(found.logits, EXPECTED["logits"][:2], atol=5e-3)  # float16


def test_every_series_of_before_is_still_published_with_its_labels() -> None:
    now = {s.name: {"name": s.name, "kind": s.kind, "labels": list(s.labels)} for s in _series()}
    for kept in json.loads((KEPT / "series.json").read_text()):
        assert now.get(kept["name"]) == kept


def _series() -> tuple:
    return (*SERIES, *SEGMENTS, *WATCH)


def _keyring(folder: Path) -> Keyring:
    copy = folder / "keyring.json"
    shutil.copy(KEPT / "keyring.json", copy)
    copy.chmod(0o600)  # git keeps no such bits
    return Keyring.load(copy)


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("kept_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kept_model"] = module
    spec.loader.exec_module(module)
    return module
