"""Labels in small graphs that follow the calibrated scores, and those that must not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fuse_graphs import run
from fuse_texts import TWO, fused, graph, operators
from test_onnx_label_graphs import BIAS, CLASSIFIER, X

from calib_serve import LogitMap


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


# --- values that no whole graph has -----------------------------------------------------------------
