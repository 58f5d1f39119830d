"""An artifact goes into another export of its model, whatever the export folded, and into no other model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripted
import torch
from torch import nn

from calib_serve import calibrate_model
from calib_serve.core.errors import FuseError
from calib_serve.fuse import fuse_onnx, fuse_torch

SHAPE = (1, 8, 8)


def network(seed: int = 0, *, ends: str = "logits") -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2)]
    layers += [nn.Flatten(), nn.Linear(512, 4), *([nn.Softmax(dim=1)] if ends == "probabilities" else [])]
    model = nn.Sequential(*layers).train()
    for _ in range(3):  # the batch norm's statistics are not those that an export could leave out
        model(3 * torch.randn(64, *SHAPE) + 1)
    return model.eval()


def export(model: nn.Module, path: Path) -> Path:
    """The file that its ending says; ONNX by the exporter that folds the batch norm into the convolution."""
    example = torch.zeros(2, *SHAPE)
    if path.suffix == ".onnx":
        torch.onnx.export(
            model, (example,), str(path), dynamo=False, dynamic_axes={"x": {0: "n"}}, input_names=["x"]
        )
    elif path.suffix == ".pt2":
        free = ({0: torch.export.Dim("n")},)
        torch.export.save(torch.export.export(model, (example,), dynamic_shapes=free), path)
    else:
        scripted.save(scripted.script(model), str(path))
    return path


def data(n: int = 300) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, *SHAPE)).astype(np.float32)
    with torch.no_grad():
        z = network()(torch.from_numpy(x)).numpy()
    return x, (0.7 * z + rng.gumbel(size=z.shape)).argmax(axis=1)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = export(network(), tmp_path_factory.mktemp("fitted") / "model.pt2")
    return calibrate_model(path, *data(), "temperature", cross_validate=False, keep_rows=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("ends", ["logits", "probabilities"])
@pytest.mark.parametrize("ending", ["onnx", "pt"])
def test_another_export_gives_the_kept_scores_and_another_network_does_not(
    ending: str, ends: str, fitted: Any, tmp_path: Path
) -> None:
    fuse: Any = fuse_onnx if ending == "onnx" else fuse_torch
    same = export(network(ends=ends), tmp_path / f"same.{ending}")
    x = {"x": data()[0]} if ending == "onnx" else {"input": data()[0]}
    with scripted.told(ending == "pt"):
        found = fuse(same, fitted, tmp_path / f"out.{ending}", inputs=x)
    assert found.proof.startswith("32 rows of the fitted scores")
    other = network(ends=ends)
    with torch.no_grad():
        other[5].weight.mul_(1.01)
    changed = export(other, tmp_path / f"other.{ending}")
    refused = pytest.raises(FuseError, match=r"gives other scores than were fitted: .* of 32 rows")
    with scripted.told(ending == "pt"), refused:
        fuse(changed, fitted, tmp_path / f"no.{ending}", inputs=x)
    assert not (tmp_path / f"no.{ending}").exists()
    shape = {"inputs": x} if ending == "pt" else {}
    with scripted.told(ending == "pt"):
        found = fuse(changed, fitted, tmp_path / f"no.{ending}", **shape, unproven=True)
    assert found.proof.startswith("unproven")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_graph_of_other_inputs_is_another_model(fitted: Any, tmp_path: Path) -> None:
    flat = nn.Sequential(nn.Unflatten(1, SHAPE), *network())
    torch.onnx.export(flat, (torch.zeros(2, 64),), str(tmp_path / "flat.onnx"), dynamo=False)
    with pytest.raises(FuseError, match="cannot run the model"):
        fuse_onnx(tmp_path / "flat.onnx", fitted, tmp_path / "out.onnx", inputs={"x": data()[0]})
