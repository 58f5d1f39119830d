"""The check of a fused graph against the raw one: what it measures, allows, leaves out and refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact
from fuse_graphs import run
from fuse_texts import TWO, fused, graph
from numpy.typing import NDArray

from calib_serve import Artifact, LogitMap, ProbTable
from calib_serve.artifact import Abstain, Examples
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.parity import Parity, measure
from calib_serve.fuse.onnx.plan import Plan
from calib_serve.metrics import softmax

K = 3
X = np.array([[1, 2, -4], [8, -20, 0], [3, 3, 1], [0, -1, 5]], "f4")  # halves are exact, the largest is 20
BY_TWO = artifact(TWO, classes=K)
HALVES = "h = Constant <value = float {0.5}> () "
INPUTS = "give inputs that fit the model: --inputs (inputs=)"
REPORT = "nothing was written: give typical inputs to measure with, --inputs (inputs=), or report this graph"


def planned(fitted: Artifact = BY_TWO, **facts: Any) -> Plan:
    """A plan for scores "z" of the raw graph and "y" of the fused one."""
    told: dict[str, Any] = {
        "tail": None, "passes": (), "source": "z", "outputs": "logits", "told": True, "activation": None,
        "dtype": ir.DataType.FLOAT, "returns": "same", "output": "y", "shifted": None, "normalization": None,
    }  # fmt: skip
    return Plan(artifact=fitted, **(told | facts))


def measured(
    body: str,
    folder: Path,
    plan: Plan,
    *,
    raw: str = "z = Identity(x)",
    outputs: str = "float[n, 3] y",
    x: NDArray[Any] = X,
    **options: Any,
) -> Parity:
    """The parity of a fused graph, given as text, with a raw one."""
    onnx.save(graph(raw, "float[n, k] x", "float[n, l] z"), folder / "raw.onnx")
    onnx.save(graph(body, "float[n, k] x", outputs), folder / "fused.onnx")
    told: dict[str, Any] = {"opset": 17, "quantized": False} | options
    return measure(folder / "raw.onnx", folder / "fused.onnx", plan, {"x": x}, **told)


# --- what is measured, and allowed ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "quantized", "near"),
    [("BFLOAT16", False, 0.05), ("FLOAT16", False, 0.01), ("FLOAT", False, 1e-5), ("DOUBLE", False, 1e-9),
     ("DOUBLE", True, 0.05)],
)  # fmt: skip
def test_the_narrowest_type_and_the_largest_logit_say_what_rounding_allows(
    dtype: str, quantized: bool, near: float, tmp_path: Path
) -> None:
    plan = planned(dtype=getattr(ir.DataType, dtype))
    found = measured(HALVES + "y = Mul(x, h)", tmp_path, plan, quantized=quantized)
    assert found.tolerance == near * 10


def test_probabilities_that_are_apart_are_refused(tmp_path: Path) -> None:
    body = HALVES + "z = Mul(x, h) y = Softmax(z)"
    plan = planned(outputs="probabilities", activation="Softmax")
    assert measured(body, tmp_path, plan).max_abs_diff < 1e-7
    off = "o = Constant <value = float[3] {0.0009765625, 0, 0}> () " + body.replace("y =", "p =")
    with pytest.raises(FuseError) as error:
        measured(off + " y = Add(p, o)", tmp_path, plan)
    assert str(error.value) == f"probabilities differ by 0.000977, rounding allows 0.0001; {REPORT}"


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_what_is_no_number_is_refused(number: str, tmp_path: Path) -> None:
    body = f"o = Constant <value = float {{{number}}}> () p = Softmax(x) y = Add(p, o)"
    with pytest.raises(FuseError, match=f"probabilities differ by {number}, rounding allows"):
        measured(body, tmp_path, planned(outputs="probabilities", activation="Softmax"))


def test_logits_that_differ_alike_have_the_same_probabilities_and_are_refused(tmp_path: Path) -> None:
    body = HALVES + "z = Mul(x, h) y = Add(z, h)"
    with pytest.raises(FuseError) as error:
        measured(body, tmp_path, planned())
    assert str(error.value) == f"logits differ by 0.5, rounding allows 0.0001; {REPORT}"


@pytest.mark.parametrize(
    ("outputs", "body"),
    [
        ("logits", "y = Mul(x, h)"), ("log_probs", "z = Mul(x, h) y = LogSoftmax(z)"),
        ("label_logits", "y = Mul(x, h)"), ("probabilities", "z = Mul(x, h) y = Softmax(z)"),
        ("label_probabilities", "z = Mul(x, h) y = Sigmoid(z)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("right", [True, False])
def test_scores_are_compared_as_what_they_are(outputs: str, body: str, right: bool, tmp_path: Path) -> None:
    made_by = {"log_probs": "LogSoftmax", "probabilities": "Softmax", "label_probabilities": "Sigmoid"}
    labels: Any = "label_logits" if "label" in outputs else "logits"
    fitted = artifact(LogitMap(np.full(K, 0.5)), classes=K, outputs=labels)
    plan = planned(fitted, outputs=outputs, activation=made_by.get(outputs))
    if right:
        assert measured(HALVES + body, tmp_path, plan).max_abs_diff < 1e-6
        return
    with pytest.raises(FuseError, match="probabilities differ by"):
        measured(HALVES.replace("0.5", "0.75") + body, tmp_path, plan)


@pytest.mark.parametrize("returns", ["probabilities", "all"])
def test_scores_that_are_returned_as_probabilities_are_found_by_that_name(
    returns: str, tmp_path: Path
) -> None:
    body = HALVES + "z = Mul(x, h) probabilities = Softmax(z) y = Neg(x)"
    outputs = "float[n, 3] y, float[n, 3] probabilities"
    assert measured(body, tmp_path, planned(returns=returns), outputs=outputs).max_abs_diff < 1e-6


def test_scores_of_another_shape_are_refused(tmp_path: Path) -> None:
    two = "s = Constant <value = int64[2] {2, 1}> () y, rest = Split <axis: int = 1> (x, s)"
    with pytest.raises(FuseError) as error:
        measured(two, tmp_path, planned(), outputs="float[n, 2] y")
    assert str(error.value) == f"the fused graph gives (4, 2), not (4, 3); {REPORT}"


MASK = "m = Constant <value = float[3] {0, 0, -1e9}> () z = Add(x, m) "
INFINITE = "a = Constant <value = float[3] {1, 1, 0}> () m = Log(a) z = Add(x, m) "


@pytest.mark.parametrize("mask", [MASK, INFINITE])
@pytest.mark.parametrize("activation", [None, "Softmax", "LogSoftmax"])
def test_masked_classes_do_not_hide_what_is_wrong_with_the_others(
    mask: str, activation: str | None, tmp_path: Path
) -> None:
    kinds = {None: "logits", "Softmax": "probabilities", "LogSoftmax": "log_probs"}
    plan = planned(outputs=kinds[activation], activation=activation)
    body = mask + HALVES + f"w = Mul(z, h) y = {activation or 'Identity'}(w)"
    found = measured(body, tmp_path, plan, raw=mask)
    assert found.max_abs_diff < 1e-6
    assert found.tolerance == 1e-5 * 10
    with pytest.raises(FuseError, match=r"probabilities differ by .*, rounding allows 0\.0001"):
        measured(body.replace("0.5", "0.51"), tmp_path, plan, raw=mask)


def test_logits_of_a_masked_class_stay_infinite(tmp_path: Path) -> None:
    _, made = fused(graph(INFINITE + "y = Identity(z)"), tmp_path, TWO)
    want = np.concatenate([X[:, :2] / 2, np.full((4, 1), -np.inf)], axis=1)
    np.testing.assert_array_equal(run(made, {"x": X})["y"], want)


def test_a_masked_logit_may_be_rounded_by_its_own_size_alone(tmp_path: Path) -> None:
    body = MASK + HALVES + "w = Mul(z, h) o = Constant <value = float[3] {0, 0, 4e3}> () y = Add(w, o)"
    measured(body, tmp_path, planned(), raw=MASK)
    with pytest.raises(FuseError, match=r"logits differ by 0\.00012, rounding allows 0\.0001"):
        measured(body.replace("4e3", "6e3"), tmp_path, planned(), raw=MASK)
    half = planned(dtype=ir.DataType.FLOAT16)  # a hundredth of what is expected, not of what there is
    with pytest.raises(FuseError, match=r"logits differ by 0\.101, rounding allows 0\.1"):
        measured(body.replace("4e3", "-5.05e6"), tmp_path, half, raw=MASK)


# --- what is left out -------------------------------------------------------------------------------

AT_EDGES = ProbTable(np.array([[0.5]]), np.array([[0.25, 0.75]]))


def test_samples_at_an_edge_and_decisions_at_a_threshold_are_left_out_and_counted(tmp_path: Path) -> None:
    # Two largest are 0.5, an edge: they become 0.25 or 0.75. The others become 0.75, the threshold.
    plain = artifact(AT_EDGES, classes=2)
    plan = planned(replace(plain, abstain=Abstain(0.75, 0.1)), outputs="probabilities", activation="Softmax")
    x = np.array([[0, 0], [9, 0], [0, 5], [1, 1], [6, 0]], "f4")
    body = (
        "l = Constant <value = float[5, 2] {0.5, 0.5, 0.75, 0.25, 0.25, 0.75, 0.125, 0.875, 0.75, 0.25}> () "
        "abstain = Constant <value = bool[5] {1, 0, 1, 1, 0}> () o = Constant <value = float {0}> () "
        "s = Mul(x, o) y = Add(l, s)"
    )
    outputs = "float[n, 2] y, bool[n] abstain"
    found = measured(body, tmp_path, plan, x=x, outputs=outputs)
    assert (found.samples, found.near_edge, found.near_threshold) == (5, 2, 3)
    assert found.max_abs_diff == 0.0
    with pytest.raises(FuseError, match=r"^probabilities differ by 0.25, rounding allows 9e-05"):
        measured(body.replace("0.75, 0.25, 0.25", "0.5, 0.5, 0.25"), tmp_path, plan, x=x, outputs=outputs)


# --- the fit's own scores ---------------------------------------------------------------------------


def remembering(z: NDArray[np.float64], off: float = 0.0, **facts: Any) -> Artifact:
    """Of temperature 2, with scores of its fit, whose first probability is told larger than it is."""
    probs = softmax(z / 2)
    probs[0] += [off, -off, 0]
    return artifact(TWO, classes=K, examples=Examples(z, probs), **facts)


@pytest.mark.parametrize(
    ("largest", "off", "said"), [(10.0, 4e-5, None), (10.0, 6e-5, "5e-05"), (1.0, 2e-5, "1e-05")]
)
def test_the_fit_s_own_scores_are_as_near_as_their_size_allows(
    largest: float, off: float, said: str | None, tmp_path: Path
) -> None:
    plan = planned(remembering(largest * np.eye(K), off), outputs="probabilities", activation="Softmax")
    body = HALVES + "z = Mul(x, h) y = Softmax(z)"
    if said is None:
        assert measured(body, tmp_path, plan).own_scores == 3
        return
    with pytest.raises(FuseError) as error:
        measured(body, tmp_path, plan)
    assert str(error.value) == (
        "the fit's own scores do not get its own probabilities: "
        f"probabilities differ by {off:.0e}, rounding allows {said}; {REPORT}"
    )


def test_decisions_on_the_fit_s_own_scores_are_as_near_as_their_size_allows(tmp_path: Path) -> None:
    # The fit's probability is told to be above a threshold that its score is below.
    z = np.array([[10.0, 0, 0], [2, 0, 0]])
    top = float(softmax(z[1] / 2).max())
    for off, refused in ((2e-5, False), (2e-4, True)):
        sure = replace(remembering(z), abstain=Abstain(top * (1 + off), 0.1))
        probs = softmax(z / 2)
        probs[1] *= 1 + 2 * off
        fitted = replace(sure, examples=Examples(z, probs))
        body = (
            HALVES + "z = Mul(x, h) y = Softmax(z) t = ReduceMax <axes: ints = [1], keepdims: int = 0> (y) "
            f"l = Constant <value = float {{{top * (1 + off)}}}> () abstain = Less(t, l)"
        )
        plan = planned(fitted, outputs="probabilities", activation="Softmax")
        outputs = "float[n, 3] y, bool[n] abstain"
        if refused:
            with pytest.raises(FuseError, match=r"own scores do not get its own .*'abstain' differ"):
                measured(body, tmp_path, plan, outputs=outputs)
        else:
            assert measured(body, tmp_path, plan, outputs=outputs).own_scores == 2
