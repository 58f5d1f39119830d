"""Labels in small graphs that follow the calibrated scores, and those that must not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact
from fuse_graphs import run
from fuse_texts import LAYER, TWO, fused, graph, operators
from test_onnx_label_graphs import BIAS, CLASSIFIER, SCORES, X, warning

from calib_serve import LogitMap, ProbTable
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.graph import fuse_onnx
from calib_serve.fuse.onnx.labels import _calibrated, _decide, _rename
from calib_serve.fuse.onnx.tail import Tail


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ("", ("label",)), ("name = Cast <to: int = 6> (label)", ("name",)),
        ("name = Cast <to: int = 6> (label)", ("label", "name")), ("", ()),
    ],
)  # fmt: skip
def test_a_classifiers_label_follows_where_anybody_sees_it(
    names: str, shown: tuple[str, ...], tmp_path: Path
) -> None:
    body = CLASSIFIER + "tiny = Constant <value = float {1e-3}> () e = Exp(s) a = Max(e, tiny) b = Log(a) "
    kinds = {"label": "int64[n] label", "name": "int32[n] name"}
    outputs = ", ".join(["float[n, 3] y", *(kinds[name] for name in shown)])
    report, made = fused(
        graph(body + "y = Softmax(b)" + names, outputs=outputs), tmp_path, BIAS, output_name="y"
    )
    said = ["labels by LinearClassifier 'label' follow the calibrated scores"] if shown else []
    assert list(report.done[1:]) == said
    assert operators(made).count("ArgMax") == len(said)
    assert [one.name for one in made.graph.output] == ["y", *shown]
    got = run(made, {"x": X})
    for name in shown:
        np.testing.assert_array_equal(got[name], 4 + got["y"].argmax(axis=1))
        assert got[name].dtype == {"label": np.int64, "name": np.int32}[name]
    assert (got["y"].argmax(axis=1) != X.argmax(axis=1)).any()


def test_a_label_beside_scores_by_name_follows_them(tmp_path: Path) -> None:
    names = "<classlabels_int64s: ints = [4, 5, 6]>"
    body = CLASSIFIER + f"p = Softmax(s) y = ai.onnx.ml.ZipMap {names} (p)"
    model = graph(body, outputs="int64[n] label, seq(map(int64, float)) y")
    report, made = fused(model, tmp_path, BIAS, output_name="y")
    assert report.done[1:] == ("labels by LinearClassifier 'label' follow the calibrated scores",)
    got = run(made, {"x": X})
    assert got["label"].tolist() == [max(row, key=row.get) for row in got["y"]]


def test_labels_follow_the_chosen_scores_and_not_others_of_a_name_of_ours(tmp_path: Path) -> None:
    body = CLASSIFIER + "logits = Identity(s) probabilities = Softmax(s)"
    shown = "float[n, 3] logits, float[n, 3] probabilities, int64[n] label"
    report, made = fused(graph(body, outputs=shown), tmp_path, BIAS, output_name="logits", outputs="logits")
    assert report.done[1:] == ("labels by LinearClassifier 'label' follow the calibrated scores",)
    got = run(made, {"x": X})
    np.testing.assert_array_equal(got["label"], 4 + got["logits"].argmax(axis=1))
    assert (got["probabilities"].argmax(axis=1) != got["logits"].argmax(axis=1)).any()


@pytest.mark.parametrize("step", [BIAS, TWO])
def test_an_earlier_decision_of_the_same_scores_follows_and_stands_behind_them(
    step: LogitMap, tmp_path: Path
) -> None:
    body = "a = Neg(x) label = ArgMax <axis: int = 1, keepdims: int = 0> (a) z = Identity(a) y = Softmax(z)"
    model = graph(body, outputs="float[n, 3] y, int64[n] label")
    report, made = fused(model, tmp_path, step, output_name="y")
    follows = "labels by ArgMax 'label' follow the calibrated scores"
    assert report.done[1:] == ((follows,) if step is BIAS else ())
    (decides,) = (node for node in made.graph.node if node.op_type == "ArgMax")
    assert list(decides.input) == ["y" if step is BIAS else "a"]
    got = run(made, {"x": X})
    np.testing.assert_array_equal(got["label"], got["y"].argmax(axis=1))


def test_what_reads_the_calibrated_scores_already_needs_no_word(tmp_path: Path) -> None:
    body = LAYER + "y = MatMul(x, w) label = ArgMax <axis: int = 1> (y)"
    report, _ = fused(
        graph(body, outputs="float[n, 3] y, int64[n, 1] label"), tmp_path, BIAS, output_name="y"
    )
    assert report.done == ("logit map folded into Gemm 'y'",)


def test_a_decision_in_a_branch_stays_there(tmp_path: Path) -> None:
    branch = "graph = {name} () => (int64[n, 1] {name}) {{ {name} = ArgMax <axis: int = 1> (a) }}"
    branches = f"then_branch: {branch.format(name='t')}, else_branch: {branch.format(name='e')}"
    body = f"a = Neg(x) z = Identity(a) y = Softmax(z) label = If <{branches}> (c)"
    model = graph(body, "float[n, 3] x, bool c", "float[n, 3] y, int64[n, 1] label")
    report, made = fused(model, tmp_path, BIAS, output_name="y")
    assert report.done[1:] == ()
    got = run(made, {"x": X, "c": np.array(True)})
    np.testing.assert_array_equal(got["label"][:, 0], (-X).argmax(axis=1))


@pytest.mark.parametrize(
    ("sizes", "step", "said"),
    [
        ("n, 1", LogitMap(np.array(1.0), np.array([0.0, 1.0])), ()),
        ("n, 1", ProbTable([[0.4], [0.6]], [[0.2, 0.9], [0.2, 0.9]]), ()),
        ("n, 2, 1, 1", LogitMap(np.array(1.0), np.array([0.0, 1.0])), (warning("label", "ArgMax 'label'"),)),
    ],
)  # fmt: skip
def test_a_decision_over_other_shapes_than_the_scores_is_not_moved(
    sizes: str, step: object, said: tuple[str, ...], tmp_path: Path
) -> None:
    activation = "Sigmoid" if sizes == "n, 1" else "Softmax <axis: int = 1>"
    body = f"a = Neg(x) z = Identity(a) y = {activation} (z) label = ArgMax <axis: int = 1> (a)"
    label = sizes.replace("n, 2", "n, 1")
    model = graph(body, f"float[{sizes}] x", f"float[{sizes}] y, int64[{label}] label")
    onnx.save(model, tmp_path / "raw.onnx")
    fitted = artifact(step, classes=2, outputs="logit" if sizes == "n, 1" else "logits")
    report = fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", output_name="y")
    assert tuple(what for what in report.done if "label" in what) == said


# --- values that no whole graph has -----------------------------------------------------------------


def opened(body: str, outputs: str = "float[n, 3] y") -> tuple[Editor, dict[str, ir.Value]]:
    made = Editor(ir.from_proto(onnx.shape_inference.infer_shapes(graph(body, outputs=outputs))))
    return made, {str(v.name): v for node in made.graph for v in node.outputs}


def test_operators_of_other_domains_and_other_numbers_of_names_are_left() -> None:
    made, values = opened(
        CLASSIFIER + "y = Identity(s) d = of.ours.ArgMax(y) other, t = of.ours.LinearClassifier "
        "<classlabels_ints: ints = [4, 5, 6]> (x) n = Neg(other) m = Neg(label)"
    )
    y, before = values["y"], len(made.graph)
    assert _rename(made, values["t"], y, 3) == []
    assert _rename(made, values["d"], y, 3) == []
    assert _rename(made, values["s"], y, 4) == []
    assert _rename(made, values["label"], y, 3) == []
    assert _rename(made, made.graph.inputs[0], y, 3) == []
    assert _decide(made, y, values["s"]) == []
    assert len(made.graph) == before
    assert _rename(made, values["s"], y, 3) == ["LinearClassifier 'label'"]


@pytest.mark.parametrize(("unknown", "followed"), [("shape", True), ("type", False)])
def test_scores_of_unknown_shape_are_followed_and_of_unknown_type_are_not(
    unknown: str, followed: bool
) -> None:
    made, values = opened(SCORES)
    y, node = values["y"], values["y"].producer()
    assert node is not None
    tail = Tail(values["z"], y, (node,), node, "probabilities")
    assert _calibrated(made, tail) is y
    setattr(y, unknown, None)
    assert (_calibrated(made, tail) is y) == followed
    values["z"].shape = ir.Shape(["n", 1])
    assert _calibrated(made, tail) is None, "one column of a binary model is no score of each class"


def test_scores_that_are_the_graphs_input_are_known() -> None:
    made, _ = opened("y = Neg(x)")
    (x,) = made.graph.inputs
    assert _calibrated(made, Tail(x, x, (), None, "logits")) is x
