"""Actions in fused graphs and modules: the same as the artifact's, in every runtime, and none for NaN."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fuse_artifacts import artifact
from onnx_runtimes import RUNTIMES, by_onnxruntime, run_or_skip
from test_onnx_decisions import LEAST, fused, graph, greater_where_nan, rows
from torch import nn

from calib_serve import Artifact
from calib_serve.artifact import Choice, Examples, LogitMap
from calib_serve.core.errors import FuseError
from calib_serve.fuse import calibrated, fuse_onnx

COSTS = {
    2: Choice(("no", "yes", "ask"), "cost", 0.5, costs=np.array([[0.0, 1.0, 0.3], [4.0, 0.0, 0.3]])),
    5: Choice(
        tuple("abcdef"), "cost", 2.0, costs=np.c_[3 * (1 - np.eye(5)) + np.arange(5) / 4, np.full(5, 2.0)]
    ),
}


def deciding(choice: Choice, *steps) -> Artifact:
    steps = steps or (LogitMap.temperature(2.0),)
    return replace(artifact(*steps, classes=choice.classes), choice=choice)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("choice", [*COSTS.values(), LEAST], ids=["two", "five", "threshold"])
def test_every_runtime_chooses_as_the_artifact_does(choice: Choice, runtime: str, tmp_path: Path) -> None:
    out = fused(graph(tmp_path, "Softmax", classes=choice.classes), deciding(choice), returns="all")
    x = rows(400, choice.classes)
    got = run_or_skip(runtime, out, {"x": x})
    assert got["decision"].dtype == np.int64
    np.testing.assert_array_equal(got["decision"], choice(got["probabilities"]))
    assert len(np.unique(got["decision"])) == len(choice.actions)


@pytest.mark.parametrize("choice", [COSTS[5], COSTS[2], LEAST], ids=["five", "two", "threshold"])
def test_nan_is_no_action_whatever_a_runtime_compares(choice: Choice, tmp_path: Path) -> None:
    one, x = deciding(choice), rows(6, choice.classes)
    out = fused(graph(tmp_path, "Softmax", classes=choice.classes), one)
    x[:2, 1], x[2] = np.nan, np.nan
    greater_where_nan(out)
    wanted = [-1] * 3 + choice(one.of_logits(x[3:])).tolist()
    assert by_onnxruntime(out, {"x": x})["decision"].tolist() == wanted
    module = calibrated(nn.Identity(), one, returns="all", outputs="logits")
    assert module(torch.tensor(x))["decision"].tolist() == wanted
    assert choice(one.of_logits(x)).tolist() == wanted


@pytest.mark.parametrize("choice", [COSTS[2], LEAST], ids=["costs", "threshold"])
def test_models_of_one_column_choose_by_both_classes(choice: Choice, tmp_path: Path) -> None:
    one = replace(artifact(LogitMap.temperature(2.0), classes=2, outputs="logit"), choice=choice)
    x = rows(100, 1)
    got = by_onnxruntime(fused(graph(tmp_path, classes=1), one, outputs="logit"), {"x": x})["decision"]
    wanted = choice(one.probs(x.astype("f8")))
    np.testing.assert_array_equal(got, wanted)
    module = calibrated(nn.Identity(), one, returns="all", outputs="logit", example=torch.tensor(x))
    np.testing.assert_array_equal(module(torch.tensor(x))["decision"], wanted)


def test_examples_are_checked_without_actions_and_places_have_their_own(tmp_path: Path) -> None:
    one = deciding(LEAST)
    logits = rows(4, 2).astype("f8")
    one = replace(one, examples=Examples(logits, one.of_logits(logits)))
    fused(graph(tmp_path, classes=2), one)
    tokens = replace(one, examples=None, model={"outputs": "logits", "class_axis": -1})
    x = torch.tensor(rows(12, 2).reshape(3, 4, 2))
    found = calibrated(nn.Identity(), tokens, returns="all", example=x)(x)
    assert found["decision"].shape == (3, 4)
    wanted = LEAST(tokens.probs(x.numpy()), class_axis=-1)
    np.testing.assert_array_equal(found["decision"], wanted)


def test_classes_in_another_order_are_refused_where_costs_tell_them_apart(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    skl2onnx = pytest.importorskip("skl2onnx")
    z = rows(60, 2)
    model = LogisticRegression().fit(z, np.array(["b", "a"])[(z[:, 0] > z[:, 1]).astype(int)])
    made = skl2onnx.to_onnx(model, z, options={"zipmap": False})
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    one = replace(
        artifact(LogitMap.temperature(1.5), classes=2, outputs="probabilities"), class_names=("b", "a")
    )
    fuse_onnx(tmp_path / "m.onnx", one, tmp_path / "plain.onnx", unproven=True)
    with pytest.raises(FuseError, match="in another order"):
        fuse_onnx(tmp_path / "m.onnx", replace(one, choice=LEAST), tmp_path / "out.onnx", unproven=True)
