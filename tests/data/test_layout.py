"""Inputs of another layout than the model's are told how to be turned, and the advice is right."""

from __future__ import annotations

import re

import numpy as np
import pytest

from calib_serve.data import check_input_shape
from calib_serve.errors import ShapeError


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((28, 28), (1, 28, 28)),
        ((28, 28), (None, 28, 28)),
        ((28, 28, 3), (3, 28, 28)),
        ((32, 28, 3), (3, None, None)),
        ((3, 28, 32), (28, 32, 3)),
        ((28, 28), (3, 28, 28)),
        ((1, 28, 28), (3, 28, 28)),
        ((784,), (1, 28, 28)),
        ((1, 28, 28), (784,)),
    ],
)
def test_inputs_that_are_turned_as_told_fit(given: tuple[int, ...], wanted: tuple[int | None, ...]) -> None:
    with pytest.raises(ShapeError) as refused:
        check_input_shape(given, wanted)
    (how,) = re.findall(r"(?:np\.repeat\(inputs|inputs[.\[]).*", str(refused.value))
    turned = eval(how, {"np": np, "inputs": np.zeros((2, *given))})
    assert turned.ndim == 1 + len(wanted)
    check_input_shape(turned.shape[1:], wanted)


@pytest.mark.parametrize("given", [(5, 7), (3, 28, 28), (2, 28, 28), (28, 28, 28)])
def test_no_wrong_advice_is_given(given: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"as in its training$"):
        check_input_shape(given, (1, 28, 28))
