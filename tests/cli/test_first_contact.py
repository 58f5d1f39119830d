"""What goes wrong in a newcomer's first minutes is told with what to do about it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from exported import export
from typer.testing import CliRunner

from calib_serve.cli import app
from calib_serve.errors import CalibServeError

rng = np.random.default_rng(0)
LOGITS, Y = rng.normal(size=(60, 3)), rng.permutation(np.repeat([0, 1, 2], 20))
PIXELS = rng.random((60, 1, 4, 4)).astype("float32")


def said(*words: object) -> str:
    """The message that a command ends with."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(done.exception, CalibServeError), done.output or done.exception
    return str(done.exception)


def scores(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "scores.npz", **{"logits": LOGITS, "labels": Y, **arrays})
    return folder / "scores.npz"


def inputs(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "data.npz", **{"inputs": PIXELS, "labels": Y, **arrays})
    return folder / "data.npz"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of pictures (1, 4, 4), as torch.export writes it, and its ONNX file beside it."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 3))
    path = tmp_path_factory.mktemp("model") / "model.pt2"
    export(network, (1, 4, 4), path.with_suffix(""))
    return path


def test_a_table_without_labels_names_the_column(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("a,b,c\n1,2,3\n")
    assert "column label" in said("evaluate", tmp_path / "scores.csv")


def test_the_mark_that_spreadsheets_put_before_a_table_is_no_name(tmp_path: Path) -> None:
    lines = ["label,a,b", *("1,-2,3", "0,2,-1") * 20]
    (tmp_path / "scores.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "scores.csv"), "--json"])
    assert done.exit_code == 0, done.exception


def test_inputs_are_no_logits_and_logits_are_no_inputs(tmp_path: Path, model: Path) -> None:
    assert "--model MODEL --data FILE" in said("evaluate", inputs(tmp_path))
    assert "--model MODEL --data FILE" in said("fit", "--logits", inputs(tmp_path), "-o", tmp_path / "a")
    assert "--logits" in said("fit", "--model", model, "--data", scores(tmp_path), "-o", tmp_path / "a")


def test_a_split_that_was_forgotten_is_named(tmp_path: Path, model: Path) -> None:
    np.savez(tmp_path / "split.npz", cal_inputs=PIXELS, cal_labels=Y, test_inputs=PIXELS, test_labels=Y)
    message = said("fit", "--model", model, "--data", tmp_path / "split.npz", "-o", tmp_path / "a")
    assert "name a split: cal, test (--split" in message
    np.savez(tmp_path / "z.npz", cal_logits=LOGITS, cal_labels=Y)
    assert "name a split: cal (--split" in said("evaluate", tmp_path / "z.npz", "--split", "val")


@pytest.mark.parametrize(
    ("labels", "advice"),
    [
        (np.eye(3, dtype=int)[Y], "labels.argmax(axis=1)"),
        (Y + 1, "take 1 off each"),
        (Y[:, None], "take labels[:, 0]"),
        (Y[:, None] % 2, "take labels[:, 0]"),
        (Y.astype(float), "labels.astype(int)"),
        (np.array(["cat", "dog", "fox"])[Y], "np.unique(labels, return_inverse=True)"),
        (Y[:-1], "(60,) class ids, one for each input"),
    ],
)
def test_labels_of_inputs_in_another_form(
    tmp_path: Path, model: Path, labels: np.ndarray, advice: str
) -> None:
    data = inputs(tmp_path, labels=labels)
    assert advice in said("fit", "--model", model, "--data", data, "-o", tmp_path / "a")


@pytest.mark.parametrize("name", ["data.csv", "data.pkl"])
def test_inputs_in_another_format(tmp_path: Path, model: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    message = said("fit", "--model", model, "--data", tmp_path / name, "-o", tmp_path / "a")
    assert 'np.savez("data.npz", inputs=inputs, labels=labels)' in message
    assert ("--logits" in message) == (name == "data.csv")
    if name != "data.csv":
        message = said("fit", "--logits", tmp_path / name, "-o", tmp_path / "a")
        assert 'np.savez("logits.npz", logits=logits, labels=labels)' in message


def test_methods_that_need_the_model_say_so(tmp_path: Path) -> None:
    message = said("fit", "--logits", scores(tmp_path), "--method", "masked-head", "-o", tmp_path / "a")
    assert "--model MODEL --data DATA" in message


@pytest.mark.parametrize(
    ("turned", "advice"),
    [
        (lambda x: x[:, 0], "inputs[:, None]"),
        (lambda x: x.transpose(0, 2, 3, 1), "inputs.transpose(0, 3, 1, 2)"),
        (lambda x: x.reshape(60, 16), "inputs.reshape(-1, 1, 4, 4)"),
        (lambda x: np.repeat(x, 3, axis=1), "takes grey"),
    ],
)
def test_pictures_with_their_channel_elsewhere(
    tmp_path: Path, model: Path, turned: Callable[[np.ndarray], np.ndarray], advice: str
) -> None:
    data = inputs(tmp_path, inputs=turned(PIXELS))
    for file in (model, model.with_suffix(".onnx")):
        message = said("fit", "--model", file, "--data", data, "-o", tmp_path / "a")
        assert f"{file} takes inputs of shape (n, 1, 4, 4)" in message
        assert advice in message


def test_a_model_of_one_batch_size_is_told_how_to_be_exported(tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)).eval()
    export(network, (1, 4, 4), tmp_path / "one", any_batch=False)
    for name in ("one.pt2", "one.onnx"):
        message = said("fit", "--model", tmp_path / name, "--data", inputs(tmp_path), "-o", tmp_path / "a")
        assert 'dynamic_shapes=({0: torch.export.Dim("n")},)' in message


def test_weights_alone_and_pickles_are_no_model(tmp_path: Path) -> None:
    data, network = inputs(tmp_path), torch.nn.Linear(16, 3)
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    torch.save({"epoch": 3, "state_dict": network.state_dict()}, tmp_path / "checkpoint.pt")
    torch.save(network, tmp_path / "whole.pt")
    (tmp_path / "forest.pkl").write_bytes(pickle.dumps([1]))
    (tmp_path / "net.keras").touch()
    (tmp_path / "net.py").touch()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").touch()
    old = {"_use_new_zipfile_serialization": False}
    torch.save(network.state_dict(), tmp_path / "old.pth", **old)
    messages = {
        name: said("fit", "--model", tmp_path / name, "--data", data, "-o", tmp_path / "a")
        for name in (
            *("weights.pth", "checkpoint.pt", "old.pth", "whole.pt", "forest.pkl"),
            *("net.keras", "net.py", "saved"),
        )
    }
    assert "--weights old.pth" in messages["old.pth"]
    assert "net.py:NAME" in messages["net.py"]
    assert "a TensorFlow model" in messages["saved"]
    assert "--model net.py:make --weights weights.pth" in messages["weights.pth"]
    assert "--weights checkpoint.pt" in messages["checkpoint.pt"]
    assert "pickled module" in messages["whole.pt"]
    assert "pickle" in messages["forest.pkl"]
    assert "ONNX" in messages["forest.pkl"]
    assert "a Keras model" in messages["net.keras"]


FACTORY = """
import torch
def make():
    {first}
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)).eval()
"""


def test_a_factory_of_random_weights_is_refused(tmp_path: Path) -> None:
    """Calibrated in silence, an untrained network would be served."""
    data = inputs(tmp_path)
    (tmp_path / "random_net.py").write_text(FACTORY.format(first="pass"))
    options = ("--data", data, "--method", "temperature", "-o", tmp_path / "a")
    assert "random, not trained" in said("fit", "--model", tmp_path / "random_net.py:make", *options)
    assert not (tmp_path / "a").exists()
    (tmp_path / "own_net.py").write_text(FACTORY.format(first="torch.manual_seed(0)"))
    own = str(tmp_path / "own_net.py:make")
    done = CliRunner().invoke(app, ["fit", "--model", own, *map(str, options)])
    assert done.exit_code == 0, done.exception
    assert f"note: {own} has its weights from its own code" in done.stdout
    done = CliRunner().invoke(
        app, ["report", "--model", own, "--data", str(data), "-o", str(tmp_path / "r.html")]
    )
    assert done.exit_code == 0, done.exception
    assert "has its weights from its own code" in done.stderr
