"""Files nobody thought of: what lies in the corpus cut, spliced and changed, and what grammars make up.

Each goes to a reader in the cage. A defect is kept as a file, with the command that puts it into the
corpus; from then on every run meets it.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attack_bytes import npy, npy_saying, safetensors, signed, zipped
from cage import CORPUS, Cage
from hypothesis import given, settings
from hypothesis import strategies as st
from made import sound_manifest
from openers import READERS
from real_watch import RING
from sizes import sized

from calib_serve.receipts.nonces import NONCE_BYTES
from calib_serve.receipts.wire import VERSION

pytestmark = pytest.mark.server

FOUND = Path(tempfile.gettempdir()) / f"calib-serve-attacks-{os.getuid()}"


def meet(cage: Cage, reader: str, content: bytes, ending: str = "") -> str:
    """What became of it; fails on a defect, and says how to keep the file."""
    fate = cage.feed(reader, content, ending)
    if fate.kind == "defect":
        FOUND.mkdir(exist_ok=True)
        path = FOUND / f"{reader}{ending}"  # the last one is the smallest that hypothesis found
        path.write_bytes(content)
        pytest.fail(f"{fate.told}\npython tests/attacks/cage.py keep {reader} {path} NAME")
    return fate.kind


# --- bytes ------------------------------------------------------------------------------------

TOKENS = [
    b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff" * 8, b"-1", b"1e999", b"NaN", b"null", b'"', b"[", b"{",
]  # fmt: skip
CHANGE = st.tuples(
    st.sampled_from(["flip", "cut", "insert", "overwrite", "repeat", "end"]),
    st.floats(0, 1, exclude_max=True),
    st.one_of(st.sampled_from(TOKENS), st.binary(min_size=1, max_size=8)),
)


def changed(content: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    for how, where, what in changes:
        at = int(where * len(content))
        before, after = content[:at], content[at:]
        content = {
            "flip": before + bytes(b ^ what[0] for b in after[:1]) + after[1:],
            "cut": before + after[len(what) :],
            "insert": before + what + after,
            "overwrite": before + what + after[len(what) :],
            "repeat": before + after[:64] * 2 + after[64:],
            "end": before,
        }[how]
    return content


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=sized(6, 200))
@given(data=st.data())
def test_changed_bytes(cage: Cage, reader: str, data: Any) -> None:
    seeds = [path for path in cage.files(reader).values() if path.stat().st_size < 20_000]
    seed, other = data.draw(st.sampled_from(seeds)), data.draw(st.sampled_from(seeds))
    content = seed.read_bytes()
    if data.draw(st.booleans()):
        half = other.read_bytes()
        content = content[: len(content) // 2] + half[len(half) // 2 :]
    changes = data.draw(st.lists(CHANGE, min_size=1, max_size=5))
    meet(cage, reader, changed(content, changes), seed.suffix)


# --- values -----------------------------------------------------------------------------------

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([-1, 0, 1, 2**31, 2**32, 2**63, 10**30]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", "m", "1", "../..", "\x00", "a\nb", "[METRICS]x", "input_shift", "head", "logits"]),
    st.binary(max_size=4).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
)
VALUE: st.SearchStrategy[Any] = st.deferred(
    lambda: ODD | st.lists(VALUE, max_size=3) | st.dictionaries(st.text(max_size=6), VALUE, max_size=3)
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside nested lists and maps."""
    found = [path] if path else []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [place for key, item in inside for place in places(item, (*path, key))]


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """``value`` with something else at ``path``."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


def spoiled(sound: Any) -> st.SearchStrategy[Any]:
    """``sound`` with one to three values changed."""

    @st.composite
    def spoil(draw: Any) -> Any:
        value = sound
        for _ in range(draw(st.integers(1, 3))):
            if found := places(value):
                value = put(value, draw(st.sampled_from(found)), draw(VALUE))
        return value

    return spoil()


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@settings(max_examples=sized(30, 800))
@given(facts=spoiled(sound_manifest()))
def test_manifests_of_any_values_with_the_right_hash(cage: Cage, facts: Any) -> None:
    try:
        content = signed(facts)
    except Exception:  # YAML cannot hold it, so nobody can send it
        return
    meet(cage, "manifest", content)


HEADER = {
    "step0.delta": {"dtype": "F32", "shape": [1, 4, 4], "data_offsets": [0, 64]},
    "step1.weight": {"dtype": "F64", "shape": [], "data_offsets": [64, 72]},
    "__metadata__": {"format": "np"},
}


@settings(max_examples=sized(30, 800))
@given(header=spoiled(HEADER), body=st.sampled_from([72, 0, 71, 73, 500]))
def test_safetensors_of_any_header(cage: Cage, header: Any, body: int) -> None:
    content = safetensors(as_json(header), bytes(body))
    meet(cage, "params", content)
    meet(cage, "body", content)


MANIFEST = {
    "runtime": "python",
    "model": {"modelName": "m", "modelVersion": "1", "handler": "h.py", "configFile": "model-config.yaml"},
}
SECTION = {
    "minWorkers": 1,
    "calib_serve": {
        "kind": "onnx",
        "model": "model.onnx",
        "sha256": "",
        "input_shape": [4],
        "artifact": "artifact",
    },
}


@settings(max_examples=sized(8, 500))
@given(found=spoiled(MANIFEST), config=spoiled(SECTION))
def test_archives_of_any_manifest_and_configuration(cage: Cage, found: Any, config: Any) -> None:
    meet(cage, "mar_manifest", as_json(found))
    meet(cage, "model_config", as_json(config))  # JSON is YAML


# --- what clients send ------------------------------------------------------------------------


def sign(ago: float, **facts: Any) -> str:
    return RING.sign(time=1_700_000_000.0 - ago, **facts)


SIGNED = st.builds(
    sign,
    ago=st.sampled_from([0.0, -1e4, 1e9, 1.7e9]),
    model=st.sampled_from(["m", "other"]),
    version=st.sampled_from(["1", "2"]),
    predicted=st.integers(0, 2**32 - 1),
    confidence=st.floats(0, 1),
    nonce=st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES),
)
LABEL = st.fixed_dictionaries(
    {"receipt": SIGNED | VALUE, "label": st.sampled_from([0, 1, "one"]) | VALUE},
    optional={"segment": st.text(max_size=70) | VALUE, "more": VALUE},
)
SERVED = st.fixed_dictionaries(
    {
        "model": st.just("m") | VALUE,
        "version": st.just("1") | VALUE,
        "predicted": st.integers(0, 3) | VALUE,
        "confidence": st.floats(0, 1) | VALUE,
    },
    optional={
        "segment": st.text(max_size=70) | VALUE,
        "logits": st.lists(st.floats(), max_size=4) | VALUE,
        "x": VALUE,
    },
)


@pytest.mark.parametrize("item", [LABEL, SERVED], ids=["labels", "predictions"])
@settings(max_examples=sized(10, 500))
@given(data=st.data(), lines=st.booleans())
def test_items_of_any_kind(cage: Cage, item: Any, data: Any, lines: bool) -> None:
    items = data.draw(st.lists(item | VALUE, max_size=6))
    content = b"\n".join(map(as_json, items)) if lines else as_json({"items": items})
    meet(cage, "labels" if item is LABEL else "predictions", content, ".ndjson" if lines else ".json")
    meet(cage, "body", content)


@settings(max_examples=sized(40, 1000))
@given(
    raw=st.binary(max_size=120),
    flags=st.integers(0, 255),
    names=st.lists(st.binary(max_size=6), min_size=4, max_size=4),
)
def test_receipts_of_any_bytes(cage: Cage, raw: bytes, flags: int, names: list[bytes]) -> None:
    told = b"".join(bytes([len(name)]) + name for name in names)
    for body in (raw, bytes([VERSION, flags]) + told + raw):
        assert meet(cage, "receipt", base64.urlsafe_b64encode(body).rstrip(b"=")) == "refused"


# --- arrays and graphs ------------------------------------------------------------------------

DESCR = st.sampled_from(
    ["<f8", "<f4", "|O", "<U3", "|V0", "<M8[D]", ">i2", "|b1", "<c16", "x", [("a", "<f4")]]
)
SHAPE = st.lists(st.sampled_from([0, 1, 2, 3, -1, True, 2**31, 2**62, 10**30]) | ODD, max_size=3).map(tuple)


@settings(max_examples=sized(20, 500))
@given(descr=DESCR, shape=SHAPE, fortran=st.booleans(), size=st.sampled_from([0, 8, 48]))
def test_arrays_of_any_header(cage: Cage, descr: Any, shape: Any, fortran: bool, size: int) -> None:
    header = repr({"descr": descr, "fortran_order": fortran, "shape": shape})
    array = npy_saying(header.encode("ascii", "backslashreplace").decode(), bytes(size))
    meet(cage, "logits", array, ".npy")
    meet(cage, "data", array, ".npy")
    meet(cage, "body", array)
    good = npy(np.arange(2))
    meet(cage, "logits", zipped({"logits.npy": array, "labels.npy": good}), ".npz")
    meet(cage, "data", zipped({"inputs.npy": array, "labels.npy": good}), ".npz")
    shard = {"model.npy": npy(np.array("m")), "version.npy": npy(np.array("1")), "nonce.npy": array}
    meet(cage, "samples", zipped({**shard, "time.npy": good, "logits.npy": array}), ".npz")
    meet(cage, "samples", zipped({**shard, "label.npy": array}), ".npz")


@settings(max_examples=sized(20, 500))
@given(data=st.data())
def test_graphs_of_any_fields(cage: Cage, data: Any) -> None:
    """A sound protobuf whose numbers and names were changed: it parses, and lies."""
    import onnx

    model = onnx.load_from_string((CORPUS / "onnx" / "sound.onnx").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        message: Any = model
        while True:
            fields = [(field, value) for field, value in message.ListFields() if field.name != "raw_data"]
            if not fields:
                break
            field, value = data.draw(st.sampled_from(fields), label=message.DESCRIPTOR.name)
            many = field.label == field.LABEL_REPEATED if hasattr(field, "label") else field.is_repeated
            if field.message_type is None:
                new = (
                    data.draw(st.sampled_from(["", "x", "z", "w", "Relu", "Loop", "com.x", "a\nb"]))
                    if field.cpp_type == field.CPPTYPE_STRING
                    else data.draw(st.sampled_from([0, 1, 2, 3, 7, 16, 99, 2**31 - 1]))
                )
                if field.cpp_type == field.CPPTYPE_STRING and field.type == field.TYPE_BYTES:
                    new = new.encode()
                try:
                    if many:
                        del value[:]
                        value.append(new)
                    else:
                        setattr(message, field.name, new)
                except (TypeError, ValueError):
                    pass
                break
            if many and data.draw(st.integers(0, 4)) == 0:
                del value[0]
                break
            message = value[data.draw(st.integers(0, len(value) - 1))] if many else value
    meet(cage, "onnx", model.SerializeToString(), ".onnx")
