"""The passes at both ends: scores that get an activation, and what the last pass asks for and promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from deciding import sets_of
from fuse_graphs import run
from fuse_texts import TWO, K, X, graph, operators
from test_onnx_outputs import TOP, fused, of, shapes

from calib_serve import Artifact
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.outputs import Finish, OpenScores
from calib_serve.fuse.onnx.plan import Request, make_plan
from calib_serve.fuse.onnx.tail import Tail, find_tail
from calib_serve.metrics import log_softmax, sigmoid, softmax
from calib_serve.scores import Outputs


def tail_of(body: str, fitted: Artifact, outputs: str = "float[n, 3] y", **told: Any) -> tuple[Editor, Tail]:
    made = Editor(ir.from_proto(onnx.shape_inference.infer_shapes(graph(body, outputs=outputs))))
    return made, find_tail(made, output="y", outputs=None, artifact=fitted, **told)


SHARES = "e = Exp(x) t = ReduceSum <keepdims: int = 1> (e, one) y = Div(e, t)"
ONE = "one = Constant <value = int64[1] {1}> () "
BARE: dict[Outputs, str] = {
    "probabilities": ONE + SHARES,
    "log_probs": ONE + SHARES.replace("y =", "p =") + " y = Log(p)",
    "label_probabilities": "s = Sigmoid(x) n = Neg(s) y = Neg(n)",
}


@pytest.mark.parametrize(
    ("kind", "said", "added"),
    [
        (
            "probabilities",
            "'y' holds probabilities: their logarithm is calibrated (Max, Log, Softmax added)",
            ["Max", "Log", "Mul", "Softmax"],
        ),
        (
            "log_probs",
            "'y' holds log-probabilities: normalised again after calibration (LogSoftmax added)",
            ["Mul", "LogSoftmax"],
        ),
        (
            "label_probabilities",
            "'y' holds probabilities of labels: their log-odds are calibrated (Sigmoid added)",
            ["Max", "Log", "Sub", "Max", "Log", "Sub", "Mul", "Sigmoid"],
        ),
    ],
)
def test_scores_without_an_activation_get_the_one_of_their_kind(
    kind: Outputs, said: str, added: list[str], tmp_path: Path
) -> None:
    model = graph(BARE[kind])
    report, made = fused(model, tmp_path, of(TWO, outputs=kind), outputs=kind)
    assert report.done[0] == said
    assert sorted(operators(made)) == sorted([*operators(model), *added])
    want = {"probabilities": softmax, "log_probs": log_softmax, "label_probabilities": sigmoid}[kind](X / 2)
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, atol=1e-5)
    assert list(shapes(made).items()) == [("y", ["n", 3])]


def test_an_activation_is_not_put_behind_another_nor_behind_logits() -> None:
    for body, kind in (("z = Neg(x) y = Softmax(z)", "probabilities"), ("y = Neg(x)", "logits")):
        _, tail = tail_of(body, of(TWO))
        with pytest.raises(FuseError, match=f"went wrong: {kind} were to get an activation; please"):
            OpenScores().requires(tail)
    broken = replace(tail_of("z = Neg(x) p = Softmax(z) y = Identity(p)", of(TWO))[1], path=())
    with pytest.raises(FuseError, match="the output is another"):
        OpenScores().ensures(broken)


# --- what the last pass asks for and promises -------------------------------------------------------

BINARY = of(TWO, classes=2, outputs="logit")


@pytest.mark.parametrize(
    ("steps", "returns", "refused"),
    [((), "same", False), ((), "all", True), ((TOP,), "same", True), ((), "probabilities", True)],
)
def test_a_binary_model_s_one_score_cannot_be_finished_as_both_classes(
    steps: tuple[Any, ...], returns: Any, refused: bool
) -> None:
    made = Editor(ir.from_proto(graph("y = Neg(x)", "float[n, 1] x", "float[n, 1] y")))
    one = find_tail(made, output="y", outputs=None, artifact=BINARY)
    two = tail_of("y = Neg(x)", of(TWO))[1]
    last = Finish(of(*steps, classes=2), returns)
    last.requires(two)
    if not refused:
        last.requires(one)
        return
    with pytest.raises(FuseError, match="both classes were to be calibrated, and there is one column"):
        last.requires(one)


def test_outputs_that_are_not_there_or_not_the_graph_s_are_noticed() -> None:
    names = "float[n, 3] y, float[n, 3] logits, float[n, 3] probabilities"
    body = "z = Neg(x) y = Softmax(z) logits = Identity(z) probabilities = Identity(y)"
    plain, setting = of(), replace(of(), sets=sets_of("lac", K))
    _, whole = tail_of(body, plain, names)
    _, bare = tail_of("z = Neg(x) y = Softmax(z)", plain)
    Finish(plain, "same").ensures(bare)
    Finish(plain, "probabilities").ensures(whole)
    wrong: list[tuple[Finish, Tail, str]] = [
        (Finish(plain, "probabilities"), bare, r"\['y'\]"),
        (Finish(plain, "all"), whole, r"\['y', 'logits', 'probabilities'\]"),
        (Finish(plain, "all"), bare, r"\['y'\]"),
        (Finish(setting, "same"), bare, r"\['y'\]"),
        (Finish(plain, "same"), replace(bare, output=bare.logits), r"\['y'\]"),
        (Finish(plain, "same"), replace(bare, output=ir.Value(name="other")), r"\[\]"),
    ]
    for last, tail, shown in wrong:
        with pytest.raises(FuseError, match=f"went wrong: the outputs are {shown}; please report"):
            last.ensures(tail)


def test_a_request_that_says_nothing_keeps_the_meaning_of_the_scores() -> None:
    made, _ = tail_of("z = Neg(x) y = Softmax(z)", of(TWO))
    plan = make_plan(made, of(TWO), Request())
    assert (plan.returns, plan.output, plan.outputs, plan.told) == ("same", "y", "probabilities", False)
