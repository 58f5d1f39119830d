"""Prediction sets and abstention from a calibrated module, eager, scripted and exported."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from deciding import SCORES, deciding
from fuse_artifacts import artifact, output_steps
from torch import nn
from typer.testing import CliRunner

from calib_serve import Artifact
from calib_serve.artifact import Abstain, PredictionSets
from calib_serve.cli import app
from calib_serve.errors import FuseError
from calib_serve.fuse.decisions import check_decisions
from calib_serve.fuse.torch import calibrated, fuse_torch, module

K = 5
RETURNS = "--decisions (decisions=) returns them, too"
EVEN = torch.tensor(np.random.default_rng(1).integers(0, 3, (400, K)) * 2.0).float()  # full of ties
KEYS = {
    "probabilities": ["probabilities"],
    "logits": ["logits"],
    "all": ["logits", "probabilities", "confidence", "predicted", "bin"],
}


def fitted(score: str = "lac", kind: str = "temperature", classes: int = K, **facts) -> Artifact:
    steps = output_steps(kind, classes, np.random.default_rng(0))
    return deciding(artifact(*steps, classes=classes, **facts), score)


@pytest.mark.parametrize("score", SCORES)
def test_a_module_decides_as_the_artifact_does_also_where_classes_tie(score):
    made = calibrated(nn.Identity(), fitted(score), decisions=True, example=EVEN[:8])(EVEN)
    probs = made["probabilities"].numpy()
    assert made["set"].dtype == made["abstain"].dtype == torch.bool
    np.testing.assert_array_equal(made["set"], fitted(score).sets(probs))
    np.testing.assert_array_equal(made["abstain"], fitted(score).abstain(probs))
    assert 1 < made["set"].sum(dim=1).float().mean() < K


@pytest.mark.parametrize("returns", KEYS)
@pytest.mark.parametrize("kind", ["matrix", "mixture", "top", "classwise"])
def test_what_was_returned_is_in_the_mapping_unchanged_and_scripts(kind, returns):
    one, x = fitted("raps", kind), 2 * torch.randn(20, K, generator=torch.Generator().manual_seed(0))
    made = calibrated(nn.Identity(), one, decisions=True, returns=returns, example=x)
    with warnings.catch_warnings():  # torch deprecates TorchScript
        warnings.simplefilter("ignore", DeprecationWarning)
        found = torch.jit.script(made)(x)
    assert [*found] == [*KEYS[returns], "set", "abstain"]
    plain = calibrated(nn.Identity(), one, returns=returns, example=x)(x)
    for name, value in zip(KEYS[returns], plain if returns == "all" else [plain], strict=True):
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)
    decisions = {name: found[name].numpy() for name in ("set", "abstain")}
    everyone = np.ones(20, bool)
    check_decisions(one, one.probs(x.numpy()), decisions, tolerance=1e-5, rows=everyone, report="")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_and_double_models_decide_before_the_result_is_rounded(dtype):
    x = (2 * torch.randn(20, K, generator=torch.Generator().manual_seed(0))).to(dtype)
    one = fitted("aps")
    exact = one.probs(x.double().numpy())
    near = replace(one, abstain=Abstain(float(exact.max(axis=1)[0]) * (1 - 1e-4), risk=0.1))
    made = calibrated(nn.Identity(), near, decisions=True, example=x)(x)
    assert made["probabilities"].dtype == dtype
    assert made["abstain"].tolist() == near.abstain(exact).tolist()
    np.testing.assert_array_equal(made["set"], one.sets(exact))


@pytest.mark.parametrize("name", ["set", "abstain"])
def test_a_module_that_decides_otherwise_is_refused(name, monkeypatch):
    def wrong(returns, maps, one, *rest):
        other = replace(
            one,
            sets=PredictionSets(np.array(0.3), 0.9) if name == "set" else one.sets,
            abstain=Abstain(0.9, 0.1) if name == "abstain" else one.abstain,
        )
        return right(returns, maps, other, *rest)

    right = module._deciding
    monkeypatch.setattr(module, "_deciding", wrong)
    with pytest.raises(FuseError, match=f"entries of '{name}' differ"):
        calibrated(nn.Identity(), fitted(), decisions=True, example=EVEN)


def saved(folder: Path, kind: str) -> Path:
    net, x = nn.Sequential(nn.Linear(6, K)).eval(), torch.randn(4, 6)
    if kind == "pt2":
        shapes = ({0: torch.export.Dim("n")},)
        torch.export.save(torch.export.export(net, (x,), dynamic_shapes=shapes), folder / "net.pt2")
        return folder / "net.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(net), str(folder / "net.pt"))
    return folder / "net.pt"


@pytest.mark.parametrize("kind", ["pt", "pt2"])
def test_a_file_returns_them_where_it_is_asked_to_and_the_command_says_where_not(kind, tmp_path):
    path, out = saved(tmp_path, kind), tmp_path / f"out.{kind}"
    fitted("aps").save(tmp_path / "fitted")
    call = [
        "fuse",
        "torch",
        str(path),
        str(tmp_path / "fitted"),
        "-o",
        str(out),
        "--input-shape",
        "6",
        "--json",
    ]
    shown = json.loads(CliRunner().invoke(app, call, catch_exceptions=False).stdout)
    assert (shown["decisions"], shown["left_out"]) == (
        [],
        [f"the artifact's prediction sets and abstention are left out: {RETURNS}"],
    )
    shown = json.loads(CliRunner().invoke(app, [*call, "--decisions"], catch_exceptions=False).stdout)
    assert (shown["decisions"], shown["left_out"]) == (["set", "abstain"], [])
    x = torch.randn(7, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        read = [
            torch.jit.load(str(f)) if kind == "pt" else torch.export.load(f).module() for f in (path, out)
        ]
    raw, made = (one(x) for one in read)
    probs = fitted("aps").probs(raw.detach().numpy())
    np.testing.assert_allclose(made["probabilities"].detach(), probs, atol=1e-6)
    np.testing.assert_array_equal(made["set"], fitted("aps").sets(probs))
    np.testing.assert_array_equal(made["abstain"], fitted("aps").abstain(probs))
    report = fuse_torch(path, fitted("aps"), out, decisions=True, input_shape=[6])
    assert ("returns", "probabilities, set, abstain") in report.rows()
