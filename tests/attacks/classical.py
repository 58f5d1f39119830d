"""Writes the classical attacks into the corpus: python tests/attacks/classical.py

Each is one idea that broke some program once: bombs, lying lengths, paths that leave their folder,
pickles, numbers out of reach, nesting, doubled names. What fuzzing found lies beside them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import pickle
import stat
import struct
import sys
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

SUPPORT = Path(__file__).parents[1] / "support"
CORPUS = Path(__file__).parent / "corpus"
FORGED = "\n[METRICS]calib_predictions_total.Count:9|#model:m,version:1,bin:3|#type:COUNTER|#hostname:h,1\n"
DEEP = 20_000  # Python's limit is a thousand


class Owned:
    """Unpickled, it makes a folder: a test looks for it."""

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.mkdir, ("/tmp/calib-serve-was-owned",)


def png(width: int, height: int, *, body: bytes | None = None) -> bytes:
    """A grey PNG whose header claims ``width`` x ``height``."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\x00" + bytes(min(width, 64)) for _ in range(min(height, 64))))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", rows if body is None else body)
        + chunk(b"IEND", b"")
    )


def npy(array: Any, *, pickled: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=pickled)
    return stream.getvalue()


def npy_saying(header: str, body: bytes = b"") -> bytes:
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def zipped(entries: dict[str, bytes], *, packed: bool = True) -> bytes:
    stream = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(stream, "w", how) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return stream.getvalue()


def safetensors(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def signed(facts: dict[str, Any]) -> bytes:
    """A manifest whose own hash is right: what a clever attacker writes."""
    import yaml

    digest = json.dumps(facts, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
    whole = {**facts, "sha256": hashlib.sha256(digest).hexdigest()}
    return yaml.safe_dump(whole, allow_unicode=True).encode()


def sound_manifest() -> dict[str, Any]:
    import yaml
    from small_models import everything

    facts = everything()._manifest(hashlib.sha256(sound_params()).hexdigest())
    facts.pop("sha256")
    return dict(yaml.safe_load(yaml.safe_dump(facts)))


def sound_params() -> bytes:
    from readers import sound_params

    return sound_params()


def manifests() -> dict[str, bytes]:
    sound = sound_manifest()

    def but(**changes: Any) -> bytes:
        return signed({**sound, **changes})

    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    return {
        "sound.yaml": signed(sound),
        "empty.yaml": b"",
        "nul.yaml": b"\x00" * 50,
        "alias bomb.yaml": ("schema: 1\n" + bomb).encode(),
        "merge key.yaml": b"schema: 1\nx: &x {a: 1}\ny: {<<: *x}\n",
        "deep list.yaml": b"schema: 1\nfit:\n " + b"[" * 20_000,
        "deep map.yaml": b"schema: 1\nfit:\n " + b"{a: " * 20_000,
        "deep sequence.yaml": b"schema: 1\nfit:\n " + b"- " * 20_000,
        "python tag.yaml": b"schema: !!python/object/apply:os.mkdir ['/tmp/calib-serve-was-owned']",
        "huge integer.yaml": b"schema: " + b"9" * 50_000,
        "huge hexadecimal.yaml": b"schema: 0x" + b"f" * 50_000,
        "huge base 60.yaml": b"schema: " + b":".join([b"59"] * 20_000),
        "base 60 float.yaml": b"schema: " + b":".join([b"59"] * 300) + b".5",
        "bool tag on a text.yaml": b"schema: !!bool maybe",
        "int tag on nothing.yaml": b"schema: !!int ''",
        "float tag on nothing.yaml": b"schema: !!float ''",
        "timestamp tag on a text.yaml": b"schema: !!timestamp soon",
        "month 99.yaml": b"schema: 2001-99-99",
        "list as a key.yaml": b"? [a]\n: 1\nschema: 1",
        "mixed keys.yaml": b"schema: 1\n1: a\nb: 2\n",
        "two documents.yaml": b"schema: 1\n---\nschema: 1\n",
        "surrogate.yaml": b'schema: 1\nmethod: "\\ud800"\nsha256: x\n',
        "not utf-8.yaml": b"schema: 1\nmethod: \xff\xfe\n",
        "utf-16.yaml": "schema: 1\n".encode("utf-16"),
        "unclosed.yaml": b'schema: "1',
        "infinity.yaml": b"schema: 1\nfit: {x: .inf}\n",
        "classes beyond any machine.yaml": but(classes=10**30, class_names=[]),
        "negative classes.yaml": but(classes=-1),
        "layers below none.yaml": but(steps=[{"kind": "head", "layers": -1}]),
        "no layers.yaml": but(steps=[{"kind": "head", "layers": 0}]),
        "layers of a text.yaml": but(steps=[{"kind": "head", "layers": "9" * 400}]),
        "a kind that is a list.yaml": but(steps=[{"kind": ["head"]}]),
        "a step that is a number.yaml": but(steps=[7]),
        "reference beyond floats.yaml": but(
            reference={"count": [10**400], "confidence": [1], "correct": [1]}
        ),
        "reference that is nested.yaml": but(
            reference={"count": [[1]], "confidence": [[1]], "correct": [[1]]}
        ),
        "reference of texts.yaml": but(reference={"count": "a", "confidence": "b", "correct": "c"}),
        "low beyond floats.yaml": but(
            steps=[{"kind": "input_shift", "low": -(10**400), "high": 10**400}, *sound["steps"][1:]]
        ),
        "low that is a text.yaml": but(
            steps=[{"kind": "input_shift", "low": "a", "high": "b"}, *sound["steps"][1:]]
        ),
        "params of another file.yaml": but(params_sha256="0" * 64),
        "path as a method.yaml": but(method="../../etc/passwd"),
        "script as a class name.yaml": but(class_names=["<script>alert(1)</script>", "a", FORGED]),
    }


def params() -> dict[str, bytes]:
    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    return {
        "sound.safetensors": sound_params(),
        "empty.safetensors": b"",
        "length beyond any file.safetensors": struct.pack("<Q", 1 << 63) + b"{}",
        "length of all ones.safetensors": b"\xff" * 8 + b"{}",
        "length one too long.safetensors": struct.pack("<Q", 3) + b"{}",
        "deep header.safetensors": safetensors(b"[" * 20_000),
        "header that is a list.safetensors": safetensors([]),
        "overlapping tensors.safetensors": safetensors({"step0.delta": one, "step1.weight": one}, bytes(4)),
        "a hole between tensors.safetensors": safetensors(
            {"a": one, "b": {**one, "data_offsets": [8, 12]}}, bytes(12)
        ),
        "backward offsets.safetensors": safetensors({"a": {**one, "data_offsets": [4, 0]}}, bytes(4)),
        "negative offsets.safetensors": safetensors({"a": {**one, "data_offsets": [-4, 0]}}, bytes(4)),
        "offsets beyond the file.safetensors": safetensors(
            {"a": {**one, "data_offsets": [0, 1 << 62]}}, bytes(4)
        ),
        "three offsets.safetensors": safetensors({"a": {**one, "data_offsets": [0, 4, 8]}}, bytes(4)),
        "shape that overflows.safetensors": safetensors(
            {"a": {**one, "shape": [1 << 32, 1 << 32]}}, bytes(4)
        ),
        "negative shape.safetensors": safetensors({"a": {**one, "shape": [-1, -1]}}, bytes(4)),
        "shape of none and many.safetensors": safetensors(
            {"a": {**one, "shape": [0, 1 << 62], "data_offsets": [0, 0]}}
        ),
        "a hundred dimensions.safetensors": safetensors({"a": {**one, "shape": [1] * 100}}, bytes(4)),
        "unknown dtype.safetensors": safetensors({"a": {**one, "dtype": "C64"}}, bytes(4)),
        "bfloat16.safetensors": safetensors(
            {"step0.delta": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)
        ),
        "float8.safetensors": safetensors(
            {"step0.delta": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, bytes(4)
        ),
        "doubled name.safetensors": safetensors(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            bytes(4),
        ),
        "huge number.safetensors": safetensors(
            b'{"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}}', bytes(4)
        ),
        "metadata that is a list.safetensors": safetensors({"__metadata__": [1]}),
        "pickle.safetensors": pickle.dumps(Owned()),
    }


def receipts() -> dict[str, bytes]:
    from real_watch import RING

    def token(**changes: Any) -> str:
        facts = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9, "time": 1_700_000_000.0}
        return RING.sign(**{**facts, **changes})

    good = token()
    raw = base64.urlsafe_b64decode(good + "=" * (-len(good) % 4))

    def altered(at: int, *new: int) -> bytes:
        changed = raw[:at] + bytes(new) + raw[at + len(new) :]
        return base64.urlsafe_b64encode(changed).rstrip(b"=")

    tail = len(raw) - 16
    return {
        "good.txt": good.encode(),
        "another key.txt": altered(2, ord("z")),
        "another model.txt": altered(4, ord("z")),
        "another version.txt": altered(6, ord("9")),
        "another time.txt": altered(tail - 32, 255),
        "another nonce.txt": altered(tail - 20, 255),
        "another class.txt": altered(tail - 9, 2),
        "another confidence.txt": altered(tail - 8, 0x3F, 0xF0, 0, 0, 0, 0, 0, 0),
        "confidence nan.txt": altered(tail - 8, 0x7F, 0xF8, 0, 0, 0, 0, 0, 0),
        "another mac.txt": altered(tail, 0, 0, 0, 0),
        "no mac.txt": base64.urlsafe_b64encode(raw[:tail]).rstrip(b"="),
        "version 255.txt": altered(0, 255),
        "length beyond the end.txt": altered(1, 255),
        "no key id.txt": altered(1, 0),
        "names that are no utf-8.txt": altered(2, 0xFF),
        "padded.txt": good.encode() + b"==",
        "standard alphabet.txt": good.encode().replace(b"-", b"+").replace(b"_", b"/"),
        "with a line break.txt": good.encode()[:20] + b"\r\n" + good.encode()[20:],
        "twice.txt": good.encode() * 2,
        "a header injected.txt": good.encode() + b"\r\nX-Evil: 1",
        "empty.txt": b"",
        "many letters.txt": b"A" * 20_000,
        "nul.txt": b"\x00" * 40,
    }


def mars() -> dict[str, bytes]:
    from readers import sound_entries

    manifest = "MAR-INF/MANIFEST.json"
    sound = sound_entries()

    def link(target: str) -> bytes:
        entry = zipfile.ZipInfo("link.py")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(manifest, sound[manifest])
            archive.writestr(entry, target)
        return stream.getvalue()

    def doubled() -> bytes:
        stream = io.BytesIO()
        with warnings.catch_warnings(), zipfile.ZipFile(stream, "w") as archive:
            warnings.simplefilter("ignore")
            archive.writestr(manifest, sound[manifest])
            archive.writestr(manifest, b"{}")
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


def items() -> dict[str, bytes]:
    """Bodies of labels; each is also tried as predictions, and as what TorchServe hands on."""
    from real_watch import RING

    def token(n: int) -> str:
        return RING.sign(
            model="m",
            version="1",
            predicted=1,
            confidence=0.9,
            time=1_700_000_000.0,
            nonce=n.to_bytes(12, "big"),
        )

    def label(n: int, **more: Any) -> dict[str, Any]:
        return {"receipt": token(n), "label": 1, **more}

    def dump(*found: Any) -> bytes:
        return json.dumps({"items": list(found)}).encode()

    odd = [None, True, 1.5, -1, 3, 10**40, "", "one", "\ud800", FORGED, [], [[[]]], {}, {"a": 1}, "x" * 5000]
    deep = "[" * 800 + "]" * 800
    return {
        "good.json": dump(label(1), label(2, segment="north")),
        "twice in a batch.json": dump(label(3), label(3), label(3)),
        "odd labels.json": dump(*(label(100 + i, label=value) for i, value in enumerate(odd))),
        "odd segments.json": dump(*(label(200 + i, segment=value) for i, value in enumerate(odd))),
        "odd receipts.json": dump(*({"receipt": value, "label": 1} for value in odd)),
        "odd items.json": dump(*odd),
        "odd keys.json": dump(*({**label(300 + i), str(key): 1} for i, key in enumerate(odd))),
        "surrogate as a key.json": b'{"items": [{"\\ud800": 1, "receipt": "x", "label": "\\udfff"}]}',
        "surrogate as a segment.json": dump(label(400, segment="\udcff")),
        "nul as a segment.json": dump(label(401, segment="\x00")),
        "segment of many letters.json": dump(label(402, segment="s" * 20_000)),
        "many segments.json": dump(*(label(500 + i, segment=f"s{i}") for i in range(60))),
        "nan and infinity.json": b'{"items": [{"receipt": NaN, "label": Infinity}, -Infinity]}',
        "1e999.json": b'{"items": [{"receipt": 1e999, "label": -1e999}]}',
        "huge integer.json": b'{"items": [' + b"9" * 5000 + b"]}",
        "integer of 4000 digits.json": dump(label(403, label=int("9" * 4000))),
        "doubled keys.json": b'{"items": [], "items": [{"receipt": "a", "receipt": "b", "label": 1}]}',
        "deep.json": b"[" * DEEP + b"]" * DEEP,
        "deep label.json": b'{"items": [{"receipt": "'
        + token(404).encode()
        + f'", "label": {deep}}}]}}'.encode(),
        "deep item.json": f'{{"items": [{deep}]}}'.encode(),
        "deep segment.json": f'{{"items": [{{"receipt": "x", "label": 1, "segment": {deep}}}]}}'.encode(),
        "items that is a text.json": b'{"items": "abc"}',
        "a number.json": b"7",
        "empty.json": b"",
        "not utf-8.json": b'{"items": ["\xff\xfe"]}',
        "utf-16.json": '{"items": []}'.encode("utf-16"),
        "utf-8 with a mark.json": b"\xef\xbb\xbf[]",
        "too many.json": b"[" + b"1," * 10_000 + b"1]",
        "unclosed.json": b'{"items": [1, 2',
        "crlf.ndjson": b'{"receipt": "a\\r\\nX-Evil: 1", "label": 1}\r\n\r\n{"label": 2}\r\n',
        "line separators.ndjson": '{"receipt": "a"}\u2028{"label": 2}\x85{"label": 3}\n'.encode(),
        "deep lines.ndjson": (b"[" * 5000 + b"\n") * 3,
        "odd lines.ndjson": b"\n\nnull\nNaN\n1e999\n{\n\xff\n" + b"9" * 5000 + b"\n",
    }


def served_items() -> dict[str, bytes]:
    """Bodies of predictions."""
    good = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}

    def dump(*found: Any) -> bytes:
        return json.dumps({"items": list(found)}).encode()

    odd = [None, True, 1.5, -1, 3, 2**32, 10**40, "", "\ud800", FORGED, [], {}, "x" * 5000]
    return {
        "good predictions.json": dump(good, {**good, "segment": "north", "logits": [1.0, 2.0, 3.0]}),
        **{
            f"odd {key}.json": dump(*({**good, key: value} for value in odd))
            for key in ("model", "version", "predicted", "confidence", "segment", "logits")
        },
        "odd logits inside.json": dump(*({**good, "logits": [value] * 3} for value in odd)),
        "logits beyond floats.json": b'{"items": [{"model": "m", "version": "1", "predicted": 1, '
        b'"confidence": 0.5, "logits": [1e999, NaN, -Infinity]}]}',
        "logits that are many.json": dump({**good, "logits": [0.5] * 10_000}),
        "confidence nan.json": b'[{"model": "m", "version": "1", "predicted": 1, "confidence": NaN}]',
        "confidence just above.json": dump({**good, "confidence": 1.0000000000000002}),
        "confidence that is denormal.json": dump({**good, "confidence": 5e-324}),
        "long unknown key.json": dump({**good, "k" * 50_000: 1}),
        "many unknown keys.json": dump({**good, **{f"k{i}": 1 for i in range(3000)}}),
        "forged names.json": dump({**good, "model": f'm"}} 1{FORGED}', "version": "1\n# HELP x"}),
    }


def bodies() -> dict[str, bytes]:
    """What TorchServe hands on: a matrix that the served isolation tests use too."""
    sys.path.append(str(SUPPORT))
    from hostile import MATRIX

    return {
        **{f"{name}.bin": content for name, content, *_ in MATRIX if len(content) < 300_000},
        "npy of the third version.bin": b"\x93NUMPY\x03\x00" + bytes(20),
        "npy header that is code.bin": npy_saying("__import__('os').mkdir('/tmp/calib-serve-was-owned')"),
        "npy header that is deep.bin": npy_saying("(" * 5000),
        "npy of negative size.bin": npy_saying("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}"),
        "npy of booleans for shape.bin": npy_saying(
            "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}", bytes(4)
        ),
        "npy with fields.bin": npy(np.zeros(4, [("a", "f4"), ("b", "O")]), pickled=True),
        "npy of no size.bin": npy_saying("{'descr': '<V0', 'fortran_order': False, 'shape': (4,)}"),
        "gif bomb.bin": b"GIF89a\xff\xff\xff\xff\x80\x00\x00"
        + bytes(6)
        + b",\x00\x00\x00\x00\xff\xff\xff\xff\x00",
        "tiff that loops.bin": b"II*\x00\x08\x00\x00\x00\x00\x00\x08\x00\x00\x00",
        "webp cut off.bin": b"RIFF\xff\xff\xff\xffWEBPVP8 ",
        "bmp of huge size.bin": b"BM"
        + bytes(12)
        + struct.pack("<IiiHH", 40, 1 << 30, 1 << 30, 1, 32)
        + bytes(24),
        "png that unpacks to much.bin": png(4, 4, body=zlib.compress(bytes(20 << 20))),
        "png text bomb.bin": png(4, 4)[:33]
        + struct.pack(">I", 5 + len(zlib.compress(bytes(20 << 20))))
        + b"zTXt"
        + b"key\x00\x00"
        + zlib.compress(bytes(20 << 20)),
    }


def logits() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(6, 3)), np.arange(6) % 3

    def npz(**arrays: Any) -> bytes:
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        return stream.getvalue()

    lie = npy_saying("{'descr': '<f8', 'fortran_order': False, 'shape': (2000000000000,)}")
    return {
        "sound.npz": npz(cal_logits=z, cal_labels=y, logits=z, labels=y),
        "sound.npy": npy(z),
        "sound.csv": b"label,a,b,split\n0,1.5,2,cal\n1,2,1,cal\n",
        "sound.safetensors": safetensors(
            {"logits": {"dtype": "F64", "shape": [6, 3], "data_offsets": [0, 144]}}, z.tobytes()
        ),
        "object array.npz": zipped({"logits.npy": npy(np.array([Owned()], object), pickled=True)}),
        "object array.npy": npy(np.array([Owned()], object), pickled=True),
        "pickle.npy": pickle.dumps(Owned()),
        "pickle.npz": pickle.dumps(Owned()),
        "pickle inside.npz": zipped({"logits": pickle.dumps(Owned())}),
        "lying shape.npz": zipped({"logits.npy": lie}),
        "lying shape.npy": lie,
        "lying shape of 40 GB.npz": zipped(
            {"logits.npy": npy_saying("{'descr': '<f8', 'fortran_order': False, 'shape': (5000000000,)}")}
        ),
        "decompression bomb.npz": zipped({"logits.npy": npy(np.zeros((5_000_000, 2)))}),
        "one number.npy": npy(np.float64(3)),
        "one number.npz": npz(logits=3.0, labels=1),
        "an archive in disguise.npy": npz(logits=z),
        "an array in disguise.npz": npy(z),
        "texts.npz": npz(logits=np.array([["a", "b"]]), labels=[0]),
        "texts as probabilities.npz": npz(probs=np.array([["a", "b"]]), labels=[0]),
        "times.npz": npz(logits=np.array([["2020-01-01"]], "M8[D]"), labels=[0]),
        "complex.npz": npz(logits=z + 1j, labels=y),
        "fields.npz": npz(logits=np.zeros(4, [("a", "f4"), ("b", "f4")]), labels=[0] * 4),
        "four dimensions.npz": npz(logits=np.zeros((2, 2, 2, 2)), labels=[0, 1]),
        "no rows.npz": npz(logits=np.zeros((0, 3)), labels=[]),
        "class names of nothing.npz": npz(logits=z, labels=y, class_names=3),
        "torn.npz": npz(logits=z)[:150],
        "damaged deflate.npz": zipped({"logits.npy": npy(z)}).replace(b"\x93", b"\x00")[:300],
        "encrypted.npz": npz(logits=z).replace(b"PK\x01\x02\x14\x03", b"PK\x01\x02\x14\x03")[:-60]
        + npz(logits=z)[-60:].replace(b"PK\x01\x02", b"PK\x01\x02"),
        "header that is code.npy": npy_saying("__import__('os').mkdir('/tmp/calib-serve-was-owned')"),
        "header that is deep.npy": npy_saying("[" * 3000),
        "bfloat16.safetensors": safetensors(
            {"logits": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)
        ),
        "overlapping.safetensors": safetensors(
            {k: {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]} for k in ("logits", "labels")},
            bytes(8),
        ),
        "length beyond any file.safetensors": struct.pack("<Q", 1 << 62) + b"{}",
        "one field of many letters.csv": b"label,a,b\n" + b"0,1,2\n" * 3000 + b"0,1," + b"9" * 90_000 + b"\n",
        "nul.csv": b"label,a,b\n0,\x00,1\n",
        "not utf-8.csv": b"label,\xff,b\n0,1,2\n",
        "doubled columns.csv": b"label,a,a\n0,1,2\n",
        "quote that never ends.csv": b'label,a,b\n0,"1,2\n' * 3,
        "a header of many letters.csv": b"label," + b"h" * 20_000 + b",b\n0,1,2\n",
        "ragged.csv": b"label,a,b\n0,1\n0,1,2,3\n",
        "nan.csv": b"label,a,b\n0,nan,inf\n",
        "magic alone.parquet": b"PAR1PAR1",
        "footer length that lies.parquet": b"PAR1" + bytes(20) + b"\xff\xff\xff\x7fPAR1",
        **parquets(),
    }


def parquets() -> dict[str, bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def table(**columns: Any) -> bytes:
        stream = io.BytesIO()
        pq.write_table(pa.table(columns), stream)
        return stream.getvalue()

    twice = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["a", "a"]), twice)
    return {
        "sound.parquet": table(label=[0, 1], a=[0.5, 1.5], b=[1.0, 2.0], split=["cal", "cal"]),
        "missing values.parquet": table(label=[0, None], a=[0.5, None], split=["cal", None]),
        "lists.parquet": table(label=[0], a=[[1.0, 2.0]]),
        "texts.parquet": table(label=[0], a=["x"]),
        "bytes.parquet": table(label=[0], a=[b"\xff"], split=[b"\xff"]),
        "times.parquet": table(label=[0], a=pa.array([0], pa.timestamp("ms"))),
        "doubled columns.parquet": twice.getvalue(),
        "no columns.parquet": table(),
        "a column of maps.parquet": table(label=[0], a=[{"x": 1}]),
    }


def calibration_sets() -> dict[str, bytes]:
    picks = ("object array", "lying shape", "one number", "pickle", "texts", "torn", "decompression bomb")
    arrays = {n: c.replace(b"logits", b"inputs") for n, c in logits().items() if n.startswith(picks)}
    return {
        **{name: content for name, content in arrays.items() if name.endswith((".npz", ".npy"))},
        "sound.png": png(4, 4),
        "bomb.png": png(60_000, 60_000),
        "large but not too large.png": png(13_000, 13_000),
        "cut off.png": png(4, 4)[:45],
        "no size.png": png(0, 0),
        "unpacks to much.png": png(4, 4, body=zlib.compress(bytes(20 << 20))),
        "pickle.png": pickle.dumps(Owned()),
        "postscript.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n(x) run\n",
        "outside.csv": b"file,label\n../../../etc/passwd,0\n",
        "absolute.csv": b"file,label\n/etc/passwd,0\n",
        "nul in a name.csv": b"file,label\na\x00.png,0\n",
        "a name of many letters.csv": b"file,label\n" + b"a" * 20_000 + b",0\n",
        "a label of many letters.csv": b"file,label\na.png," + b"9" * 20_000 + b"\n",
        "no label.csv": b"file,label\na.png\n",
        "field beyond the limit.csv": b"file,label\n" + b"a" * 140_000 + b",0\n",
        "not utf-8.csv": b"file,label\n\xff,0\n",
        "empty.csv": b"",
    }


def keyrings() -> dict[str, bytes]:
    key = base64.b64encode(bytes(32)).decode()
    return {
        "sound.json": json.dumps({"active": "k", "keys": {"k": key}}).encode(),
        "empty.json": b"",
        "deep.json": b'{"keys":' * DEEP,
        "keys that are a list.json": b'{"active": "k", "keys": ["k"]}',
        "a key that is a number.json": b'{"active": "k", "keys": {"k": 7}}',
        "a key that is no base64.json": b'{"active": "k", "keys": {"k": "!!!"}}',
        "a short key.json": b'{"active": "k", "keys": {"k": "AAAA"}}',
        "surrogate.json": b'{"active": "\\ud800", "keys": {"\\ud800": "' + key.encode() + b'"}}',
        "an id of a kilobyte.json": json.dumps({"active": "k" * 1000, "keys": {"k" * 1000: key}}).encode(),
        "no id.json": json.dumps({"active": "", "keys": {"": key}}).encode(),
        "doubled keys.json": f'{{"active": "k", "keys": {{"k": "{key}", "k": "AAAA"}}}}'.encode(),
        "huge integer.json": b'{"active": ' + b"9" * 10_000 + b"}",
        "not utf-8.json": b"\xff\xfe",
        "an id of line breaks.json": json.dumps({"active": "a\r\nb", "keys": {"a\r\nb": key}}).encode(),
    }


def settings() -> dict[str, bytes]:
    return {
        "sound.properties": b"a=1\n# why\nload_models=none\n",
        "not utf-8.properties": b"a=\xff\n",
        "nul.properties": b"a=\x00\n\x00=1\n",
        "line separators.properties": "a=1\u2028load_models=all\x85enable_model_api=true\x0cb=2\n".encode(),
        "carriage returns.properties": b"a=1\rload_models=all\r",
        "no keys.properties": b"=\n==\n=1\n",
        "doubled keys.properties": b"load_models=all\nload_models=all\n",
        "indented.properties": b"  load_models=all\n\tload_models = all\n  # load_models=x\n",
        "continued.properties": b"load_\\\nmodels=all\n",
    }


def texts() -> dict[str, bytes]:
    return {
        "empty.csv": b"",
        "sound.csv": b"receipt,label,segment\nabc,1,north\n",
        "field beyond the limit.csv": b"receipt,label\n" + b"a" * 140_000 + b",1\n",
        "not utf-8.csv": b"receipt,label\n\xff,1\n",
        "nul.csv": b"receipt,label\n\x00,1\n",
        "no columns.csv": b"a,b\n1,2\n",
        "short row.csv": b"receipt,label\nabc\n",
        "long row.csv": b"receipt,label\nabc,1,2,3\n",
        "label of many letters.csv": b"receipt,label\nabc," + b"9" * 20_000 + b"\n",
        "odd digits.csv": "receipt,label\nabc,\u0661\u0662\nabc,\u00b2\n".encode(),
        **{f"logits, {n}": c for n, c in logits().items() if n.endswith(".parquet")},
    }


def graphs() -> dict[str, bytes]:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from onnx.external_data_helper import set_external_data
    from readers import scratch
    from small_models import linear_onnx

    with scratch() as folder:
        sound = linear_onnx(folder / "x.onnx").read_bytes()

    def info(name: str, *shape: Any, kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    def made(nodes: list[Any], initial: list[Any] = (), *, x: Any = None, z: Any = None) -> bytes:
        graph = helper.make_graph(
            nodes, "g", [x or info("x", "n", 3)], [z or info("z", "n", 3)], list(initial)
        )
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()

    def outside(location: str, **more: Any) -> bytes:
        model = onnx.load_from_string(sound)
        for tensor in model.graph.initializer:
            set_external_data(tensor, location, **more)
            tensor.ClearField("raw_data")
        return model.SerializeToString()

    def changed(change: Any) -> bytes:
        model = onnx.load_from_string(sound)
        change(model)
        return model.SerializeToString()

    size = numpy_helper.from_array(np.array([1 << 20, 1 << 20]), "size")
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "inner", [], [info("y", "n", 3)])
    for _ in range(60):
        node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner) if _ < 8 else None
        if node is not None:
            inner = helper.make_graph([node], "inner", [], [info("y", "n", 3)])
    return {
        "sound.onnx": sound,
        "empty.onnx": b"",
        "external in etc.onnx": outside("../../etc/passwd", offset=0, length=48),
        "external absolute.onnx": outside("/etc/passwd", offset=0, length=48),
        "external at zero device.onnx": outside("/dev/zero", offset=0, length=48),
        "external in itself.onnx": outside("raw.onnx", offset=0, length=48),
        "external with a nul.onnx": outside("a\x00b"),
        "external with a negative offset.onnx": outside("raw.onnx", offset=-8, length=48),
        "external that is a folder.onnx": outside("."),
        "cycle.onnx": made(
            [helper.make_node("Add", ["x", "z"], ["a"]), helper.make_node("Relu", ["a"], ["z"])]
        ),
        "reads itself.onnx": made([helper.make_node("Relu", ["z"], ["z"])]),
        "named twice.onnx": made(
            [helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Abs", ["x"], ["z"])]
        ),
        "unknown operator.onnx": made([helper.make_node("Explode", ["x"], ["z"])]),
        "unknown domain.onnx": made([helper.make_node("Relu", ["x"], ["z"], domain="com.evil")]),
        "expands to terabytes.onnx": made(
            [
                helper.make_node("ConstantOfShape", ["size"], ["big"]),
                helper.make_node("ReduceSum", ["big"], ["sum"]),
                helper.make_node("Add", ["x", "sum"], ["z"]),
            ],
            [size],
        ),
        "input of terabytes.onnx": made(
            [helper.make_node("Identity", ["x"], ["z"])], x=info("x", 1 << 20, 1 << 20, 3), z=info("z", 1, 3)
        ),
        "initializer of huge dims.onnx": changed(
            lambda m: m.graph.initializer[0].dims.__setitem__(0, 1 << 40)
        ),
        "initializer of negative dims.onnx": changed(
            lambda m: m.graph.initializer[0].dims.__setitem__(0, -4)
        ),
        "initializer of no type.onnx": changed(lambda m: setattr(m.graph.initializer[0], "data_type", 0)),
        "initializer of an unknown type.onnx": changed(
            lambda m: setattr(m.graph.initializer[0], "data_type", 99)
        ),
        "opset beyond any.onnx": changed(lambda m: setattr(m.opset_import[0], "version", 1 << 40)),
        "negative opset.onnx": changed(lambda m: setattr(m.opset_import[0], "version", -1)),
        "no opset.onnx": changed(lambda m: m.ClearField("opset_import")),
        "ir version beyond any.onnx": changed(lambda m: setattr(m, "ir_version", 1 << 40)),
        "no outputs.onnx": changed(lambda m: m.graph.ClearField("output")),
        "no inputs.onnx": changed(lambda m: m.graph.ClearField("input")),
        "no nodes.onnx": changed(lambda m: m.graph.ClearField("node")),
        "names of line breaks.onnx": changed(lambda m: setattr(m.graph.output[0], "name", FORGED)),
        "branches in branches.onnx": made(
            [
                helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
                helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner),
            ]
        ),
        "nested messages.onnx": nested(200),
        "varint that never ends.onnx": b"\x08" + b"\xff" * 30,
        "length beyond the file.onnx": b"\x3a\xff\xff\xff\xff\x07",
    }


def nested(depth: int) -> bytes:
    """A graph in an attribute of a node of a graph ..., as protobuf bytes."""

    def field(number: int, content: bytes) -> bytes:
        length, out = len(content), b""
        while length > 127:
            out, length = out + bytes([length & 127 | 128]), length >> 7
        return bytes([number << 3 | 2]) + out + bytes([length]) + content

    graph = b""
    for _ in range(depth):
        graph = field(1, field(5, field(6, graph)))  # graph.node.attribute.g
    return b"\x08\x0a" + field(7, graph)


def endless(*, grows: bool = False) -> bytes:
    """A Loop of 2^62 turns."""
    from onnx import TensorProto, helper, numpy_helper

    def info(name: str, kind: int, *shape: Any) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["state", "state"], ["next"]),
            helper.make_node("Identity", ["state"], ["scan"]),
        ],
        "body",
        [
            info("i", TensorProto.INT64),
            info("go", TensorProto.BOOL),
            info("state", TensorProto.FLOAT, "n", 3),
        ],
        [
            info("on", TensorProto.BOOL),
            info("next", TensorProto.FLOAT, "n", 3),
            *([info("scan", TensorProto.FLOAT, "n", 3)] if grows else []),
        ],
    )
    nodes = [helper.make_node("Loop", ["times", "go0", "x"], ["z", *(["all"] if grows else [])], body=body)]
    initial = [
        numpy_helper.from_array(np.array(1 << 62), "times"),
        numpy_helper.from_array(np.array(True), "go0"),
    ]
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, "n", 3)], [info("z", TensorProto.FLOAT, "n", 3)], initial
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return bytes(model.SerializeToString())


def others() -> dict[str, dict[str, bytes]]:
    import sqlite3

    import torch
    from ledgers import accept, make_label
    from readers import scratch
    from safetensors.torch import save

    from calib_serve.watch.drift import Detector
    from calib_serve.watch.ledger import SqliteLedger

    detector = Detector(arl=1000.0)
    detector.update([0.5, 0.9, 0.7], [True, False, True])
    state = detector.state()
    with scratch() as folder:
        book = SqliteLedger(folder / "l.db")
        accept(book, [make_label(i) for i in range(3)])
        book.close()
        ledger = (folder / "l.db").read_bytes()
        db = sqlite3.connect(folder / "evil.db")
        db.execute("CREATE TABLE state (key, value)")
        db.execute("CREATE TABLE sums AS SELECT 1")
        db.execute(
            "CREATE VIEW nonces AS WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i FROM r) SELECT i FROM r"
        )
        db.commit()
        db.close()
        evil = (folder / "evil.db").read_bytes()
        shard = shards(folder)
    stream = io.BytesIO()
    torch.save({"0.weight": torch.zeros(3, 4), "0.bias": torch.zeros(3)}, stream)
    pickled = io.BytesIO()
    torch.save({"0.weight": Owned()}, pickled)
    return {
        "ledger": {"sound.db": ledger, "cut off.db": ledger[:5000], "views for tables.db": evil, "empty.db": b"",
                   "a text.db": b"hello " * 500, "header alone.db": ledger[:100]},
        "detector": {"sound.bin": state, "cut off.bin": state[: len(state) // 2], "empty.bin": b"",
                     "no body.bin": state.partition(b"\n")[0],
                     "bins beyond memory.bin": state.replace(b"15", b"1500000000000", 1),
                     "deep.bin": b"[" * DEEP, "pickle.bin": pickle.dumps(Owned())},
        "samples": shard,
        "tokens": {"sound.txt": b"0123456789abcdef\n", "short.txt": b"a\n", "empty.txt": b"",
                   "not utf-8.txt": b"\xff" * 20, "line separators.txt": "0123456789abcdef\u2028x\n".encode()},
        "models_list": {"sound.json": b'[{"name": "m", "version": "1", "classes": 3}]', "deep.json": b"[" * DEEP,
                        "a map.json": b'{"a": 1}', "odd classes.json": b'[{"name": 1, "version": 2, "classes": 1e999}]',
                        "names that are numbers.json":
                        b'[{"name": "m", "version": "1", "classes": 2, "class_names": [1, 2]}]',
                        "empty.json": b"", "not utf-8.json": b"\xff"},
        "weights": {"sound.pt": stream.getvalue(), "pickle in torch.pt": pickled.getvalue(),
                    "pickle.pt": pickle.dumps(Owned()),
                    "sound.safetensors": save({"0.weight": torch.zeros(3, 4), "0.bias": torch.zeros(3)}),
                    "other names.safetensors": save({"x": torch.zeros(3)}),
                    "state_dict that is a tensor.safetensors": save({"state_dict": torch.zeros(3)}),
                    "a list.pt": torch_saved([1, 2]), "a number.pt": torch_saved(7), "empty.pt": b"",
                    "length beyond any file.safetensors": struct.pack("<Q", 1 << 62) + b"{}"},
    }  # fmt: skip


def torch_saved(value: Any) -> bytes:
    import torch

    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def shards(folder: Path) -> dict[str, bytes]:
    from calib_serve.watch.samples import SampleLog

    log = SampleLog(folder / "log", rate=1.0)
    log.predicted("m", "1", [bytes(12)], np.zeros((1, 3)), times=[0.0])
    log.close()
    (shard,) = (folder / "log").iterdir()

    def npz(**arrays: Any) -> bytes:
        stream = io.BytesIO()
        np.savez(stream, **{"model": "m", "version": "1", "nonce": np.zeros((1, 12), np.uint8), **arrays})
        return stream.getvalue()

    return {
        "sound.npz": shard.read_bytes(),
        "labels of texts.npz": npz(label=np.array(["a"])),
        "labels beyond integers.npz": npz(label=np.array([2**64 - 1], np.uint64)),
        "labels that are nan.npz": npz(label=np.array([np.nan])),
        "logits of one dimension.npz": npz(time=[0.0], logits=np.zeros(1)),
        "logits of texts.npz": npz(time=[0.0], logits=np.array([["a"]])),
        "times of texts.npz": npz(time=np.array(["a"]), logits=np.zeros((1, 3))),
        "nonce of one number.npz": npz(nonce=3, label=[1]),
        "fewer nonces.npz": npz(nonce=np.zeros((0, 12), np.uint8), time=[0.0], logits=np.zeros((1, 3))),
        "no model.npz": npz(model=np.array([["m"]])),
    }


def every_attack() -> dict[str, dict[str, bytes]]:
    """Reader (or several, with + between) -> name -> content."""
    return {
        "manifest": manifests(),
        "params": params(),
        "receipt": receipts(),
        "mar": mars(),
        "mar_manifest": mar_manifests(),
        "model_config": model_configs(),
        "labels+predictions+body": items(),
        "predictions": served_items(),
        "body": bodies(),
        "logits+samples+checkpoint": {n: c for n, c in logits().items() if n.endswith(".npz")},
        "logits": {n: c for n, c in logits().items() if not n.endswith(".npz")},
        "data": calibration_sets(),
        "keyring": keyrings(),
        "properties": settings(),
        "labels_file": texts(),
        "onnx": graphs(),
        **others(),
    }


def main() -> None:
    """Write them all."""
    count = size = 0
    for reader, attacks in every_attack().items():
        (CORPUS / reader).mkdir(parents=True, exist_ok=True)
        for name, content in attacks.items():
            (CORPUS / reader / name.replace(" ", "-").replace(",", "")).write_bytes(content)
            count, size = count + 1, size + len(content)
    print(f"{count} files, {size >> 10} KiB")


if __name__ == "__main__":
    sys.path.append(str(SUPPORT))
    main()
