"""Every place where bytes of others come in: reader's name -> what the program does with such a file.

A reader returns, or raises an error of ``calib_serve.core.errors``; anything else is a defect. What a reader
finds sound it also uses, so that a lie that passes a parser fails here and not in production.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from command_line import invoke
from ledgers import accept, make_label, sweep
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from real_watch import RING, make_watch, talk_to
from small_models import archive, everything, temperature

from calib_serve import Artifact, Keyring
from calib_serve.artifact import LogitMap
from calib_serve.artifact.manifest import digest, pack_tensors
from calib_serve.artifact.preprocessing import Preprocessing
from calib_serve.core.errors import CalibServeError, InputError
from calib_serve.core.files import sha256
from calib_serve.fuse import fuse_onnx
from calib_serve.integrations.collect.reading import read_label_rows
from calib_serve.ledger import Ledger
from calib_serve.models import load_model
from calib_serve.models.dataset import load_data
from calib_serve.models.labelled_texts import read_texts
from calib_serve.monitor import Detector
from calib_serve.monitor.contracts.check import read_contract
from calib_serve.monitor.versions import FollowedVersions
from calib_serve.receipts.samples import SampleLog, read_samples
from calib_serve.scores import Scores
from calib_serve.torchserve._decoding import decode
from calib_serve.torchserve.feedback import parse_items
from calib_serve.torchserve.mar_options import ModelOptions
from calib_serve.torchserve.properties import edit_properties, read_properties
from calib_serve.web import read_tokens

__all__ = ["READERS", "sound_archive", "warm_up"]

Reader = Callable[[Path], None]


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        yield Path(folder)


@functools.cache
def sound_params() -> bytes:
    """The tensors of an artifact of every step."""
    return pack_tensors(everything().steps, None)


def manifest(path: Path) -> None:
    """``manifest.yaml`` beside sound tensors."""
    with scratch() as folder:
        shutil.copy(path, folder / "manifest.yaml")
        (folder / "params.safetensors").write_bytes(sound_params())
        use_artifact(folder)


def params(path: Path) -> None:
    """``params.safetensors`` beside a manifest that names its hash."""
    content = path.read_bytes()
    with scratch() as folder:
        everything().save(folder / "a")
        facts = yaml.safe_load((folder / "a" / "manifest.yaml").read_text())
        facts.pop("sha256")
        facts["params_sha256"] = sha256(content)
        facts["sha256"] = digest(facts)
        (folder / "a" / "manifest.yaml").write_text(yaml.safe_dump(facts, allow_unicode=True))
        (folder / "a" / "params.safetensors").write_bytes(content)
        use_artifact(folder / "a")


def use_artifact(folder: Path) -> None:
    artifact = Artifact.load(folder)
    assert len(artifact.fingerprint) == 64
    if artifact.classes <= 1000:
        found = artifact.of_logits(np.linspace(-3, 3, artifact.classes)[None])
        assert np.isfinite(found).all()


def receipt(path: Path) -> None:
    """A receipt as a client sends it."""
    found = RING.verify(path.read_bytes().decode("utf-8", "surrogateescape"), now=NOW)
    assert len(found.nonce) == 10
    assert 0 <= found.confidence <= 1
    assert 0 < found.inclusion <= 1
    assert 0 <= found.group < 1 << 63


NOW = 1_700_000_000.0


def mar(path: Path) -> None:
    """A TorchServe archive: looked at, verified, listed for labels, inspected, packed again."""
    from calib_serve.torchserve import labelled_models, pack_around
    from calib_serve.torchserve.archive._archive import read_archive

    errors: list[CalibServeError] = []
    with scratch() as folder:
        out = folder / "out"
        copy = shutil.copy(path, folder / "x.mar")
        for work in (
            lambda: read_archive(copy, verify=False),
            lambda: ModelOptions.read(read_archive(copy).config),
            lambda: labelled_models([copy]),
            lambda: pack_around(copy, temperature(), out, untried=True, unproven=True),
        ):
            try:
                work()
            except CalibServeError as error:
                if "packed from a model" not in str(error):
                    errors.append(error)
        invoke(["inspect", str(copy)])  # an error of no tree of ours would come through
        assert not (out / ".." / "escaped").exists()
        assert {p.name for p in folder.iterdir()} <= {"x.mar", "out"}, "something left its folder"
    if errors:
        raise errors[0]


def model_config(path: Path) -> None:
    """The ``model-config.yaml`` of an archive that is sound otherwise."""
    with scratch() as folder:
        mar(sound_archive(folder / "config.mar", {"model-config.yaml": path.read_bytes()}))


def mar_manifest(path: Path) -> None:
    """The ``MAR-INF/MANIFEST.json`` of an archive that is sound otherwise."""
    with scratch() as folder:
        mar(sound_archive(folder / "manifest.mar", {"MAR-INF/MANIFEST.json": path.read_bytes()}))


@functools.cache
def sound_entries() -> dict[str, bytes]:
    """What a packed archive holds, by name."""
    with scratch() as folder, zipfile.ZipFile(archive(folder)) as packed:
        return {name: packed.read(name) for name in packed.namelist() if "SHA256" not in name}


def sound_archive(path: Path, changed: dict[str, bytes]) -> Path:
    """An archive with some of its files changed, and the list of hashes made right again."""
    entries = {**sound_entries(), **changed}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in entries.items()}
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in {**entries, "MAR-INF/SHA256.json": json.dumps(hashes).encode()}.items():
            packed.writestr(name, content)
    return path


@functools.cache
def served() -> Any:
    """A client of the watch app, one for all bodies: they must not spoil it for each other."""
    folder = Path(tempfile.mkdtemp(prefix="attack-watch-"))
    return talk_to(make_watch(folder, clock=lambda: NOW)).__enter__()


def request(path: Path, route: str) -> None:
    kind = "application/x-ndjson" if path.suffix == ".ndjson" else "application/json"
    body = path.read_bytes()
    answer = served().post(route, content=body, headers={"content-type": kind})
    assert answer.status_code in (200, 400, 413), answer.status_code
    told = json.loads(answer.content, parse_constant=not_json)
    assert len(answer.content) < 100_000 + 40 * len(body)
    if answer.status_code == 200:
        assert all(set(one) <= {"accepted", "held", "reason", "message", "receipt"} for one in told["items"])
    still_sound()


def not_json(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def still_sound() -> None:
    """Metrics can be parsed and have the series they had, and the page can be read."""
    families = list(text_string_to_metric_families(served().get("/metrics").text))
    counted = [s.labels for f in families for s in f.samples if s.name == "calib_predictions_total"]
    assert {(one["model"], one["version"]) for one in counted} == {("m", "1")}
    assert served().get("/").status_code == 200
    assert served().get("/healthz").status_code == 200


def labels(path: Path) -> None:
    """The body of POST /v1/labels."""
    request(path, "/v1/labels")


def predictions(path: Path) -> None:
    """The body of POST /v1/predictions."""
    request(path, "/v1/predictions")


def body(path: Path) -> None:
    """What TorchServe hands to the classifier, to an image classifier, and to the feedback model."""
    raw, errors = path.read_bytes(), []
    for shape in ((4,), (1, 4, 4), (3, 4, 4), (None,)):
        try:
            how = (
                Preprocessing(mean=(0.0,), std=(1.0,), resize=4, crop=(4, 4))
                if len(shape) == 3
                else "unknown"
            )
            found = decode(raw, shape=shape, pictures=how, max_pixels=1_000_000)
            assert found.ndim == len(shape)
            assert np.isfinite(found).all()
        except CalibServeError as error:
            errors.append(error)
    with scratch() as folder:
        watch = make_watch(folder, clock=lambda: NOW)
        try:
            assert all(one.accepted or one.reason for one in watch.intake.take(parse_items(raw)).outcomes)
        except CalibServeError as error:
            errors.append(error)
        finally:
            watch.ledger.close()
    if errors:
        raise errors[0]


def onnx(path: Path) -> None:
    """An ONNX graph: fused, and loaded as a classifier."""
    with scratch() as folder:
        (folder / "model").mkdir()
        copy = Path(shutil.copy(path, folder / "model" / "raw.onnx"))
        try:
            fuse_onnx(copy, temperature(), folder / "model" / "out.onnx", unproven=True)
        except CalibServeError:
            assert [p.name for p in (folder / "model").iterdir()] == ["raw.onnx"]
            raise
        finally:
            assert [p.name for p in folder.iterdir()] == ["model"], "something left its folder"
        model = load_model(copy)
        if np.prod(model.input_shape, dtype=float) < 1e6:
            model.logits(np.zeros((1, *model.input_shape), np.float32))


def logits(path: Path) -> None:
    """A file of logits, of any kind."""
    errors = []
    said: list[dict[str, Any]] = [{}, {"outputs": "logits"}, {"outputs": "logits", "columns": ["*"]}]
    ways = [{"split": split, **one} for split in (None, "cal") for one in said]
    for way in ways:
        try:
            found = Scores.read(path, **way)
            assert found.logits.dtype.kind in "fiub"
            float(np.asarray(found.logits[:1], np.float64).sum())
        except CalibServeError as error:
            errors.append(error)
    if len(errors) == len(ways):
        raise errors[0]


def data(path: Path) -> None:
    """A calibration set: an .npz, a folder of one .npy, a picture, or the list of pictures."""
    if path.suffix == ".npz":
        load_data(path)
        return
    with scratch() as folder:
        if path.suffix == ".csv":
            shutil.copy(path, folder / "labels.csv")
            (folder / "a.png").write_bytes(tiny_png())
        elif path.suffix == ".npy":
            shutil.copy(path, folder / "inputs.npy")
            np.save(folder / "labels.npy", np.zeros(2, int))
        else:
            shutil.copy(path, folder / f"a{path.suffix}")
            (folder / "labels.csv").write_text(f"file,label\na{path.suffix},0\n")
        load_data(folder, pictures={"mean": 0, "std": 1} if (folder / "labels.csv").is_file() else None)


def labelled_texts(path: Path) -> None:
    """A table of texts and their labels."""
    errors = []
    for split in (None, "cal"):
        try:
            found = read_texts(path, split)
            assert all(text.strip() for text in found.texts)
            assert len(found.labels) == len(found)
        except CalibServeError as error:
            errors.append(error)
    if len(errors) == 2:
        raise errors[0]


@functools.cache
def tiny_png() -> bytes:
    stream = io.BytesIO()
    Image.new("L", (4, 4)).save(stream, "PNG")
    return stream.getvalue()


def keyring(path: Path) -> None:
    """A keyring file of its owner's."""
    with scratch() as folder:
        shutil.copy(path, folder / "keys.json")
        (folder / "keys.json").chmod(0o600)
        ring = Keyring.load(folder / "keys.json")
        token = ring.sign(model="m", version="1", predicted=1, confidence=0.5)
        assert ring.verify(token).key_id == ring.active
        ring.rotated().save(folder / "keys.json")


def properties(path: Path) -> None:
    """A config.properties to start from."""
    found = read_properties(path)
    with scratch() as folder:
        text = edit_properties(path.read_bytes().decode(), {"load_models": "m.mar"})
        (folder / "changed").write_bytes(text.encode())
        assert read_properties(folder / "changed") == {**found, "load_models": "m.mar"}
        assert text.count("load_models=m.mar\n") == 1


def samples(path: Path) -> None:
    """A shard of the sample log."""
    with scratch() as folder:
        shutil.copy(path, folder / "predictions-000001700000000-1-aa.npz")
        shutil.copy(path, folder / "labels-000001700000001-1-aa.npz")
        found = read_samples(folder, model="m", version="1")
        assert len(found.logits) == len(found.labels) == len(found.times)
        SampleLog(folder, max_bytes=1).flush()


def ledger(path: Path) -> None:
    """An SQLite file where a ledger should be."""
    with scratch() as folder:
        shutil.copy(path, folder / "l.db")
        book = Ledger(folder / "l.db")
        try:
            accept(book, [make_label(i) for i in range(20)])
            book.sums()
            book.dated(0.0, 1e12)
            for version in book.followers.waiting():
                book.followers.take(version, until=1e12, most=100)
            sweep(book, 1e12)
        finally:
            book.close()


def detector(path: Path) -> None:
    """A drift detector's state, as the ledger kept it."""
    found = Detector.restore(path.read_bytes())
    found.update([0.5, 0.9], [True, False])
    Detector.restore(found.state())


def labels_file(path: Path) -> None:
    """A table of labels to send."""
    for row in read_label_rows(path):
        for letter in row.dead:
            raise InputError(letter.message)


def tokens(path: Path) -> None:
    """A file of access tokens."""
    with scratch() as folder:
        shutil.copy(path, folder / "tokens")
        (folder / "tokens").chmod(0o600)
        assert all(len(one.digest) == 32 for one in read_tokens(folder / "tokens"))


def models_list(path: Path) -> None:
    """The list of models whose labels are accepted."""
    assert FollowedVersions(path).changed()


def weights(path: Path) -> None:
    """The weights of an eager model: safetensors, or what ``torch.save`` wrote."""
    load_model("readers:linear", weights=path, input_shape=(4,))


def linear() -> Any:
    """The model of the weights."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(4, 3))


def contract(path: Path) -> None:
    """A contract, set in an artifact of classes whose names look like ids, written and read again."""
    names = ("1", "no", "2")
    fitted = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3, class_names=names)
    found = read_contract(path, fitted)
    with scratch() as folder:
        again = Artifact.load(replace(fitted, contract=found).save(folder / "a")).contract
    assert again is not None
    assert again == found
    assert all(found.says(names))
    json.dumps([one.id for one in found.clauses]).encode()
    found.acts([0.0, 0.5, 1.0, float("nan")], [0, 1, 2, 0], ["", "de", "no", "x"])


READERS: dict[str, Reader] = {
    one.__name__: one
    for one in (
        manifest, params, receipt, mar, model_config, mar_manifest, labels, predictions, body, onnx, logits,
        data, labelled_texts, keyring, properties, samples, ledger, detector, labels_file, tokens,
        models_list, weights, contract,
    )
}  # fmt: skip


def warm_up() -> None:
    """Import and build all that readers need, so that limits are about the bytes alone."""
    import onnxruntime  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch

    torch.set_num_threads(1)
    sound_params(), sound_entries(), tiny_png(), served()
