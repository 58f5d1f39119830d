"""Programs of torch.export: whatever batch they were exported for, and whichever torch wrote them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.core.errors import ModelError
from calib_serve.core.files import sha256
from calib_serve.models import batch_range, load_exported, load_model
from calib_serve.torchserve._model import load_runtime
from calib_serve.torchserve.mar_options import ModelOptions

D, K = 6, 3
Dim = torch.export.Dim


class Net(nn.Module):
    """A classifier that looks at the size of its batch where ``branches``."""

    def __init__(self, branches: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.branches = nn.Linear(D, K), branches

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if self.branches and x.shape[0] > 4 else self.fc(x).clone()


def exported(path: Path, dim: object, *, branches: bool = False) -> Path:
    shapes = None if dim is None else ({0: dim},)
    program = torch.export.export(Net(branches).eval(), (torch.zeros(8, D),), dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


MANY = 2**63 - 1


@pytest.mark.parametrize(
    ("dim", "branches", "takes"),
    [
        (None, False, (8, 8)),
        (Dim("n"), False, (1, MANY)),
        (Dim("n", max=16), False, (1, 16)),
        (Dim("n", min=3), False, (3, MANY)),
        (Dim.AUTO, False, (1, MANY)),
        (Dim.AUTO, True, (5, MANY)),
    ],
    ids=["fixed", "free", "at most 16", "at least 3", "automatic", "at least 5"],
)
def test_an_archive_s_program_is_run_in_batches_that_it_takes(dim, branches, takes, tmp_path) -> None:
    path = exported(tmp_path / "model.pt2", dim, branches=branches)
    assert batch_range(load_exported(path)) == takes
    options = ModelOptions(kind="exported", model=path.name, sha256=sha256(path), proof="", input_shape=(D,))
    artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=K)
    run = load_runtime(tmp_path, options, artifact)
    x = np.random.default_rng(0).normal(size=(41, D)).astype("f4")
    with torch.no_grad():
        wanted = Net().fc(torch.from_numpy(x)).numpy()
    for n in (1, 3, 8, 41):
        np.testing.assert_allclose(run(x[:n]), wanted[:n], atol=1e-6)


def test_a_fit_asks_for_no_more_at_once_than_a_program_takes(tmp_path) -> None:
    model = load_model(exported(tmp_path / "model.pt2", Dim("n", max=16)), device="cpu")
    assert model.logits(np.zeros((40, D), np.float32)).shape == (40, K)


def test_a_program_of_another_torch_is_refused_by_its_version(tmp_path) -> None:
    old, new = exported(tmp_path / "old.pt2", Dim("n")), tmp_path / "new.pt2"
    with zipfile.ZipFile(old) as read, zipfile.ZipFile(new, "w") as write:
        for name in read.namelist():
            content = read.read(name)
            if name.endswith("models/model.json"):
                told = json.loads(content)
                told["schema_version"]["major"] += 1
                content = json.dumps({**told, "torch_version": "9.1.0"}).encode()
            write.writestr(name.replace("old/", "new/", 1), content)
    with pytest.raises(ModelError, match=r"it is of torch 9\.1\.0, and this is .*: export it by this one"):
        load_model(new)
