"""TorchServe archives made to leave their folder, to swell, or to lie."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import stat
import struct
import warnings
import zipfile
from typing import Any

from attack_bytes import DEEP, FORGED, Owned, zipped


def mars() -> dict[str, bytes]:
    from readers import sound_entries

    manifest = "MAR-INF/MANIFEST.json"
    sound = sound_entries()

    def link(target: str) -> bytes:
        entry = zipfile.ZipInfo("link.py")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(zipfile.ZipInfo(manifest), sound[manifest])
            archive.writestr(entry, target)
        return stream.getvalue()

    def doubled() -> bytes:
        stream = io.BytesIO()
        with warnings.catch_warnings(), zipfile.ZipFile(stream, "w") as archive:
            warnings.simplefilter("ignore")
            archive.writestr(zipfile.ZipInfo(manifest), sound[manifest])
            archive.writestr(zipfile.ZipInfo(manifest), b"{}")
        return stream.getvalue()

    def lying(content: bytes, *, at: bytes, shift: int, value: bytes) -> bytes:
        """A sound archive with one field of its directory changed."""
        place = content.rfind(at) + shift
        return content[:place] + value + content[place + len(value) :]

    def whole(*, packed: bool = True, **changed: bytes) -> bytes:
        """A sound archive with some files changed, and hashes that are right all the same."""
        entries = {**sound, **changed}
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in entries.items()}
        return zipped({**entries, "MAR-INF/SHA256.json": json.dumps(hashes).encode()}, packed=packed)

    plain = whole()
    small = zipped({manifest: sound[manifest], "x.py": b"x = 1"})
    return {
        "sound.zip": plain,
        "stored.zip": whole(packed=False),
        "empty.zip": b"",
        "empty zip.zip": zipped({}),
        "a tar.zip": b"x" * 257 + b"ustar\x00" + b"\x00" * 249,
        "zip bomb.zip": whole(**{"zeros.bin": bytes(70 << 20)}),
        "manifest bomb.zip": zipped({manifest: b" " * (40 << 20) + sound[manifest]}),
        "hashes bomb.zip": zipped({**sound, "MAR-INF/SHA256.json": b" " * (40 << 20) + b"{}"}),
        "parent folder.zip": whole(**{"../escaped.py": b"x"}),
        "parent folder inside.zip": whole(**{"a/../../escaped.py": b"x"}),
        "absolute path.zip": whole(**{"/tmp/escaped.py": b"x"}),
        "backslashes.zip": whole(**{"..\\escaped.py": b"x"}),
        "drive letter.zip": whole(**{"C:\\escaped.py": b"x"}),
        "nul in a name.zip": small.replace(b"x.py", b"x\x00py"),
        "symbolic link.zip": link("/etc/passwd"),
        "symbolic link up.zip": link("../../escaped"),
        "file twice.zip": doubled(),
        "encrypted.zip": lying(small, at=b"PK\x01\x02", shift=8, value=b"\x01\x00"),
        "unknown compression.zip": lying(small, at=b"PK\x01\x02", shift=10, value=b"\x63\x00"),
        "size beyond the file.zip": lying(small, at=b"PK\x01\x02", shift=20, value=b"\xff\xff\xff\x7f"),
        "unpacked size that lies.zip": lying(small, at=b"PK\x01\x02", shift=24, value=b"\xff\xff\xff\x7f"),
        "offset beyond the file.zip": lying(small, at=b"PK\x01\x02", shift=42, value=b"\xff\xff\xff\x7f"),
        "overlapping entries.zip": lying(small, at=b"PK\x01\x02", shift=42, value=b"\x00\x00\x00\x00"),
        "wrong checksum.zip": lying(small, at=b"PK\x01\x02", shift=16, value=b"\x00\x00\x00\x00"),
        "directory count that lies.zip": lying(small, at=b"PK\x05\x06", shift=10, value=b"\xff\xff"),
        "damaged deflate.zip": plain[:200] + b"\xff" * 40 + plain[240:],
        "long comment.zip": small[:-2] + struct.pack("<H", 60_000) + b"c" * 60_000,
        "many entries.zip": zipped({manifest: sound[manifest], **{f"f{i}": b"" for i in range(500)}}),
        "no manifest.zip": zipped({"x.py": b""}),
        "pickle as a model.zip": whole(**{"model.onnx": pickle.dumps(Owned())}),
        "hashes that are a list.zip": zipped({**sound, "MAR-INF/SHA256.json": b"[1, 2]"}),
        "hashes that are numbers.zip": zipped({**sound, "MAR-INF/SHA256.json": b'{"model.onnx": 7}'}),
        "no hashes.zip": zipped(sound),
    }


def mar_manifests() -> dict[str, bytes]:
    from readers import sound_entries

    sound = json.loads(sound_entries()["MAR-INF/MANIFEST.json"])

    def but(**changes: Any) -> bytes:
        return json.dumps({**sound, "model": {**sound["model"], **changes}}).encode()

    return {
        "sound.json": json.dumps(sound).encode(),
        "deep.json": b"[" * DEEP,
        "not utf-8.json": b"\xff\xfe",
        "a list.json": b"[]",
        "model that is a text.json": b'{"model": "m"}',
        "doubled keys.json": b'{"model": {}, "model": {"modelName": "m", "modelName": "n"}}',
        "handler outside.json": but(handler="../../etc/passwd"),
        "config outside.json": but(configFile="../../etc/passwd"),
        "config that is not there.json": but(configFile="none.yaml"),
        "config that is a number.json": but(configFile=7),
        "serialized outside.json": but(serializedFile="/etc/passwd"),
        "names of our own arguments.json": but(name="x", version="y", path="z", files="w"),
        "name with slashes.json": but(modelName="../../m"),
        "name that forges a metric.json": but(modelName=FORGED),
        "name that is nothing.json": but(modelName=None),
        "name of many letters.json": but(modelName="m" * 20_000),
        "version that is a list.json": but(modelVersion=[1, [2]]),
        "surrogate.json": b'{"model": {"modelName": "\\ud800", "handler": "\\ud800.py"}}',
        "huge integer.json": b'{"model": {"modelName": ' + b"9" * 10_000 + b"}}",
        "function handler.json": but(handler="x.py:run"),
    }


def model_configs() -> dict[str, bytes]:
    from readers import sound_entries

    sound = sound_entries()["model-config.yaml"]
    bomb = "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    section = "calib_serve: {{kind: onnx, model: model.onnx, sha256: '', {}}}\n"
    return {
        "sound.yaml": sound,
        "empty.yaml": b"",
        "a list.yaml": b"[1, 2]",
        "a number.yaml": b"7",
        "pairs.yaml": b"[[a, 1], [b, 2]]",
        "section that is a list.yaml": b"calib_serve: [1]",
        "section that is a number.yaml": b"calib_serve: 7",
        "section that is a text.yaml": b"calib_serve: kind",
        "alias bomb.yaml": (bomb + "calib_serve: {kind: onnx, model: m, sha256: '', mean: *a59}").encode(),
        "deep.yaml": b"calib_serve: " + b"[" * 20_000,
        "python tag.yaml": b"calib_serve: !!python/object/apply:os.mkdir ['/tmp/calib-serve-was-owned']",
        "timestamp tag.yaml": b"calib_serve: !!timestamp soon",
        "base 60 float.yaml": b"minWorkers: " + b":".join([b"59"] * 300) + b".5",
        "odd workers.yaml": b"minWorkers: many\n",
        "workers that are a list.yaml": b"minWorkers: [1]\n",
        "mixed unknown keys.yaml": b"calib_serve: {1: a, b: 2, [c]: 3}\n",
        "shape of texts.yaml": section.format("input_shape: [a, b]").encode(),
        "shape that is a number.yaml": section.format("input_shape: 7").encode(),
        "abstain that is a text.yaml": section.format("abstain_below: soon").encode(),
        "nan seconds.yaml": section.format("flush_seconds: .nan").encode(),
        "artifact outside.yaml": section.format("artifact: ../../../etc").encode(),
        "artifact that is a list.yaml": section.format("artifact: [a]").encode(),
        "artifact that is everything.yaml": section.format("artifact: ''").encode(),
        "kind that is a list.yaml": section.format("kind: [onnx]").encode(),
    }
