"""What a fused graph is to give: the raw graph's numbers, calibrated in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fuse_artifacts import artifact
from test_onnx_parity import planned

from calib_serve import LogitMap, ProbTable
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.reference import expect, of_logits
from calib_serve.metrics import log_softmax, softmax

TWO = LogitMap.temperature(2.0)
Z = np.array([[1.0, 2, -4], [8, -20, 0], [3, 3, 1]])
NEAR = 1e-3


# --- the inputs of the raw graph --------------------------------------------------------------------


# --- scores of every kind ---------------------------------------------------------------------------


# --- what rounding grows with, and what is sure ------------------------------------------------------


@pytest.mark.parametrize(
    ("logits", "labels", "scale"),
    [
        ([[0.5, -0.25]], False, 1.0), ([[2.0, -3.0], [1, 0]], False, 3.0), ([[0.0, -1000.0]], False, 1000.0),
        ([[0.0, -1000.5]], False, 1.0), ([[7.0, -np.inf], [1, 2]], False, 7.0),
        ([[-2000.0, -2001.0], [0, 1]], False, 2001.0), ([[-np.inf, -np.inf]], False, 1.0),
        ([[0.5, -0.25]], True, 1.0), ([[1000.0, 2.0]], True, 1000.0), ([[-1000.5, 2.0]], True, 2.0),
        ([[1000.5, 2.0]], True, 2.0), ([[np.inf, 2.0]], True, 2.0),
    ],
)  # fmt: skip
def test_the_scale_is_the_largest_logit_that_a_probability_shows(
    logits: list[list[float]], labels: bool, scale: float
) -> None:
    z = np.array(logits)
    kind: Any = "label_logits" if labels else "logits"
    plan = planned(artifact(classes=2, outputs=kind), outputs=kind)
    found = of_logits(z, np.zeros_like(z), plan, NEAR)
    assert found.scale == scale
    assert found.sure.tolist() == [True] * len(z)


def test_sure_is_what_is_far_from_the_edges_of_a_table_as_its_own_steps_get_there() -> None:
    table = ProbTable(np.array([[0.6]]), np.array([[0.25, 0.6]]))
    fitted = artifact(TWO, TWO, table, classes=2)
    at = 4 * np.log(0.6 / 0.4)  # of temperature 4 in all, the probability is 0.6
    above = 4 * np.log(np.array([0.605, 0.395, 0.62, 0.38]))
    z = np.array([[at, 0], [at / 2, 0], [at / 4, 0], [*above[:2]], [*above[2:]], [40.0, 0]])
    found = expect(z, planned(fitted), NEAR)
    assert found.scale == 10.0, "so that 0.01 is near"
    assert found.sure.tolist() == [False, True, True, False, True, True]


# --- numbers of another kind -------------------------------------------------------------------------

SHARES = softmax(Z)
UNIT = np.array([[0.25, 0.5, 0.75], [0.5, 0, 1], [0, 0.25, 0.25]])
ONE, ONE_UNIT = np.array([[-2.0], [3]]), np.array([[0.25], [0.75]])


@pytest.mark.parametrize(
    ("kind", "raw", "told", "found"),
    [
        ("logits", Z, False, None), ("logits", Z[:1], False, None),
        ("logits", SHARES, False, "probabilities"),
        ("logits", SHARES, True, "probabilities"), ("logits", SHARES[:1], True, "probabilities"),
        ("logits", UNIT, False, "label_probabilities"), ("logits", UNIT, True, None),
        ("logits", UNIT[:1], False, None), ("logits", log_softmax(Z), False, None),
        ("probabilities", SHARES, False, None), ("probabilities", SHARES[:1], True, None),
        ("probabilities", Z, True, "logits"), ("probabilities", UNIT, True, "label_probabilities"),
        ("probabilities", log_softmax(Z), False, "log_probs"),
        ("log_probs", log_softmax(Z), False, None), ("log_probs", Z, True, "logits"),
        ("log_probs", SHARES, False, "probabilities"), ("log_probs", Z[:1], False, "logits"),
        ("logit", ONE, False, None), ("logit", ONE_UNIT, False, "probability"),
        ("logit", ONE_UNIT, True, None), ("logit", ONE_UNIT[:1], False, None),
        ("probability", ONE_UNIT, False, None), ("probability", ONE, True, "logit"),
        ("label_logits", Z, False, None), ("label_logits", SHARES, True, "probabilities"),
        ("label_logits", UNIT, False, "label_probabilities"), ("label_logits", UNIT, True, None),
        ("label_probabilities", UNIT, False, None), ("label_probabilities", SHARES, False, None),
        ("label_probabilities", Z, True, "logits"),
    ],
)  # fmt: skip
def test_scores_that_are_taken_for_another_kind_than_their_numbers_are_refused(
    kind: Any, raw: np.ndarray, told: bool, found: str | None
) -> None:
    classes = 2 if raw.shape[1] == 1 else 3
    plan = planned(artifact(TWO, classes=classes, outputs=kind), outputs=kind, told=told)
    if found is None:
        assert expect(raw, plan, NEAR).probs.shape == raw.shape
        return
    with pytest.raises(FuseError) as error:
        expect(raw, plan, NEAR)
    assert str(error.value) == (
        f"'z' is taken for {kind}, but its numbers are {found}, which no activation of the graph "
        f"shows; say --outputs {found} (outputs={found!r}), or what else it holds"
    )


@pytest.mark.parametrize(
    ("kind", "rows", "off", "taken"),
    [
        ("probabilities", 1, 0.0099, True), ("probabilities", 1, 0.011, False),
        ("probabilities", 2, 0.0099, True), ("probabilities", 2, 0.011, False),
        ("log_probs", 2, 0.0099, True), ("log_probs", 2, 0.011, False),
        ("log_probs", 1, 9.95e-5, True), ("log_probs", 1, 1.005e-4, False),
        ("logits", 1, 9.95e-5, False), ("logits", 1, 1.005e-4, True),
        ("logits", 2, 0.0099, False),
    ],
)  # fmt: skip
def test_a_row_sums_to_1_up_to_the_rounding_of_narrow_types_and_one_row_nearer(
    kind: Any, rows: int, off: float, taken: bool
) -> None:
    shares = np.tile([[0.7 + off, 0.2, 0.1]], (rows, 1))
    raw = np.log(shares) if kind == "log_probs" else shares
    plan = planned(artifact(TWO, classes=3, outputs=kind), outputs=kind)
    if taken:
        assert expect(raw, plan, NEAR).probs.shape == raw.shape
        return
    with pytest.raises(FuseError, match=f"'z' is taken for {kind}, but its numbers are"):
        expect(raw, plan, NEAR)
