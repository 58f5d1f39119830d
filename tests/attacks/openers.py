"""Every file that is opened by its path: a name for it, and what opens it; a new one is a line more.

The readers of ``readers`` are given bytes; these are given what is no file of bytes: a pipe that nobody
writes to, a device that never ends, a file of terabytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import readers
from attack_bytes import external
from readers import Reader, scratch, sound_params, tiny_png
from small_models import everything, temperature

from calib_serve import Artifact, Keyring
from calib_serve.app.fit import shares
from calib_serve.core.addresses import password_of
from calib_serve.core.errors import FuseError
from calib_serve.core.files import own_folder, read_whole
from calib_serve.fuse import fuse_onnx
from calib_serve.fuse.triton._publish import Pack
from calib_serve.gateway.app import _pair
from calib_serve.integrations.collect.kafka import kafka_settings
from calib_serve.integrations.collect.reading import read_label_rows
from calib_serve.ledger import Ledger
from calib_serve.models import load_model
from calib_serve.models.dataset import load_data
from calib_serve.models.labelled_texts import read_texts
from calib_serve.monitor import read_contract
from calib_serve.monitor.versions import FollowedVersions
from calib_serve.receipts.client import read_token
from calib_serve.receipts.destination import Batch
from calib_serve.receipts.environment import host_setting
from calib_serve.receipts.samples import read_samples
from calib_serve.receipts.spool import Spool
from calib_serve.scores import Scores
from calib_serve.torchserve.archive._archive import read_archive
from calib_serve.torchserve.configuration import adjusted
from calib_serve.torchserve.management import Tokens
from calib_serve.torchserve.metrics_file import undeclared
from calib_serve.torchserve.promotion import Host
from calib_serve.torchserve.properties import read_properties
from calib_serve.torchserve.seam._requests import Request
from calib_serve.web import read_tokens

__all__ = ["OPENERS", "READERS"]

Opener = Callable[[Path], object]


def inputs(path: Path) -> object:
    np.save(path.parent / "labels.npy", np.arange(2))
    return load_data(path.parent)


def labels(path: Path) -> None:
    with suppress(OSError):  # of a file that is gone, which whoever sends labels says
        for _ in read_label_rows(path):
            pass


def waiting(path: Path) -> object:
    """The form on disk of a batch that waits for a watch; another is set aside."""
    with suppress(OSError, ValueError, TypeError):
        batch = Batch.read("a-1", read_whole(path))
        return sum(batch.counts), batch.json()
    return None


def spooled(path: Path) -> object:
    own_folder(path.parent.parent).rmdir()
    path.parent.chmod(0o700)
    path.parent.rename(own_folder(path.parent.parent))
    spool = Spool(path.parent.parent, lambda *_: None)
    return [spool.read(name) for name in spool.names()]


def manifest(path: Path) -> object:
    (path.parent / "params.safetensors").write_bytes(sound_params())
    return Artifact.load(path.parent)


def params(path: Path) -> object:
    sound = everything().save(path.parent.parent / "sound")
    shutil.copy(sound / "manifest.yaml", path.parent)
    return Artifact.load(path.parent)


def picture(path: Path) -> object:
    (path.parent / "labels.csv").write_text("file,label\na.png,0\nb.png,1\n")
    (path.parent / "b.png").write_bytes(tiny_png())
    return np.asarray(load_data(path.parent, pictures={"mean": [0.0], "std": [1.0]}).inputs[:])


def graph_alone(path: Path) -> object:
    return fuse_onnx(path, temperature(), path.parent / "out.onnx", unproven=True)


def graph_with_data(path: Path) -> object:
    graph = path.parent / "raw.onnx"
    graph.write_bytes(external(path.name))
    fuse_onnx(graph, temperature(), path.parent / "out.onnx", unproven=True)
    return load_model(graph).logits(np.zeros((1, 4), np.float32))


def repository(path: Path) -> object:
    """Settings of Triton where a new version is packed beside."""
    pack = Pack(path.parent.parent / "new", path.parent.parent, "m", 2, (path.parent.name, "m"))
    new = pack.place / path.parent.name / path.name
    new.parent.mkdir(parents=True, exist_ok=True)
    new.write_text("name: 'm'")
    with suppress(FuseError):  # no part of it, or of other settings
        return [*pack._compare(path.parent.name)]
    return pack.check()


TABLES = (".csv", ".jsonl", ".parquet")
OPENERS: dict[str, tuple[str, Opener]] = {
    "manifest": ("manifest.yaml", manifest),
    "params": ("params.safetensors", params),
    "keyring": ("keys.json", Keyring.load),
    "tokens": ("tokens", read_tokens),
    "token": ("token", read_token),
    "password": ("password", lambda p: password_of("x", "NONE", {"NONE_FILE": str(p)})),
    "kafka": ("kafka.properties", kafka_settings),
    "certificate": ("cert.pem", lambda p: _pair(p, p)),
    "properties": ("config.properties", read_properties),
    "server": ("config.properties", lambda p: adjusted(p, {}, {}, metrics=p.parent / "metrics.yaml")),
    "metrics": ("metrics.yaml", undeclared),
    "key_file": ("key_file.json", Tokens.read),
    "environment": ("environment.json", lambda p: host_setting(p.parent, "CALIB_SERVE_LEDGER")),
    "promotions": ("promotions.json", lambda p: Host(p.parent, p.parent).exchanges()),
    "contract": ("contract.yaml", lambda p: read_contract(p, Artifact((), method="none", classes=3))),
    "versions": ("models.json", lambda p: FollowedVersions(p).changed()),
    "shares": ("shares.yaml", lambda p: shares(str(p))),
    "probe": ("request.json", Request.of_file),
    **{
        f"scores{ending}": (f"scores{ending}", lambda p: Scores.read(p).logits[:1])
        for ending in (
            ".csv", ".tsv", ".jsonl", ".npy", ".npz", ".parquet", ".csv.gz",
        )
    },
    "inputs.npz": ("data.npz", load_data),
    "inputs": ("inputs.npy", inputs),
    "picture": ("a.png", picture),
    "pictures": ("labels.csv", lambda p: load_data(p.parent, pictures={"mean": [0.0], "std": [1.0]})),
    **{f"texts{ending}": (f"texts{ending}", read_texts) for ending in TABLES},
    **{f"labels{ending}": (f"labels{ending}", labels) for ending in TABLES},
    "graph": ("model.onnx", graph_alone),
    "graph_data": ("weights.bin", graph_with_data),
    "network": ("model.pt2", load_model),
    "weights": ("weights.pt", lambda p: load_model("readers:linear", weights=p, input_shape=(4,))),
    "archive": ("m.mar", read_archive),
    "repository": ("m_core/config.pbtxt", repository),
    "samples": ("labels-000001700000001-1-aa.npz", lambda p: read_samples(p.parent, model="m", version="1")),
    "ledger": ("ledger.db", lambda p: Ledger(p).close()),
    "waiting": ("batch.json", waiting),
    "spooled": ("x/a.db", spooled),
}  # fmt: skip


def of_bytes(name: str, opened: Opener) -> Reader:
    """A reader of the bytes of a file that is opened by this name."""

    def read(path: Path) -> None:
        with scratch() as folder:
            copy = folder / "in" / name
            copy.parent.mkdir(parents=True)
            shutil.copyfile(path, copy)
            copy.chmod(0o600)
            opened(copy)

    return read


# Those of ``readers`` do more with what they are given, and are left as they are.
SETTINGS = (
    "certificate", "graph_data", "kafka", "key_file", "metrics", "password", "probe", "promotions",
    "repository", "server", "shares", "token", "waiting",
)  # fmt: skip
READERS = {**readers.READERS, **{name: of_bytes(*OPENERS[name]) for name in SETTINGS}}
