"""Tensors and bodies as they are on the wire: equal to other libraries', and never more than was said."""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import ExitStack, suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gateways import artifact, logits, probs
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calib_serve.core.errors import InputError
from calib_serve.core.oip import Tensor, of_list, of_raw, raw_of
from calib_serve.gateway.calibration import Calibration
from calib_serve.gateway.rest import Ask, Reply, decompress, read_infer_request, read_route
from calib_serve.receipts import Tag
from calib_serve.web import Full, TooLarge, Waiting


class Unsigned:
    """Reports to nobody."""

    def served(self, probs: np.ndarray, **_: Any) -> list[Any]:
        return [None] * len(probs)


@given(arrays(np.float32, st.integers(0, 50), elements=st.floats(width=32)))
def test_bf16_is_rounded_as_ml_dtypes_rounds_it(values: np.ndarray) -> None:
    raw = raw_of(Tensor("z", "BF16", values))
    with np.errstate(over="ignore", invalid="ignore"):
        theirs = values.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(of_raw("BF16", [len(values)], raw), theirs.astype("f4"))


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("FP32", [2], [1]),
        ("FP32", [1 << 62, 4], []),
        ("FP32", [-1], [1]),
        ("INT64", [1], [1.5]),
        ("UINT8", [1], [256]),
        ("UINT8", [1], [-1]),
        ("BOOL", [1], [1]),
        ("BYTES", [1], [1]),
        ("FP32", [1], ["1"]),
        ("FP32", [1], [None]),
        ("FP128", [1], [1]),
        ("FP32", [2], [[1], [2, 3]]),
        ("FP32", [1], [True]),
        ("FP32", [1], 10**400),
    ],
)
def test_what_is_no_tensor_is_refused(datatype: str, shape: Any, data: Any) -> None:
    with pytest.raises(InputError):
        of_list(datatype, shape, data)


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_every_datatype_of_scores_comes_back_as_it_came(datatype: str) -> None:
    z = of_raw(datatype, [5, 3], raw_of(Tensor("z", datatype, logits())))
    made = Calibration("m", "1", artifact(), output="z", kind="logits", reports=Unsigned())(z, Tag())
    again = of_raw(datatype, [5, 3], raw_of(Tensor("z", datatype, made.values))).astype("f8")
    e = np.exp(again)
    error = {"FP16": 2e-3, "BF16": 2e-2}.get(datatype, 1e-6)
    np.testing.assert_allclose(e / e.sum(axis=1, keepdims=True), probs(), atol=error)


def test_axes_of_one_stay_where_they_are_and_other_shapes_are_no_scores() -> None:
    calibration = Calibration("m", "1", artifact(), output="z", kind="logits", reports=Unsigned())
    for shape in ((5, 3), (5, 3, 1), (5, 1, 3), (5, 3, 1, 1)):
        made = calibration(logits().reshape(shape), Tag())
        assert made.values.shape == shape
        np.testing.assert_allclose(np.exp(made.values.reshape(5, 3)), probs(), atol=1e-6)
    assert calibration(logits()[0], Tag()).values.shape == (3,)
    for wrong in ((3, 5), (15,), (1, 5, 3), (5, 3, 2), ()):
        with pytest.raises(InputError):
            calibration(np.zeros(wrong, "f4"), Tag())


def test_several_members_of_gzip_are_one_body_and_bounded_together() -> None:
    parts = gzip.compress(b"a" * 60) * 2
    assert decompress(parts, "gzip", most=120) == b"a" * 120
    for bad in (parts, parts + b"x", gzip.compress(b"a")[:-1], zlib.compress(b"a")[1:], b""):
        if bad:
            with pytest.raises(InputError):
                decompress(bad, "gzip", most=119)


@given(st.binary(max_size=200), st.one_of(st.none(), st.integers(0, 200)))
def test_any_bytes_are_read_or_refused(body: bytes, length: int | None) -> None:
    with suppress(InputError):
        route = read_route("POST", b"/" + body)
        assert "/" not in route.model + route.version
    with suppress(InputError):
        Reply.read(body, length)
    ask = read_infer_request(body, None, "logits")
    assert ask.body == body or json.loads(ask.body)["outputs"]


def test_a_name_in_other_letters_of_json_is_found() -> None:
    escaped = b'{"\\u006futputs": [{"name": "best"}], "inputs": []}'
    asked = read_infer_request(escaped, None, "logits")
    assert [one["name"] for one in json.loads(asked.body)["outputs"]] == ["best", "logits"]
    assert asked == Ask(asked.body, None, returned=False, added=None)


def test_what_is_held_is_given_back() -> None:
    waiting = Waiting(1, most=10)
    with waiting.one(), pytest.raises(Full), waiting.one():
        pass
    for _ in range(50):
        with waiting.body() as body:
            body.add(b"a" * 10)
            with pytest.raises(TooLarge):
                body.add(b"a")
            body.hold(100)  # what is made of it may be larger
    with ExitStack() as held:
        bodies = [held.enter_context(waiting.body()) for _ in range(17)]
        for one in bodies[:16]:
            one.add(b"a" * 10)
        with pytest.raises(Full):
            bodies[16].add(b"a")
    assert waiting.held == 0
