"""Scores are found in whatever holds them, and others take their place; nothing else changes."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from calib_serve.errors import ModelError
from calib_serve.metrics import softmax
from calib_serve.scores import from_probs, to_logits
from calib_serve.seam import Form, find_scores

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
