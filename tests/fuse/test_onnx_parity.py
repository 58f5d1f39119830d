"""The check of a fused graph against the raw one: what it is measured on, allows, leaves out and refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import KINDS, artifact, output_steps
from fuse_texts import TWO, fused, graph
from gpus import needs_gpu_of_onnxruntime
from numpy.typing import NDArray

from calib_serve import Artifact
from calib_serve.artifact import Abstain, Examples, LogitMap, ProbTable
from calib_serve.core.errors import FuseError, ModelError
from calib_serve.fuse._parity import Parity, check_examples, expect
from calib_serve.fuse.onnx import _parity as parity
from calib_serve.fuse.onnx._follow import Sources
from calib_serve.fuse.onnx._parity import generate, measure, run_raw
from calib_serve.fuse.onnx._plan import Plan
from calib_serve.scores import softmax

K = 3
X = np.array([[1, 2, -4], [8, -20, 0], [3, 3, 1], [0, -1, 5]], "f4")  # halves are exact, the largest is 20
BY_TWO = artifact(TWO, classes=K)
HALVES = "h = Constant <value = float {0.5}> () "
INPUTS = "give inputs that fit the model: --inputs (inputs=)"
REPORT = "nothing was written: give typical inputs to measure with, --inputs (inputs=), or report this graph"


def planned(fitted: Artifact = BY_TWO, **facts: Any) -> Plan:
    """A plan for scores "z" of the raw graph and "y" of the fused one."""
    told: dict[str, Any] = {
        "tail": None, "passes": (), "source": "z", "scores": "z", "outputs": "logits", "told": True,
        "activation": None, "dtype": ir.DataType.FLOAT, "rounding": "FLOAT", "returns": "same",
        "output": "y", "shifted": None, "sources": Sources(), "hidden": False,
        "masked": None, "mask_inputs": frozenset(),
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
    return measure(folder / "raw.onnx", folder / "fused.onnx", plan, {"x": x}, **options)


@pytest.mark.parametrize(
    ("dtype", "near"), [("BFLOAT16", 1e-3), ("FLOAT16", 1e-3), ("FLOAT", 1e-4), ("DOUBLE", 1e-8)]
)
def test_the_narrowest_type_and_the_largest_logit_say_what_rounding_allows_and_a_thousandth_is_the_most(
    dtype: str, near: float, tmp_path: Path
) -> None:
    plan = planned(dtype=getattr(ir.DataType, dtype))
    found = measured(HALVES + "y = Mul(x, h)", tmp_path, plan)
    assert found.tolerance == pytest.approx(near)
    assert f"{near:.2g} allowed" in dict(found.rows())["parity"]


def test_rounding_of_more_than_a_thousandth_is_refused_and_says_the_type_and_the_node(
    tmp_path: Path,
) -> None:
    plan = planned(dtype=ir.DataType.FLOAT16, rounding="FLOAT16 of Gemm 'fc'")
    body = "h = Constant <value = float {0.51}> () y = Mul(x, h)"  # 1 % of 0.5, as float16 may be off
    with pytest.raises(
        FuseError, match=r"allows 0\.001; there are logits of up to 10, which FLOAT16 of Gemm 'fc'"
    ):
        measured(body, tmp_path, plan)


@pytest.mark.parametrize("made_up", [True, False])
def test_made_up_inputs_that_give_huge_logits_prove_nothing_and_typical_ones_are_asked_for(
    made_up: bool, tmp_path: Path
) -> None:
    x = (1e8 * X).astype("f4")
    if not made_up:
        found = measured(HALVES + "y = Mul(x, h)", tmp_path, planned(), x=x)
        assert found.tolerance == 1e-3
        return
    with pytest.raises(FuseError, match=r"made-up inputs give logits of up to 4e\+08.*--inputs \(inputs=\)"):
        measured(HALVES + "y = Mul(x, h)", tmp_path, planned(), x=x, made_up=True)


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


def test_a_masked_logit_may_be_rounded_by_its_own_size_alone(tmp_path: Path) -> None:
    body = MASK + HALVES + "w = Mul(z, h) o = Constant <value = float[3] {0, 0, 4e3}> () y = Add(w, o)"
    measured(body, tmp_path, planned(), raw=MASK)
    with pytest.raises(FuseError, match=r"logits differ by 0\.00012, rounding allows 0\.0001"):
        measured(body.replace("4e3", "6e3"), tmp_path, planned(), raw=MASK)
    half = planned(dtype=ir.DataType.FLOAT16)  # a hundredth of what is expected, not of what there is
    with pytest.raises(FuseError, match=r"logits differ by 0\.101, rounding allows 0\.1"):
        measured(body.replace("4e3", "-5.05e6"), tmp_path, half, raw=MASK)


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


@pytest.mark.parametrize(
    ("largest", "off", "said"), [(10.0, 4e-5, None), (10.0, 6e-5, "5e-05"), (1.0, 2e-5, "1e-05")]
)
def test_the_fit_s_own_scores_are_as_near_as_their_size_allows(
    largest: float, off: float, said: str | None
) -> None:
    z = largest * np.eye(K)
    probs = softmax(z / 2)
    probs[0] += [off, -off, 0]
    remembering = artifact(TWO, classes=K, examples=Examples(z, probs))
    if said is None:
        check_examples(remembering)
        return
    with pytest.raises(FuseError) as error:
        check_examples(remembering)
    assert str(error.value) == (
        "the fit's own scores do not get its own probabilities: "
        f"probabilities differ by {off:.0e}, rounding allows {said}; fit it again"
    )


def inputs_of(inputs: str, **options: Any) -> dict[str, NDArray[Any]]:
    """What is generated for a graph of these inputs."""
    model = graph("y = Identity(c)", f"{inputs}, float c", "float y")
    made = generate(ir.from_proto(model).graph, **options)
    made.pop("c")
    return made


def test_inputs_that_cannot_be_generated_are_asked_for() -> None:
    for inputs, said in (
        ("string[n, 3] x", "no numbers can be made for input 'x', STRING "),
        ("float[n, 1000000000000000] x", "no inputs fit the memory: "),
    ):
        with pytest.raises(FuseError, match=rf"^{said}.*--inputs \(inputs=\)$"):
            inputs_of(inputs)


def test_weights_that_are_inputs_too_and_the_names_of_sources_are_not_made_up() -> None:
    model = graph("y = Mul(x, w)", "float[n, 3] x, float[3] w, string[n] s")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, "f4"), "w"))
    assert generate(ir.from_proto(model).graph, by="s").keys() == {"x"}


ONLY_BY_ONNX = "b = Cast <to: int = 16> (x) c = Neg(b) d = Neg(c) z = Cast <to: int = 1> (d)"


@pytest.mark.parametrize(
    ("raw", "body", "engines"),
    [
        ("z = Identity(x)", HALVES + "y = Mul(x, h)", "onnxruntime"),
        ("z = Identity(x)", ONLY_BY_ONNX + HALVES + " y = Mul(z, h)", "onnxruntime, onnx.reference"),
        (ONLY_BY_ONNX, HALVES + "y = Mul(x, h)", "onnx.reference, onnxruntime"),
        (ONLY_BY_ONNX, ONLY_BY_ONNX + HALVES + " y = Mul(z, h)", "onnx.reference"),
    ],
)
def test_what_onnxruntime_cannot_run_onnx_itself_does_and_the_report_says_so(
    raw: str, body: str, engines: str, tmp_path: Path
) -> None:
    found = measured(body, tmp_path, planned(), raw=raw)
    assert (found.engine, found.max_abs_diff) == (engines, 0.0)


def test_on_a_gpu_numbers_are_not_shortened_and_no_other_engine_helps_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, Any]] = []

    def missing(model: Any, *, device: str, options: Any, **_: Any) -> Any:
        opened.append((device, options))
        raise ModelError("there is none")

    monkeypatch.setattr(parity, "open_session", missing)
    with pytest.raises(ModelError, match=r"^there is none$"):
        measured("y = Identity(x)", tmp_path, planned(), runtime="cuda")
    assert opened == [("cuda", {"use_tf32": 0})]


@needs_gpu_of_onnxruntime
@pytest.mark.parametrize("kind", KINDS)
def test_parity_is_measured_on_the_gpu_that_serves(kind: str, tmp_path: Path) -> None:
    steps = output_steps(kind, K, np.random.default_rng(0))
    report, _ = fused(graph("z = Neg(x) y = Softmax(z)"), tmp_path, *steps, runtime=("cuda",))
    assert [(one.engine, one.device) for one in report.runtimes] == [("onnxruntime", "cuda")]


def test_a_graph_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parity.PATIENCE == 120
    monkeypatch.setattr(parity, "PATIENCE", 0.01)
    body = (
        "n = Constant <value = int64 {1000000000000}> () t = Constant <value = bool {1}> () "
        "y = Loop (n, t, x) <body = b (int64 i, bool go, float[n, 3] u) => (bool still, float[n, 3] v) "
        "{ still = Identity(go) v = Neg(u) }>"
    )
    onnx.save(graph(body), tmp_path / "raw.onnx")
    with pytest.raises(FuseError, match="cannot run the model to measure parity: "):
        run_raw(tmp_path / "raw.onnx", {"x": X}, ["y"])


TWO = LogitMap.temperature(2.0)
NEAR = 1e-3


def test_sure_is_what_is_far_from_the_edges_of_a_table_as_its_own_steps_get_there() -> None:
    table = ProbTable(np.array([[0.6]]), np.array([[0.25, 0.6]]))
    fitted = artifact(TWO, TWO, table, classes=2)
    at = 4 * np.log(0.6 / 0.4)  # of temperature 4 in all, the probability is 0.6
    above = 4 * np.log(np.array([0.6005, 0.3995, 0.62, 0.38]))
    z = np.array([[at, 0], [at / 2, 0], [at / 4, 0], [*above[:2]], [*above[2:]], [40.0, 0]])
    found = expect(fitted, z, NEAR)
    assert found.scale == 10.0, "so that 0.01 were near, if it were not more than any proof allows"
    assert found.sure.tolist() == [False, True, True, False, True, True]


def test_one_score_that_is_nan_is_refused(tmp_path: Path) -> None:
    x = X.copy()
    x[1, 1] = np.nan
    with pytest.raises(FuseError) as error:
        measured("y = Identity(x)", tmp_path, planned(), x=x)
    assert str(error.value) == f"'z' is NaN on the inputs that parity is measured on; {INPUTS}"
