"""What goes wrong in a newcomer's first minutes is told with what to do about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import invoke

rng = np.random.default_rng(0)
Y = rng.permutation(np.repeat([0, 1, 2], 20))
PIXELS = rng.random((60, 1, 4, 4)).astype("float32")

FACTORY = """
import torch
def make():
    {first}
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)).eval()
"""


def said(*words: object) -> str:
    """The message that a command ends with."""
    done = invoke([str(word) for word in words])
    assert done.exit_code in (2, 3), done.output
    return done.stderr


def inputs(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "data.npz", **{"inputs": PIXELS, "labels": Y, **arrays})
    return folder / "data.npz"


@pytest.mark.parametrize(
    ("labels", "advice"),
    [
        (np.eye(3, dtype=int)[Y], "labels.argmax(axis=1)"),
        (Y + 1, "take 1 off each"),
        (Y[:, None], "take labels[:, 0]"),
        (np.array(["cat", "dog", "fox"])[Y], "np.unique(labels, return_inverse=True)"),
        (Y[:-1], "(60,) class ids, one for each input"),
    ],
)
def test_labels_of_inputs_in_another_form(tmp_path: Path, labels: np.ndarray, advice: str) -> None:
    data, model = inputs(tmp_path, labels=labels), tmp_path / "own_net.py"
    model.write_text(FACTORY.format(first="torch.manual_seed(0)"))
    assert advice in said("fit", data, "--model", f"{model}:make", "-o", tmp_path / "a")


def test_a_factory_of_random_weights_is_refused(tmp_path: Path) -> None:
    """Calibrated in silence, an untrained network would be served."""
    data = inputs(tmp_path)
    (tmp_path / "random_net.py").write_text(FACTORY.format(first="pass"))
    options = ("--data", data, "--method", "temperature", "-o", tmp_path / "a")
    assert "random, not trained" in said("fit", "--model", tmp_path / "random_net.py:make", *options)
    assert not (tmp_path / "a").exists()
    (tmp_path / "own_net.py").write_text(FACTORY.format(first="torch.manual_seed(0)"))
    own = str(tmp_path / "own_net.py:make")
    done = invoke(["fit", "--model", own, *map(str, options)])
    assert done.exit_code == 0, done.output
    assert f"note: {own} has its weights from its own code" in done.stdout
