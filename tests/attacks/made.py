"""Attacks on our own formats, made of what the code writes today: their numbers need no literal here.

Each is one idea that broke some program once: bombs, lying lengths, paths that leave their folder, pickles,
numbers out of reach, nesting, doubled names. Attacks on formats of others lie as files in ``corpus``.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import pickle
import sqlite3
import stat
import struct
import warnings
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from attack_bytes import FORGED, Owned, external, signed, zipped
from ledgers import accept, make_label
from openers import SETTINGS
from readers import scratch, sound_entries, sound_params
from real_watch import RING
from small_models import everything

from calib_serve.ledger import Ledger
from calib_serve.monitor import Detector
from calib_serve.receipts import Shadow
from calib_serve.receipts.nonces import NONCE_BYTES
from calib_serve.receipts.samples import SampleLog
from calib_serve.torchserve.metrics_file import metrics_file
from calib_serve.torchserve.promotion import Exchange

Files = dict[str, bytes]

# --- artifacts and keys -----------------------------------------------------------------------


def sound_manifest() -> dict[str, Any]:
    """The facts of a manifest whose tensors are ``sound_params``, without its own hash."""
    facts = everything()._manifest(hashlib.sha256(sound_params()).hexdigest())
    facts.pop("sha256")
    return dict(yaml.safe_load(yaml.safe_dump(facts)))


def manifests() -> Files:
    """Under right hashes, values that are wrong."""
    sound = sound_manifest()
    n, rest = sound["classes"], sound["steps"][1:]
    bins = {name: list(values) for name, values in sound["reference"].items()}
    made = {
        "sound": {},
        "classes beyond any machine": {"classes": 10**30, "class_names": []},
        "layers below none": {"steps": [{"kind": "head", "layers": -1}]},
        "a kind that is a list": {"steps": [{"kind": ["head"]}]},
        "reference beyond floats": {"reference": {"count": [10**400], "confidence": [1], "correct": [1]}},
        "found reference of null": {"reference": {**bins, "confidence": [None, *bins["confidence"][1:]]}},
        "bins of more than their count": {
            "reference": {"count": [1, 5], "confidence": [9, 2], "correct": [0, 9]}
        },
        "classes counted below zero": {"reference_classes": [-1] * n},
        "a line break in a class name": {"class_names": ["a\nb"] * n},
        "low beyond floats": {"steps": [{"kind": "input_shift", "low": -(10**400), "high": 10**400}, *rest]},
        "params of another file": {"params_sha256": "0" * 64},
        "path as a method": {"method": "../../etc/passwd"},
        "script as a class name": {"class_names": ["<script>alert(1)</script>", "a", FORGED]},
    }
    return {f"{name}.yaml": signed({**sound, **changes}) for name, changes in made.items()}


def tensors() -> Files:
    """Those of an artifact of every step."""
    return {"sound.safetensors": sound_params()}


def keyrings() -> Files:
    """The file of a keyring with wrong values."""
    with scratch() as folder:
        RING.save(folder / "keys.json")
        sound = json.loads((folder / "keys.json").read_bytes())
    key, no_key = sound["keys"]["k"], "!!!"

    def ids(name: str) -> dict[str, Any]:
        return {"active": name, "keys": {name: key}, "times": {}}

    whole = json.dumps(sound)
    made: dict[str, dict[str, Any]] = {
        "sound": {},
        "a key that is no base64": {"keys": {"k": no_key}},
        "a short key": {"keys": {"k": "AAAA"}},
        "surrogate": ids("\ud800"),
        "an id of a kilobyte": ids("k" * 1000),
        "a format that is a list": {"format": [[1]]},
        "a time of 400 digits": {"times": {"k": {"demoted": 10**400}}},
        "times that are a list": {"times": [1]},
    }
    return {
        **{f"{name}.json": json.dumps({**sound, **changes}).encode() for name, changes in made.items()},
        "doubled keys.json": whole.replace(f'"{key}"', f'"{key}", "k": "AAAA"').encode(),
        "huge integer.json": whole.replace('"active": "k"', f'"active": {"9" * 10_000}').encode(),
    }


def receipts() -> Files:
    """Each field changed, and what is no receipt any more."""

    def token(**more: Any) -> str:
        facts = {"predicted": 1, "confidence": 0.9, "time": 1_700_000_000.0, "nonce": bytes(NONCE_BYTES)}
        return RING.sign(model="m", version="1", **facts, **more)

    good, shadowed = token(), token(shadow=Shadow(1, 0.5, b"abcd"))
    every = token(inclusion=0.25, wanted=False, group=7, segment="north")
    # The alphabets differ in two letters, of which not every receipt has one.
    in_both = next(one for n in range(100) if {*"-_"} & {*(one := token(group=n))})
    predicted, confidence, mac = -28, -24, -16
    altered_at: dict[str, tuple[str, int, bytes]] = {
        "version 255": (good, 0, b"\xff"),
        "unknown flags": (good, 1, b"\x10"),
        "length beyond the end": (good, 2, b"\xff"),
        "another key": (good, 3, b"z"),
        "names that are no utf-8": (good, 3, b"\xff"),
        "another model": (good, 5, b"z"),
        "another class": (good, predicted + 3, b"\x02"),
        "confidence nan": (good, confidence, struct.pack(">d", float("nan"))),
        "another mac": (good, mac, bytes(4)),
        "a shadow of nan": (shadowed, mac - 12, struct.pack(">f", float("nan"))),
    }
    return {
        "good.txt": good.encode(),
        "with a shadow.txt": shadowed.encode(),
        "sampled unwanted and grouped.txt": every.encode(),
        **{f"{name}.txt": altered(*change) for name, change in altered_at.items()},
        "no mac.txt": altered(good, 0, b"", keep=-16),
        "a shadow cut off.txt": altered(shadowed, 0, b"", keep=-18),
        "padded.txt": good.encode() + b"==",
        "standard alphabet.txt": in_both.encode().replace(b"-", b"+").replace(b"_", b"/"),
        "with a line break.txt": good.encode()[:20] + b"\r\n" + good.encode()[20:],
        "twice.txt": good.encode() * 2,
        "a header injected.txt": good.encode() + b"\r\nX-Evil: 1",
    }


def altered(token: str, at: int, new: bytes, *, keep: int | None = None) -> bytes:
    """The receipt with other bytes at a place, up to ``keep``."""
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    return base64.urlsafe_b64encode(put(raw, at % len(raw), new)[:keep]).rstrip(b"=")


# --- archives ---------------------------------------------------------------------------------

MANIFEST, HASHES = "MAR-INF/MANIFEST.json", "MAR-INF/SHA256.json"


def archives() -> Files:
    """Made to leave their folder, to swell, or to lie."""
    sound = sound_entries()

    def whole(*, packed: bool = True, **changed: bytes) -> bytes:
        """Some files changed, and hashes that are right all the same."""
        entries = {**sound, **changed}
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in entries.items()}
        return zipped({**entries, HASHES: json.dumps(hashes).encode()}, packed=packed)

    plain, named = whole(), whole(**{"x.py": b"x = 1"})
    outside = {
        "parent folder": "../escaped.py",
        "absolute path": "/tmp/escaped.py",
        "backslashes": "..\\escaped.py",
    }
    most = b"\xff\xff\xff\x7f"
    directory = {  # what an entry of the directory says, at which of its bytes
        "unknown compression": (10, b"\x63\x00"),
        "unpacked size that lies": (24, most),
        "offset beyond the file": (42, most),
        "overlapping entries": (42, bytes(4)),
    }
    entry = plain.rfind(b"PK\x01\x02")  # that of the list of hashes
    made = {
        "sound": plain,
        "stored": whole(packed=False),
        "zip bomb": whole(**{"zeros.bin": bytes(70 << 20)}),
        "manifest bomb": zipped({MANIFEST: b" " * (40 << 20) + sound[MANIFEST]}),
        "hashes bomb": zipped({**sound, HASHES: b" " * (40 << 20) + b"{}"}),
        **{name: whole(**{path: b"x"}) for name, path in outside.items()},
        **{name: put(plain, entry + at, value) for name, (at, value) in directory.items()},
        "directory count that lies": put(plain, plain.rfind(b"PK\x05\x06") + 10, b"\xff\xff"),
        "nul in a name": named.replace(b"x.py", b"x\x00py"),
        "symbolic link": linked(sound[MANIFEST], "/etc/passwd"),
        "file twice": doubled(sound[MANIFEST]),
        "damaged deflate": put(plain, 200, b"\xff" * 40),
        "long comment": plain[:-2] + struct.pack("<H", 60_000) + b"c" * 60_000,
        "many entries": whole(**{f"f{i}": b"" for i in range(500)}),
        "pickle as a model": whole(**{"model.onnx": pickle.dumps(Owned())}),
        "hashes that are a list": zipped({**sound, HASHES: b"[1, 2]"}),
        "no hashes": zipped(sound),
    }
    return {f"{name}.zip": content for name, content in made.items()}


def put(content: bytes, at: int, value: bytes) -> bytes:
    """``content`` with other bytes at a place."""
    return content[:at] + value + content[at + len(value) :]


def linked(manifest: bytes, target: str) -> bytes:
    """An archive with a symbolic link."""
    entry = zipfile.ZipInfo("link.py")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(zipfile.ZipInfo(MANIFEST), manifest)
        archive.writestr(entry, target)
    return stream.getvalue()


def doubled(manifest: bytes) -> bytes:
    """An archive with two manifests."""
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w") as archive:
        warnings.simplefilter("ignore")
        archive.writestr(zipfile.ZipInfo(MANIFEST), manifest)
        archive.writestr(zipfile.ZipInfo(MANIFEST), b"{}")
    return stream.getvalue()


def archive_manifests() -> Files:
    """A right archive's own manifest with wrong values."""
    sound = json.loads(sound_entries()[MANIFEST])
    made: dict[str, dict[str, Any]] = {
        "sound": {},
        "handler outside": {"handler": "../../etc/passwd"},
        "config outside": {"configFile": "../../etc/passwd"},
        "name with slashes": {"modelName": "../../m"},
        "name that forges a metric": {"modelName": FORGED},
        "name of many letters": {"modelName": "m" * 20_000},
        "version that is a list": {"modelVersion": [1, [2]]},
        "function handler": {"handler": "x.py:run"},
    }
    return {
        f"{name}.json": json.dumps({**sound, "model": {**sound["model"], **changes}}).encode()
        for name, changes in made.items()
    }


def archive_configs() -> Files:
    """That of the right archive."""
    return {"sound.yaml": sound_entries()["model-config.yaml"]}


# --- what clients send, and what a watch keeps ------------------------------------------------


def items() -> Files:
    """Bodies of labels; each is also tried as predictions, and as what TorchServe hands on."""

    def label(n: int, **more: Any) -> dict[str, Any]:
        facts = {"predicted": 1, "confidence": 0.9, "time": 1_700_000_000.0}
        token = RING.sign(model="m", version="1", nonce=n.to_bytes(NONCE_BYTES, "big"), **facts)
        return {"receipt": token, "label": 1, **more}

    odd = [None, True, 1.5, -1, 3, 10**40, "", "one", "\ud800", FORGED, [], [[[]]], {}, {"a": 1}, "x" * 5000]
    deep = json.dumps({"items": [label(404, label="DEEP")]}).replace('"DEEP"', "[" * 800 + "]" * 800)
    made = {
        "good": [label(1), label(2, segment="north")],
        "twice in a batch": [label(3), label(3), label(3)],
        "odd labels": [label(100 + i, label=value) for i, value in enumerate(odd)],
        "odd ways to say it": [label(400 + i, by=value) for i, value in enumerate([*odd, "id"])],
        "odd segments": [label(200 + i, segment=value) for i, value in enumerate(odd)],
        "odd receipts": [{"receipt": value, "label": 1} for value in odd],
        "odd items": odd,
        "surrogate as a segment": [label(400, segment="\udcff")],
        "segment of many letters": [label(402, segment="s" * 20_000)],
        "many segments": [label(500 + i, segment=f"s{i}") for i in range(60)],
        "integer of 4000 digits": [label(403, label=int("9" * 4000))],
    }
    dumped = {f"{name}.json": json.dumps({"items": found}).encode() for name, found in made.items()}
    return {**dumped, "deep label.json": deep.encode()}


def ledgers() -> Files:
    """A ledger, and a database whose tables never end."""
    endless = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i FROM r) SELECT i FROM r"
    with scratch() as folder:
        book = Ledger(folder / "l.db")
        accept(book, [make_label(i) for i in range(3)])
        book.close()
        sound = (folder / "l.db").read_bytes()
        db = sqlite3.connect(folder / "evil.db")
        for table in ("ledger", "label", "tally", "version"):
            db.execute(f"CREATE VIEW {table} AS {endless}")
        db.commit()
        db.close()
        evil = (folder / "evil.db").read_bytes()
    return {
        "sound.db": sound,
        "cut off.db": sound[:5000],
        "header alone.db": sound[:100],
        "views for tables.db": evil,
    }


def sound_state() -> bytes:
    """A detector's state."""
    detector = Detector(arl=1000.0)
    detector.update([0.5, 0.9, 0.7], [True, False, True])
    return detector.state()


def detectors() -> Files:
    """States whose first line lies about what follows."""
    state = sound_state()
    made = {
        "sound": state,
        "no body": state.partition(b"\n")[0],
        "bins beyond memory": state.replace(b"15", b"1500000000000", 1),
        "more groups than bytes": state.replace(b'"groups": 0', b'"groups": 4096'),
        "classes that are none": state.replace(b'"classes": []', b'"classes": [null]'),
    }
    return {f"{name}.bin": content for name, content in made.items()}


def shards() -> Files:
    """Of the sample log: a real one, and arrays that do not go together."""
    with scratch() as folder:
        log = SampleLog(folder, rate=1.0)
        log.predicted("m", "1", [bytes(NONCE_BYTES)], np.zeros((1, 3)), times=[0.0])
        log.close()
        (shard,) = folder.iterdir()
        sound = shard.read_bytes()
        with np.load(shard) as arrays:
            head = {name: arrays[name] for name in ("model", "version", "nonce")}

    def npz(**arrays: Any) -> bytes:
        stream = io.BytesIO()
        np.savez(stream, **{**head, **arrays})
        return stream.getvalue()

    none, row = head["nonce"][:0], {"time": [0.0], "logits": np.zeros((1, 3))}
    made = {
        "labels of texts": {"label": np.array(["a"])},
        "labels beyond integers": {"label": np.array([2**64 - 1], np.uint64)},
        "logits of one dimension": {**row, "logits": np.zeros(1)},
        "nonce of one number": {"nonce": 3, "label": [1]},
        "fewer nonces": {**row, "nonce": none},
    }
    return {"sound.npz": sound, **{f"{name}.npz": npz(**arrays) for name, arrays in made.items()}}


def texts() -> Files:
    """Settings that are none, or ask for much."""
    return {
        "empty": b"",
        "nul": b"\0",
        "not utf-8": b"\xff\xfe\x00a",
        "deep.json": b"[" * 100_000,
        "deep.yaml": b"- " * 5_000,
        "long number": b"9" * 100_000,
        "dates.yaml": b"a: 2001-99-99\nb: 2001-02-30",
        "alias bomb.yaml": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (i, i, b",".join([b"*%c" % (i - 1)] * 9)) for i in range(98, 110)),
        "python.yaml": b"a: !!python/object/apply:os.mkdir [/tmp/calib-serve-was-owned]",
        "list.json": b"[1, {}, null]",
        "object.json": b'{"a": {"b": [1e999, NaN, "\\ud800"]}}',
        "quotes": b'"\\' * 300_000,
        "much": b"a=b\n" * (5 << 20),
    }


def shares() -> Files:
    return {"sound.yaml": b"cat: 0.7\ndog: 0.3", "sound": b"0.7\n0.3", "infinite": b"a=inf,b=nan"}


def metrics() -> Files:
    return {"sound.yaml": metrics_file().encode(), "of no list.yaml": b"ts_metrics: {counter: 7}"}


def keys_of_torchserve() -> Files:
    one = {"key": "x", "expiration time": "y"}
    return {"sound.json": json.dumps({"inference": one, "management": one, "API": one}).encode()}


def promotions() -> Files:
    made = Exchange(1.0, "m", "2", "m2.mar", "1", "m1.mar")
    return {"sound.json": json.dumps([asdict(made)]).encode(), "of a text.json": b'["a"]'}


def spools() -> Files:
    """What waits for a watch, by ids and in sums; of wrong kinds, it would end the thread that sends it."""
    receipt = str(RING.sign(model="m", version="1", predicted=1, confidence=0.9))
    one = ["m", "1", 1, "", 0.9, 0.9, 2, 1.8]
    made = {
        "sound ids": [1.0, [[receipt, "order-1", None], [receipt, "", [0.5, 1.0]]]],
        "sound sums": [1.0, [one]],
        "logits of texts": [1.0, [[receipt, "a", ["x"]]]],
        "logits beyond numbers": [1.0, [[receipt, "a", [10**400]]]],
        "an id of numbers": [1.0, [[7, 7, 7]]],
        "a count of text": [1.0, [[*one[:6], "2", 1.8]]],
        "too few": [1.0, [one[:5]]],
        "no time": ["x", [one]],
    }
    return {f"{name}.json": json.dumps(rows).encode() for name, rows in made.items()}


def repositories() -> Files:
    mark = b'# calib-serve fuse triton: "m"\n'
    return {
        "sound.pbtxt": mark + b'name: "m_core"\ninput { name: "x" dims: [3] }',
        "unclosed.pbtxt": mark + b'input { { [ "',
        "many quotes.pbtxt": mark + b'name: "\\' + b'"\\' * 300_000,
    }


def graphs() -> Files:
    """Whose weights are said to lie somewhere else."""
    made = {
        "password file": external("/etc/passwd"),
        "above": external("../../raw.onnx"),
        "itself": external("raw.onnx"),
        "device": external("/dev/zero"),
        "no place": external(""),
        "before the file": external("raw.onnx", offset=-5),
        "behind the file": external("raw.onnx", offset=1 << 62),
        "terabytes": external("raw.onnx", length=1 << 42),
    }
    return {f"data of {name}.onnx": content for name, content in made.items()}


def weights() -> Files:
    """The bytes of a graph's weights."""
    return {
        "sound.bin": np.ones((4, 3), np.float32).tobytes(),
        "short.bin": bytes(47),
        "of no numbers.bin": b"\xff" * 48,
    }


MADE = {
    "manifest": manifests,
    "params": tensors,
    "keyring": keyrings,
    "receipt": receipts,
    "mar": archives,
    "mar_manifest": archive_manifests,
    "model_config": archive_configs,
    "labels+predictions+body": items,
    "ledger": ledgers,
    "detector": detectors,
    "samples": shards,
    "onnx": graphs,
    "graph_data": weights,
    "shares": shares,
    "metrics": metrics,
    "key_file": keys_of_torchserve,
    "promotions": promotions,
    "waiting": spools,
    "repository": repositories,
    "+".join(SETTINGS): texts,
}
"""Readers, + between several, and what is made for them."""


def make(folder: Path) -> None:
    """Write all of them below ``folder``, as the corpus lies."""
    for readers, made in MADE.items():
        (folder / readers).mkdir(parents=True)
        for name, content in made().items():
            (folder / readers / name.replace(" ", "-")).write_bytes(content)
