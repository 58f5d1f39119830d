"""Each step of a calibration against numpy written out here, and each refusal of what is no step."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from calib_serve.artifact.steps import Examples, Head, InputShift, LogitMap, Mixture, ProbTable, SourceMaps
from calib_serve.core.errors import InputError, ShapeError

RNG = np.random.default_rng(5)
Z = RNG.normal(0, 2, (7, 3))
DIAGONAL, FULL, BIAS = RNG.uniform(0.5, 2, 3), RNG.normal(0, 1, (3, 3)), np.array([0.5, -1.0, 0.25])
F32 = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).tiny)


def test_an_input_is_shifted_and_clipped_in_its_own_dtype() -> None:
    delta = np.array([[1.0, -2.0]])
    x = np.array([[[0.5, 0.5]], [[-3.0, 4.0]]], np.float32)
    shifted = InputShift(delta)(x)
    assert shifted.dtype == np.float32
    assert shifted.tolist() == [[[1.5, -1.5]], [[-2.0, 2.0]]]
    assert InputShift(delta, -1.0, 1.0)(x).tolist() == [[[1.0, -1.0]], [[-1.0, 1.0]]]
    assert InputShift(delta, -1.0, 0.0)(x).tolist() == [[[0.0, -1.0]], [[-1.0, 0.0]]]
    assert InputShift(delta)(x.astype(np.float64)).dtype == np.float64
    for wrong in (np.zeros((2, 2)), np.zeros((2, 1, 3)), np.zeros((1, 2)), np.zeros(2)):
        with pytest.raises(ShapeError, match="inputs must be"):
            InputShift(delta)(wrong)


def test_what_does_nothing_says_so() -> None:
    assert InputShift(np.zeros(2)).is_nothing is True
    assert InputShift(np.array([0.0, 1.0])).is_nothing is False
    assert InputShift(np.zeros(2), 0.0, 1.0).is_nothing is False
    assert Head((np.eye(2),), (np.zeros(2),)).is_nothing is False
    assert LogitMap(np.array(1.0)).is_nothing
    assert LogitMap(np.ones(3)).is_nothing
    assert LogitMap(np.eye(3)).is_nothing
    assert LogitMap(np.eye(3), np.zeros(3)).is_nothing
    assert not LogitMap(np.ones((3, 3))).is_nothing
    assert not LogitMap(np.array(2.0)).is_nothing
    assert not LogitMap(np.array([1.0, 1.0, 2.0])).is_nothing
    assert not LogitMap(np.eye(3), np.array([0.0, 0.0, 1.0])).is_nothing
    assert not LogitMap(np.eye(3), on="log_probs").is_nothing


def test_a_head_is_its_layers_with_a_relu_between() -> None:
    w0, b0, w1, b1 = (RNG.normal(size=s).astype(np.float32) for s in ((4, 3), (4,), (2, 4), (2,)))
    head = Head((w0, w1), (b0, b1))
    x = RNG.normal(size=(6, 3)).astype(np.float32)
    hidden = x @ w0.T + b0
    assert (hidden < 0).any()
    hidden = np.where(hidden < 0, 0, hidden)
    np.testing.assert_allclose(head(x), hidden @ w1.T + b1, rtol=1e-6)
    np.testing.assert_allclose(Head((w0,), (b0,))(x), x @ w0.T + b0, rtol=1e-6)  # no ReLU of what comes in
    assert (head.classes, head.options) == (2, {"layers": 2})
    assert [*head.tensors] == ["weight0", "bias0", "weight1", "bias1"]
    given = dict(head.tensors) | {"other": np.zeros(1)}
    again = Head.build({"layers": 2}, given)
    assert [*given] == ["other"]
    assert np.array_equal(again(x), head(x))
    for wrong in (x[:, :2], x[0], x[None]):
        with pytest.raises(ShapeError, match="features must be"):
            head(wrong)


def test_steps_keep_read_only_copies_of_what_they_are_given() -> None:
    head = Head(([[1.0, 2.0]],), ([3.0],))  # type: ignore[arg-type]
    mapped = LogitMap([1.0, 2.0], [3.0, 4.0])  # type: ignore[arg-type]
    shift = InputShift([1.0, 2.0])  # type: ignore[arg-type]
    for found in (*head.weights, *head.biases, mapped.weight, mapped.bias, shift.delta):
        assert isinstance(found, np.ndarray)
        assert not found.flags.writeable
    source = np.ones(2)
    kept = LogitMap(source, source)
    source[0] = 7
    assert kept.weight.tolist() == [1.0, 1.0]
    assert kept.bias is not None
    assert kept.bias.tolist() == [1.0, 1.0]
    examples = Examples([[1.0, 2.0]], [[0.0, 1.0]])  # type: ignore[arg-type]
    assert (examples.logits.tolist(), examples.probs.tolist()) == ([[1.0, 2.0]], [[0.0, 1.0]])
    assert not examples.logits.flags.writeable
    assert not examples.probs.flags.writeable
    assert (head.weights[0].dtype, shift.delta.dtype, mapped.weight.dtype) == (
        np.float32,
        np.float32,
        np.float64,
    )


@pytest.mark.parametrize("bias", [None, BIAS])
def test_a_map_is_w_z_plus_b(bias: np.ndarray | None) -> None:
    b = 0 if bias is None else bias
    for weight, expected in (
        (np.array(0.5), Z / 2 + b),
        (DIAGONAL, Z * DIAGONAL[None, :] + b),
        (FULL, np.einsum("kj,nj->nk", FULL, Z) + b),
    ):
        np.testing.assert_allclose(LogitMap(weight, bias)(Z), expected, rtol=1e-13)
        of_probs = LogitMap(weight, bias, "log_probs")(Z + 100)
        shifted = log_softmax(Z, axis=1)
        if weight.ndim == 2:
            np.testing.assert_allclose(of_probs, np.einsum("kj,nj->nk", FULL, shifted) + b, rtol=1e-10)
        else:
            np.testing.assert_allclose(of_probs, shifted * weight + b, rtol=1e-10)


@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("weight", [np.array(0.5), DIAGONAL, FULL], ids=["scalar", "diagonal", "full"])
def test_a_map_folded_into_the_layer_is_the_map_after_it(weight: np.ndarray, bias: np.ndarray | None) -> None:
    layer, shift = RNG.normal(size=(3, 5)), RNG.normal(size=3)
    x = RNG.normal(size=(4, 5))
    folded, moved = LogitMap(weight, bias).fold_into(layer, shift)
    full = np.diag(np.broadcast_to(weight, 3)) if weight.ndim < 2 else weight
    expected = (x @ layer.T + shift) @ full.T + (0 if bias is None else bias)
    np.testing.assert_allclose(x @ folded.T + moved, expected, rtol=1e-11, atol=1e-12)
    with pytest.raises(InputError, match="log-probabilities cannot be folded"):
        LogitMap(weight, bias, "log_probs").fold_into(layer, shift)


def test_a_map_ignores_a_shift_where_the_softmax_of_shifted_logits_is_the_same() -> None:
    even = np.array([[0.5, 0.2, 0.3], [0.0, 1.5, -0.5], [1.0, 1.0, -1.0]])  # each row sums to 1
    maps = [LogitMap(w, on=on) for w in (np.array(2.0), np.full(3, 2.0), DIAGONAL, FULL, even) for on in
            ("logits", "log_probs")]  # fmt: skip
    for one in maps:
        same = np.allclose(softmax(one(Z), axis=1), softmax(one(Z + 3.0), axis=1), rtol=1e-9)
        assert one.ignores_shift is bool(same)
    assert [n for n, one in enumerate(maps) if not one.ignores_shift] == [4, 6]


def test_a_masked_class_leaves_nothing_to_a_matrix_and_says_so_without_a_warning() -> None:
    z = np.array([[-np.inf, 1.0, 2.0], [-1e9, 1.0, 2.0], [0.0, 1.0, 2.0]])
    found = LogitMap(FULL, BIAS)(z)
    assert np.isnan(found[:2]).all()
    np.testing.assert_allclose(found[2], FULL @ z[2] + BIAS, rtol=1e-13)
    assert LogitMap(DIAGONAL, BIAS)(z)[:, 0].tolist() == [-np.inf, -1e9, BIAS[0]]
    assert LogitMap(DIAGONAL, BIAS)(np.array([[-9e8, 1.0, 2.0]]))[0, 0] == -9e8
    assert LogitMap([0.0, 1.0, 1.0])(z[:1]).tolist() == [[-np.inf, 1.0, 2.0]]  # type: ignore[arg-type]


def test_a_map_by_source_is_the_one_of_each_samples_source() -> None:
    maps = SourceMaps("site", ["north", "south"], [1.0, 0.5, 2.0], np.stack([0 * BIAS, BIAS, -BIAS]))
    expected = np.stack([Z[0] * 2 - BIAS, Z[1], Z[2] * 0.5 + BIAS])
    np.testing.assert_allclose(maps(Z[:3], ["south", "elsewhere", "north"]), expected, rtol=1e-13)
    np.testing.assert_allclose(maps(Z, "north"), Z * 0.5 + BIAS, rtol=1e-13)
    for masked in (-1e9, -9e8):
        assert maps(np.array([[masked, 1.0, 2.0]]), "north")[0, 0] == masked
    assert np.array_equal(maps.at("south")(Z), maps(Z, "south"))
    assert np.array_equal(maps.at("")(Z), Z)
    with pytest.raises(ShapeError, match="one source for each of 7 samples, got 1"):
        maps(Z, ["north"])
    assert (maps.classes, maps.options) == (3, {"by": "site", "sources": ["north", "south"]})
    again = SourceMaps.build(maps.options, dict(maps.tensors))
    assert np.array_equal(again(Z, "south"), maps(Z, "south"))
    alone = SourceMaps("site", ["north"], [1.0, 0.5])
    assert (alone.classes, [*alone.tensors]) == (None, ["weight"])
    assert alone(Z, "north").tolist() == (Z * 0.5).tolist()


def test_a_mixture_is_the_weighted_sum_of_softmaxes_and_the_uniform() -> None:
    mixture = Mixture(scales=[0.5, 2.0], weights=[0.5, 0.2, 0.3])
    expected = 0.5 * softmax(Z / 2, axis=1) + 0.2 * softmax(2 * Z, axis=1) + 0.3 / 3
    np.testing.assert_allclose(mixture(Z), expected, rtol=1e-13)
    assert mixture.scales.tolist() == [0.5, 2.0]
    assert mixture.weights.tolist() == [0.5, 0.2, 0.3]
    assert not mixture.weights.flags.writeable
    assert not mixture.scales.flags.writeable
    assert Mixture([1.0], [0.0, 1.0])(Z).tolist() == np.full((7, 3), 1 / 3).tolist()


def test_a_row_for_each_class_is_looked_up_and_renormalised() -> None:
    edges, values = np.array([[0.25, 0.5], [0.1, 0.6]]), np.array([[0.1, 0.4, 0.8], [0.0, 0.3, 0.6]])
    table = ProbTable(edges, values)
    p = np.array([[0.25, 0.75], [0.3, 0.7], [0.9, 0.1], [0.5, 0.6], [0.51, 0.0]])
    of_each = np.array([[0.1, 0.6], [0.4, 0.6], [0.8, 0.0], [0.4, 0.3], [0.8, 0.0]])
    assert table.of_each(p).tolist() == of_each.tolist()
    np.testing.assert_allclose(table(p), of_each / of_each.sum(axis=1, keepdims=True), rtol=1e-15)
    assert table.classes == 2
    widest = ProbTable([[0.0, 0.5, 0.5, 1.0]], [[0.0, 0.25, 0.5, 0.75, 1.0]])
    ends = [[0.0], [0.25], [0.5], [0.75], [1.0]]
    assert widest.of_each(np.array(ends)).tolist() == [[0.0], [0.25], [0.25], [0.75], [0.75]]
    with pytest.raises(ShapeError, match="for 2 classes, got 3"):
        table(np.full((1, 3), 1 / 3))


def test_one_row_maps_the_top_and_the_others_share_the_rest_in_their_proportions() -> None:
    table = ProbTable(np.array([[0.5, 0.8]]), np.array([[0.3, 0.6, 0.9]]))
    assert table.classes is None
    p = np.array([[0.1, 0.7, 0.2], [0.9, 0.02, 0.08], [0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    expected = [[0.4 / 3, 0.6, 0.8 / 3], [0.9, 0.02, 0.08], [0.3, 0.42, 0.28], [0.2, 0.2, 0.6]]
    np.testing.assert_allclose(table(p), expected, rtol=1e-12)
    # All others round to 0: they share the rest alike.
    np.testing.assert_allclose(table(np.array([[0.0, 1.0, 0.0]])), [[0.05, 0.9, 0.05]], rtol=1e-12)
    # What float32 cannot hold counts as its smallest normal number.
    tiny = np.array([[SMALLEST / 4, 1.0, 2 * SMALLEST]])
    np.testing.assert_allclose(table(tiny), [[0.1 / 3, 0.9, 0.2 / 3]], rtol=1e-6)


GOOD, ONES = np.ones((4, 3)), np.ones(4)
REFUSED = [
    (InputError, "both low and high", lambda: InputShift(np.zeros(2), 0.0)),
    (InputError, "low must be below high", lambda: InputShift(np.zeros(2), 1.0, 1.0)),
    (InputError, "low must be below high|both", lambda: InputShift(np.zeros(2), 0.0, math.inf)),
    (InputError, "low must be below high|both", lambda: InputShift(np.zeros(2), math.nan, 1.0)),
    (ShapeError, "head", lambda: Head((), ())),
    (ShapeError, "head", lambda: Head((GOOD, np.ones((2, 4))), (ONES,))),
    (ShapeError, "head", lambda: Head((GOOD,), (np.ones(3),))),
    (ShapeError, "head", lambda: Head((GOOD, np.ones((2, 3))), (ONES, np.ones(2)))),
    (InputError, "head weight must be finite", lambda: Head((GOOD * np.nan,), (ONES,))),
    (InputError, "head bias must be finite", lambda: Head((GOOD,), (ONES * np.inf,))),
    (ShapeError, "weight must be", lambda: LogitMap(np.ones((2, 3)))),
    (ShapeError, "weight must be", lambda: LogitMap(np.ones((2, 2, 2)))),
    (ShapeError, "bias must be", lambda: LogitMap(DIAGONAL, np.ones(2))),
    (ShapeError, "bias must be", lambda: LogitMap(np.array(1.0), np.ones((1, 3)))),
    (InputError, "positive in float32", lambda: LogitMap(np.array(SMALLEST / 2))),
    (InputError, "positive in float32", lambda: LogitMap(np.array(0.0))),
    (InputError, "on must be", lambda: LogitMap(DIAGONAL, on="probs")),  # type: ignore[arg-type]
    (InputError, "weight must be", lambda: LogitMap(np.array([1.0, F32 * 2]))),
    (InputError, "bias must be", lambda: LogitMap(np.ones(2), np.array([1.0, np.nan]))),
    (InputError, "temperature must be positive and finite", lambda: LogitMap.temperature(0.0)),
    (InputError, "temperature must be positive and finite", lambda: LogitMap.temperature(np.inf)),
    (InputError, "1 to 63 characters", lambda: SourceMaps("site", ["x" * 64], [1, 1])),
    (InputError, "1 to 63 characters", lambda: SourceMaps("", ["a"], [1, 1])),
    (InputError, "each named once", lambda: SourceMaps("site", ["a", "a"], [1, 1, 1])),
    (InputError, "there must be sources", lambda: SourceMaps("site", [], [1])),
    (InputError, r"weight must be \(2,\)", lambda: SourceMaps("site", ["a"], [1])),
    (InputError, "1 / T and positive", lambda: SourceMaps("site", ["a"], [1, SMALLEST / 2])),
    (ShapeError, r"bias must be \(2, K\)", lambda: SourceMaps("site", ["a"], [1, 1], [[0, 0]])),
    (ShapeError, r"bias must be \(2, K\)", lambda: SourceMaps("site", ["a"], [1, 1], [0, 0])),
    (InputError, "least is of", lambda: LogitMap(DIAGONAL, least=0.1)),
    (InputError, "least is of", lambda: LogitMap(DIAGONAL, on="log_probs", least=1.0)),
    (InputError, "least is of", lambda: LogitMap(DIAGONAL, on="log_probs", least=SMALLEST / 2)),
    (InputError, "scales", lambda: Mixture([0.0], [0.5, 0.5])),
    (InputError, "scales", lambda: Mixture([np.nan], [0.5, 0.5])),
    (InputError, "weights", lambda: Mixture([1.0], [1.5, -0.5])),
    (InputError, "weights", lambda: Mixture([1.0], [0.5, 0.5 + 2e-6])),
    (InputError, "weights", lambda: Mixture([1.0], [0.5, 0.5 - 2e-6])),
    (ShapeError, "scales|weights", lambda: Mixture([1.0, 2.0], [0.5, 0.5])),
    (InputError, "edges", lambda: ProbTable([[0.6, 0.5]], [[0, 0, 1]])),
    (InputError, "edges", lambda: ProbTable([[1.1]], [[0, 1]])),
    (InputError, "edges", lambda: ProbTable([[-0.1]], [[0, 1]])),
    (InputError, "values", lambda: ProbTable([[0.5]], [[-0.1, 1]])),
    (InputError, "values", lambda: ProbTable([[0.5]], [[0, 1.1]])),
    (InputError, "values", lambda: ProbTable([[0.5]], [[np.nan, 1]])),
    (ShapeError, "edges|values", lambda: ProbTable([[0.5]], [[0, 0.5, 1]])),
    (ShapeError, "edges|values", lambda: ProbTable([[0.5]], [[0, 1], [0, 1]])),
    (ShapeError, r"\(m, K\) twice", lambda: Examples([1.0, 2.0], [0.5, 0.5])),
    (ShapeError, r"\(m, K\) twice", lambda: Examples([[1.0, 2.0]], [[0.5, 0.25, 0.25]])),
    (ShapeError, r"\(m, K\) twice", lambda: Examples(np.ones((0, 2)), np.ones((0, 2)))),
    (InputError, "lie in", lambda: Examples([[1.0, 2.0]], [[-0.1, 1.0]])),
    (InputError, "lie in", lambda: Examples([[1.0, 2.0]], [[0.0, 1.1]])),
    (InputError, "must be finite", lambda: Examples([[1.0, np.nan]], [[0.5, 0.5]])),
    (InputError, "must be finite", lambda: Examples([[1.0, 2.0]], [[0.5, np.nan]])),
]


@pytest.mark.parametrize(("error", "said", "make"), REFUSED)
def test_what_is_no_step_is_refused(error: type[Exception], said: str, make: Callable[[], object]) -> None:
    with pytest.raises(error, match=said):
        make()
