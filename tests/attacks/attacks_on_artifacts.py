"""Manifests, tensors, receipts and keyrings made to break whoever reads them."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import struct
from typing import Any

from attack_bytes import DEEP, FORGED, Owned, safetensors, signed


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
        "bins below zero.yaml": but(reference={"count": [-1, 5], "confidence": [0, 2], "correct": [0, 2]}),
        "bins of more than their count.yaml": but(
            reference={"count": [1, 5], "confidence": [9, 2], "correct": [0, 9]}
        ),
        "classes counted below zero.yaml": but(reference_classes=[-1] * sound["classes"]),
        "a line break in a class name.yaml": but(class_names=["a\nb"] * sound["classes"]),
        "nul in a class name.yaml": but(class_names=["a\x00b"] * sound["classes"]),
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

    from calib_serve.receipts import Shadow

    def token(**changes: Any) -> str:
        facts = {
            "model": "m",
            "version": "1",
            "predicted": 1,
            "confidence": 0.9,
            "time": 1_700_000_000.0,
            "nonce": bytes(10),
        }
        return RING.sign(**{**facts, **changes})

    good = token()
    shadowed = token(shadow=Shadow(1, 0.5, b"abcd"))
    raw = base64.urlsafe_b64decode(shadowed + "=" * (-len(shadowed) % 4))
    every = {"inclusion": 0.25, "wanted": False, "group": 7, "segment": "north"}
    return {
        "good.txt": good.encode(),
        "sampled unwanted and grouped.txt": token(**every).encode(),
        "other flags.txt": altered(good, 1, 0b100),
        "unknown flags.txt": altered(good, 1, 0b10000),
        "with a shadow.txt": shadowed.encode(),
        "a shadow that is not there.txt": altered(good, 1, 0b1000),
        "a shadow of nan.txt": altered(shadowed, -28, 0x7F, 0xC0, 0, 0),
        "a shadow cut off.txt": base64.urlsafe_b64encode(raw[:-18]).rstrip(b"="),
        "a segment too long.txt": altered(good, 8, 255),
        **alterations(good, names=2, nonce=10),
        "padded.txt": good.encode() + b"==",
        "standard alphabet.txt": good.encode().replace(b"-", b"+").replace(b"_", b"/"),
        "with a line break.txt": good.encode()[:20] + b"\r\n" + good.encode()[20:],
        "twice.txt": good.encode() * 2,
        "a header injected.txt": good.encode() + b"\r\nX-Evil: 1",
        "empty.txt": b"",
        "many letters.txt": b"A" * 20_000,
        "nul.txt": b"\x00" * 40,
    }


def altered(token: str, at: int, *new: int) -> bytes:
    """The receipt with other bytes at a place."""
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    at %= len(raw)
    return base64.urlsafe_b64encode(raw[:at] + bytes(new) + raw[at + len(new) :]).rstrip(b"=")


def alterations(token: str, *, names: int, nonce: int) -> dict[str, bytes]:
    """Each field changed; where names begin and how long the nonce is tells the version."""
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    tail = len(raw) - 16
    return {
        "another key.txt": altered(token, names + 1, ord("z")),
        "another model.txt": altered(token, names + 3, ord("z")),
        "another version.txt": altered(token, names + 5, ord("9")),
        "another time.txt": altered(token, tail - 20 - nonce, 255),
        "another nonce.txt": altered(token, tail - 20, 255),
        "another class.txt": altered(token, tail - 9, 2),
        "another confidence.txt": altered(token, tail - 8, 0x3F, 0xF0, 0, 0, 0, 0, 0, 0),
        "confidence nan.txt": altered(token, tail - 8, 0x7F, 0xF8, 0, 0, 0, 0, 0, 0),
        "another mac.txt": altered(token, tail, 0, 0, 0, 0),
        "no mac.txt": base64.urlsafe_b64encode(raw[:tail]).rstrip(b"="),
        "version 255.txt": altered(token, 0, 255),
        "length beyond the end.txt": altered(token, names, 255),
        "no key id.txt": altered(token, names, 0),
        "names that are no utf-8.txt": altered(token, names + 1, 0xFF),
    }


def contracts() -> dict[str, bytes]:
    act = "{act: {above: 0.9, accuracy: 0.98}}"

    def holding(text: str) -> bytes:
        return f"contract: 1\n{text}\n".encode()

    many = ", ".join(f"s{i}: {act}" for i in range(5000))
    return {
        "sound.yaml": holding(f"per: 7d\nact: {{above: 0.9, accuracy: 0.98}}\nsegments: {{de: {act}}}"),
        "empty.yaml": b"",
        "nul.yaml": b"contract: 1\n\x00",
        "alias bomb.yaml": holding("a: &a [x, x]\nb: &b [*a, *a]\nact: *b"),
        "merge key.yaml": holding("act: {<<: {above: 0.1}, accuracy: 0.98}"),
        "key twice.yaml": holding("act: {above: 0.9, above: 0.1, accuracy: 0.98}"),
        "deep.yaml": b"contract: " + b"[" * 20_000,
        "python tag.yaml": holding("act: !!python/object/apply:os.mkdir ['/tmp/calib-serve-was-owned']"),
        "huge integer.yaml": holding(f"act: {{above: {'9' * 900}, accuracy: 0.98}}"),
        "huge hexadecimal class.yaml": holding(f"classes: {{0x{'f' * 900}: {act}}}"),
        "nan.yaml": holding("act: {above: .nan, accuracy: .inf}"),
        "bool tag.yaml": holding("act: {above: !!bool maybe, accuracy: 0.98}"),
        "norway.yaml": holding(f"segments: {{no: {act}}}\nclasses: {{no: {act}}}"),
        "id or name.yaml": holding(f"classes: {{1: {act}}}"),
        "name in quotes.yaml": holding(f'classes: {{"1": {act}, "2": {act}}}'),
        "surrogate.yaml": holding(f'segments: {{"\\uD800": {act}}}'),
        "ends of lines.yaml": holding(f'segments: {{"a\\nb\\u2028c": {act}}}'),
        "looks like another clause.yaml": holding(
            f'segments: {{"de, class 1": {act}}}\nclasses: {{"1": {act}}}'
        ),
        "list as a key.yaml": holding(f"segments: {{? [a] : {act}}}"),
        "many segments.yaml": holding(f"segments: {{{many}}}"),
        "long name.yaml": holding(f"segments: {{{'x' * 50_000}: {act}}}"),
        "forever.yaml": holding("per: 1e308d\nact: {above: 0.9, accuracy: 0.98}"),
        "infinite per.yaml": holding("per: infd\nact: {above: 0.9, accuracy: 0.98}"),
    }


def keyrings() -> dict[str, bytes]:
    key = base64.b64encode(bytes(32)).decode()

    def ring(active: str, keys: object) -> bytes:
        return json.dumps({"format": 1, "active": active, "keys": keys}).encode()

    return {
        "sound.json": ring("k", {"k": key}),
        "empty.json": b"",
        "deep.json": b'{"keys":' * DEEP,
        "keys that are a list.json": ring("k", ["k"]),
        "a key that is a number.json": ring("k", {"k": 7}),
        "a key that is no base64.json": ring("k", {"k": "!!!"}),
        "a short key.json": ring("k", {"k": "AAAA"}),
        "surrogate.json": ring("\ud800", {"\ud800": key}),
        "an id of a kilobyte.json": json.dumps(
            {"format": 1, "active": "k" * 1000, "keys": {"k" * 1000: key}}
        ).encode(),
        "no id.json": ring("", {"": key}),
        "doubled keys.json": ring("k", {"k": key, "l": "AAAA"}).replace(b'"l"', b'"k"'),
        "huge integer.json": b'{"format": 1, "active": ' + b"9" * 10_000 + b"}",
        "not utf-8.json": b"\xff\xfe",
        "an id of line breaks.json": json.dumps(
            {"format": 1, "active": "a\r\nb", "keys": {"a\r\nb": key}}
        ).encode(),
    }
