"""Bodies become inputs or reasons: never anything else, whatever the bytes."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hostile import MATRIX, npy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from calib_serve.artifact import Artifact
from calib_serve.artifact.preprocessing import Preprocessing
from calib_serve.core.errors import InputError
from calib_serve.core.files import sha256
from calib_serve.torchserve._decoding import decode, decode_lists
from calib_serve.torchserve._model import load_runtime
from calib_serve.torchserve.feedback import parse_items
from calib_serve.torchserve.mar_options import ModelOptions

SHAPE = (1, 4, 4)
SQUEEZED = Preprocessing(mean=(0.0,), std=(1.0,), resize=(4, 4))
floats = hnp.arrays(np.float32, SHAPE, elements=st.floats(-1e6, 1e6, width=32))


@settings(deadline=None)
@given(x=floats)
def test_all_ways_to_write_an_array_mean_the_same(x: np.ndarray) -> None:
    for payload in (
        x.tolist(),
        {"data": x.tolist()},
        str(x.tolist()).encode(),
        str(x.tolist()),
        npy(x),
        npy(np.asfortranarray(x)),
        npy(x.astype(">f8")),
        bytearray(npy(x)),
    ):
        found = decode(payload, shape=SHAPE)  # type: ignore[arg-type]
        assert found.dtype == np.float32
        assert np.array_equal(found, x)


@settings(deadline=None)
@given(raw=st.binary(max_size=200))
@example(raw=b"\x93NUMPY\x01\x00\x06\x00{'a':}")
@example(raw=b"\x93NUMPY\x02\x00")
@example(raw=b"\x93NUMPY\xff\xff\xff\xff\xff\xff")
@example(raw=b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
@example(raw=b"\x89PNG\r\n\x1a\n")
@example(raw=b"RIFF\xff\xff\xff\xffWEBP")
def test_any_bytes_are_an_input_or_a_reason(raw: bytes) -> None:
    with contextlib.suppress(InputError):
        assert decode(raw, shape=SHAPE, pictures=SQUEEZED).shape == SHAPE


@pytest.mark.parametrize(
    ("body", "kind"), [(m[1], m[2]) for m in MATRIX if m[3] == 400], ids=[m[0] for m in MATRIX if m[3] == 400]
)
def test_the_matrix_is_refused_by_our_own_error(body: bytes, kind: str) -> None:
    with pytest.raises(InputError) as refused:
        decode(body, shape=SHAPE, pictures=SQUEEZED)
    assert "normalised" not in str(refused.value)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"x": [1]}', 'as {"data": array}'),
        (b'"x"', "must be a JSON array of numbers"),
        ([[1], [2, 3]], "is ragged"),
        ([["1"] * 4] * 4, r"of shape .1, 4, 4., got .4, 4."),
        ([[["1"] * 4] * 4], "must hold numbers only"),
        ([[[1e300] * 4] * 4], "numbers too large"),
        (npy(np.zeros(SHAPE))[:-1], "body has 127 bytes"),
        (npy(np.zeros(SHAPE, "U1")), "must hold numbers, got dtype kind 'U'"),
        (b"\x93NUMPY\x02\x00", "header cannot be read"),
    ],
)
def test_a_refusal_says_what_an_input_is(body: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        decode(body, shape=SHAPE)


@pytest.mark.parametrize("number", [0.5, 256, -1])
def test_whole_numbers_are_not_rounded_or_wrapped(number: float) -> None:
    assert decode([255], shape=(1,), dtype="uint8").tolist() == [255]
    with pytest.raises(InputError, match="whole numbers that fit uint8"):
        decode([number], shape=(1,), dtype="uint8")


lists = st.one_of(
    floats.map(np.ndarray.tolist),
    st.sampled_from([[], [1.0], None, "x", {"data": 1}, [[["1"] * 4] * 4], 1e300]),
)


@settings(deadline=None)
@given(payloads=st.lists(lists, min_size=1, max_size=4))
def test_a_batch_at_once_is_the_same_as_one_by_one(payloads: list[Any]) -> None:
    together = decode_lists(payloads, shape=SHAPE)
    if together is not None:
        apart = np.stack([decode(payload, shape=SHAPE) for payload in payloads])
        assert together.dtype == apart.dtype
        assert np.array_equal(together, apart)
    else:
        with pytest.raises(InputError):  # one of them is to blame
            [decode(payload, shape=SHAPE) for payload in payloads]


def test_an_image_beyond_the_limit_is_refused_by_its_header() -> None:
    stream = io.BytesIO()
    Image.new("1", (2000, 2000)).save(stream, "PNG")
    with pytest.raises(InputError, match="pixels"):
        decode(stream.getvalue(), shape=(1, 4, 4), pictures=SQUEEZED, max_pixels=1_000_000)


def test_a_picture_whose_normalisation_nobody_said_is_refused_with_what_to_do() -> None:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, "PNG")
    for wanted in ("send an array", "mean= and std=", "mean=0 and std=1"):
        with pytest.raises(InputError, match=wanted):
            decode(stream.getvalue(), shape=(3, 4, 4))
    with pytest.raises(InputError, match="not a picture"):
        decode(stream.getvalue(), shape=(48,))


@pytest.mark.parametrize(
    "body", [None, b"", b"7", b'"x"', b"not json", b"[" * 99_999, [0] * 10_001, b"x\n" * 10_001]
)
def test_other_bodies_are_refused_as_a_whole(body: object) -> None:
    with pytest.raises(InputError):
        parse_items(body)


@pytest.mark.parametrize("rows", [1, 4, 6])
def test_a_graph_of_one_batch_size_serves_any(rows: int, tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(size=(3, 2)).astype("f4")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (4, 3))],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (4, 2))],
        [onnx.numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(made, tmp_path / "m.onnx")
    options = ModelOptions(
        kind="onnx", model="m.onnx", sha256=sha256(tmp_path / "m.onnx"), input_shape=(3,), outputs="logits"
    )
    run = load_runtime(tmp_path, options, Artifact((), method="none", classes=2))
    x = np.random.default_rng(1).normal(size=(rows, 3)).astype("f4")
    assert np.abs(run(x) - x @ weight).max() < 1e-6
