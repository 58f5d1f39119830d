"""Scores are found in whatever holds them, and others take their place; nothing else changes."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calib_serve.core.errors import ModelError
from calib_serve.scores import (
    Form,
    find_scores,
    from_probs,
    leaves,
    same_format,
    softmax,
    to_logits,
)
from calib_serve.scores.replies import Rounded, as_json

Pair = namedtuple("Pair", ["logits", "features"])
K = 4
RNG = np.random.default_rng(0)
Z = RNG.normal(size=(3, K))


@dataclass
class Output:
    """An object with the scores among others."""

    logits: Any
    loss: Any = None


HOLDERS = {
    "tensor": torch.tensor,
    "half": lambda z: torch.tensor(z).half(),
    "array": lambda z: np.asarray(z, np.float32),
    "lists": lambda z: z.tolist(),
    "rows": lambda z: [torch.tensor(row) for row in z],
    "rows of one": lambda z: [torch.tensor(row[None]) for row in z],
    "tuple": lambda z: (torch.tensor(z), torch.zeros(3, 9)),
    "list": lambda z: [torch.tensor(z), torch.zeros(3, 9)],
    "named tuple": lambda z: Pair(torch.tensor(z), torch.zeros(3, 9)),
    "dict": lambda z: {"scores": torch.tensor(z), "ids": torch.arange(3)},
    "ordered": lambda z: OrderedDict(loss=None, logits=torch.tensor(z)),
    "object": lambda z: Output(torch.tensor(z)),
    "one dict a row": lambda z: [{"scores": row, "n": k} for k, row in enumerate(torch.tensor(z))],
    "deep": lambda z: {"out": ({"logits": np.asarray(z)}, "text")},
}


def flat(value: Any) -> np.ndarray:
    return find_scores(value, K)[1].values


@pytest.mark.parametrize("name", HOLDERS)
def test_what_is_put_in_is_found_again_and_the_original_stays(name: str) -> None:
    held = HOLDERS[name](Z)
    form, scores = find_scores(held, K)
    np.testing.assert_allclose(scores.values, Z, atol=2e-3 if name == "half" else 1e-6)
    assert Form.parse(str(form)) == form
    changed = form.put(held, Z[::-1].copy(), scores.shape)
    assert type(changed) is type(held)
    np.testing.assert_allclose(flat(changed), Z[::-1], atol=2e-3)
    np.testing.assert_allclose(flat(held), Z, atol=2e-3)


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (torch.arange(3), "class ids"),
        ([1, 2, 3], "not class scores"),
        (["cat", "dog"], "text, not class scores"),
        ("cat", "text"),
        (None, "nothing"),
        ((), "tuple"),
        ({}, "dict"),
        (torch.zeros(3, K, 2), "not class scores"),
        (torch.zeros(3, 7), "returns 7 classes, the artifact is for 4"),
        (torch.zeros(()), "not class scores"),
        ({"a": torch.zeros(3, K), "b": torch.ones(3, K)}, "a, b; name one with --output"),
        ([{"label": "cat", "score": 0.9}], "not class scores"),
        ([[0.1, 0.2], [0.3]], "not class scores"),
    ],
)
def test_what_are_no_scores_is_refused_with_what_it_is(held: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        find_scores(held, K)


def test_a_list_of_one_output_and_a_list_of_one_row_are_read_by_their_own_forms() -> None:
    one = [torch.tensor(Z[:1])]
    assert str(find_scores(one, K)[0]) == "0", "of one row either may be meant"
    np.testing.assert_array_equal(Form.parse("").scores(one, K).values, Z[:1])
    three = [torch.tensor(row[None]) for row in Z]
    assert str(find_scores(three, K)[0]) == ""


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_one_logit_stays_one_logit(shape: tuple[int, ...]) -> None:
    z = np.array([-2.0, 0.5, 3.0])
    form, scores = find_scores(torch.tensor(z.reshape(shape)), 2)
    probs = softmax(to_logits(scores.values, "logits") / 2)
    put = form.put(torch.tensor(z.reshape(shape)), from_probs(probs, scores.values, "logits"), scores.shape)
    assert put.shape == shape
    np.testing.assert_allclose(put.numpy().ravel(), z / 2, atol=1e-9)
    given = form.put(
        torch.tensor(z.reshape(shape)), from_probs(probs, scores.values, "probabilities"), scores.shape
    )
    np.testing.assert_allclose(given.numpy().ravel(), 1 / (1 + np.exp(-z / 2)), atol=1e-9)


@pytest.mark.parametrize(
    ("shape", "classes", "scores"),
    [
        ((3, K), None, (3, K)),
        ((3, K), K, (3, K)),
        ((3, 2), 2, (3, 2)),
        ((3, K), 5, None),
        ((3, 2, K), None, None),
        ((K,), K, (1, K)),
        ((3,), None, (1, 3)),
        ((3,), K, None),
        ((3,), 1, (3, 1)),
        ((3,), 2, (3, 1)),
        ((1,), None, (1, 1)),
        ((3, 1), None, (3, 1)),
        ((3, 1), 1, (3, 1)),
        ((3, 1), 2, (3, 1)),
        ((3, 1), K, None),
    ],
)
def test_a_shape_tells_rows_from_single_scores(
    shape: tuple[int, ...], classes: int | None, scores: tuple[int, ...] | None
) -> None:
    values = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    for held in (values, values.tolist(), torch.tensor(values)):
        if scores is None:
            with pytest.raises(ModelError):
                find_scores(held, classes)
            continue
        found = find_scores(held, classes)[1]
        np.testing.assert_array_equal(found.values, values.reshape(scores))
        assert found.shape == shape


NAMES = ["logits", "scores", "probs", "probabilities", "output", "outputs"]


@pytest.mark.parametrize(("first", "second"), list(itertools.pairwise([*NAMES, "other"])))
def test_of_several_the_name_decides_and_one_number_a_row_is_a_loss(first: str, second: str) -> None:
    for names in ((first, second), (second, first)):
        held = {name: torch.tensor(Z) + (name == second) for name in names}
        form, scores = find_scores(held, K)
        np.testing.assert_array_equal(scores.values, Z)
        assert str(form) == first
    assert str(find_scores({"loss": torch.zeros(3, 1), "z": torch.tensor(Z)}, None)[0]) == "z"
    assert str(find_scores({"z": torch.zeros(3, 1)}, None)[0]) == "z"


@pytest.mark.parametrize(
    ("of", "half"),
    [
        (torch.zeros(2, K).half(), True),
        (torch.zeros(2, K).bfloat16(), True),
        ([torch.zeros(K).half()] * 2, True),
        (np.zeros((2, K), np.float16), True),
        (torch.zeros(2, K), False),
        ([[0.5, 0.5]], False),
    ],
)
def test_scores_of_16_bits_are_known(of: Any, half: bool) -> None:
    assert Form(("a", 1)).is_half({"a": (None, of)}) is half


# --- Replies ---------------------------------------------------------------------------------------------


@given(st.integers(-(10**6), 10**6), st.integers(1, 6), st.sampled_from(["", " %", " of 1e3"]))
def test_numbers_are_read_with_the_unit_that_they_are_rounded_to(n: int, digits: int, unit: str) -> None:
    value, text = n / 10**digits, f"{n / 10**digits:.{digits}f}"
    found = leaves({"says": f"cat: {text}{unit}", "x": [n, value, True, None, text]})
    shown, whole = found["reply.says, number 1"], found["reply.x[0]"]
    assert isinstance(shown, Rounded)
    assert shown.value == value
    assert shown.step == pytest.approx(10**-digits)
    assert whole == Rounded(n, 1.0)
    assert found["reply.x[1]"].value == value  # type: ignore[union-attr]
    assert found["reply.x[4]"] == shown
    assert [found["reply.x[2]"], found["reply.x[3]"]] == ["True", "None"]
    assert found["reply.says"] == "cat: #" + unit.replace("1e3", "#")
    assert ("reply.says, number 2" in found) == ("of" in unit)


def test_what_is_no_number_of_a_reply() -> None:
    assert leaves(math.inf) == {"reply": Rounded(math.inf, 0.0)}
    assert leaves(-math.inf) == {"reply": Rounded(-math.inf, 0.0)}
    found = leaves(math.nan)["reply"]
    assert isinstance(found, Rounded)
    assert (math.isnan(found.value), found.step) == (True, 0.0)
    assert leaves("0.5" * 2000) == {"reply": "0.5" * 2000}, "a picture, perhaps"
    assert leaves("v1.2") == {"reply": "v1.2"}


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ({"cat": 0.9, "dog": 0.1}, {"cow": 1, "dog": 0.5}, True),
        ({"cat": 0.9}, {"cat": 0.9, "dog": 0.1}, False),
        ({"id": "a", "p": 0.5}, {"id": "b", "p": 1}, True),
        ({"id": "a", "p": 0.5}, {"id": "a", "q": 0.5}, False),
        ({"id": "a", "p": 0.5}, {"id": "a", "p": "0.5"}, False),
        (["a", "b"], ["a"], True),
        (["a", "b"], ["a", 1], False),
        ([0.5, 0.5], [0.5], False),
        ([0.5, 0.5], [1, 0], True),
        ([1, 2], {"1": 2}, False),
        ("a", "b", True),
        (None, None, True),
        (None, 0.5, False),
    ],
)
def test_one_parser_reads_both_replies(before: Any, after: Any, same: bool) -> None:
    assert same_format(before, after) is same
    assert same_format(after, before) is same


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        (b'{"p": [0.5, 1]}', {"p": [0.5, 1]}),
        (bytearray("caf\u00e9\xff", "latin-1"), "caf\ufffd\ufffd"),
        ("cat 0.5", "cat 0.5"),
        ("0.5", 0.5),
        ((1, {"a": (2,)}), [1, {"a": [2]}]),
        (np.zeros(2), "ndarray"),
    ],
)
def test_a_reply_is_read_as_its_client_reads_it(reply: Any, read: Any) -> None:
    assert as_json(reply) == read
