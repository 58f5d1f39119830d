"""A command that a command prints runs as it stands, with the options that were given."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import by_schema, calib_serve, invoke
from onnx import TensorProto, helper
from small_models import linear_onnx, temperature

from calib_serve.app import COMMANDS
from calib_serve.app._command import program


def printed(text: str) -> list[list[str]]:
    """The words of each command of ours that is printed on a line of its own, or behind a colon."""
    lines = [re.search(r"(?:^|: |^ +)calib-serve (.+)$", line) for line in text.splitlines()]
    return [shlex.split(one[1]) for one in lines if one]


def binds(words: list[str]) -> None:
    """Raise unless these are a command with options and arguments that it has."""
    program(words[0]).parse_args(words, exit_on_error=False, print_error=False)


def table(path: Path, *, names: tuple[str, ...] = ("p_0", "p_1"), extra: str = "") -> Path:
    """Scores of two classes, of patients with three samples each, half for calibration and half for tests."""
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=600)
    y = (rng.random(600) < 1 / (1 + np.exp(-0.6 * z - 0.5))).astype(int)
    p = 1 / (1 + np.exp(-z))
    rows = [
        f"P{i // 3},{1 - p[i]},{p[i]},{y[i]},{'cal' if i < 300 else 'test'},{1 + i % 2}" for i in range(600)
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([f"patient,{','.join(names)},y true,split,w", *rows]) + f"\n{extra}")
    return path


FITS = {
    "patterns and groups": (("--columns", "p_*", "--groups", "patient", "--labels", "y true"), {}),
    "names with blanks, weights and a kind": (
        (
            *("--columns", "p 0,p 1", "--labels", "y true", "--outputs", "probabilities"),
            *("--class-names", "no,it is", "--sample-weight", "w"),
        ),
        {"names": ("p 0", "p 1")},
    ),
    "labels and scores that are none": (
        ("--columns", "p_*", "--labels", "y true", "--ignore-label=-1", "--missing=-999"),
        {"extra": "Q,-999,-999,1,cal,1\nQ,.5,.5,-1,cal,1\nQ,.5,.5,-1,test,1\nQ,-999,-999,1,test,1\n"},
    ),
}


@pytest.mark.parametrize(("options", "how"), FITS.values(), ids=FITS)
def test_what_a_fit_on_scores_prints_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], how: dict
) -> None:
    monkeypatch.chdir(tmp_path)
    data = table(Path("it's mine/d.csv"), **how)
    rare = {"--class-names", "--groups", "--sample-weight", "--ignore-label=-1", "--missing=-999"}
    said = by_schema(data, "--split", "cal", *options) if rare & {*options} else options
    done = calib_serve(
        "fit",
        data,
        "--split",
        "cal",
        "--test-split",
        "test",
        "--method",
        "temperature",
        *said,
        "-o",
        "an art",
    )
    assert done.exit_code == 0, done.stderr
    commands = printed(done.stdout)
    assert [words[0] for words in commands] == ["evaluate", "inspect"]
    for words in commands:
        ran = invoke(words)
        assert ran.exit_code == 0, (words, ran.stderr)
    assert Path("an art.html").is_file()


def test_what_a_fit_on_a_model_prints_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two outputs one is named, and the fused file never lies in the place of the model."""
    monkeypatch.chdir(tmp_path)
    graph = onnx.load(linear_onnx(tmp_path / "linear.onnx"))
    graph.graph.node.append(helper.make_node("Tanh", ["z"], ["other"]))
    graph.graph.output.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, ["n", 3]))
    onnx.save(graph, tmp_path / "calibrated.onnx")
    before = (tmp_path / "calibrated.onnx").read_bytes()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4)).astype("f4")
    z = x @ onnx.numpy_helper.to_array(graph.graph.initializer[0])
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1)
    parts = {"cal": slice(200), "test": slice(200, 400)}
    np.savez(
        "data.npz",
        **{f"{name}_inputs": x[at] for name, at in parts.items()},
        **{f"{name}_labels": y[at] for name, at in parts.items()},
    )
    done = calib_serve(
        *("fit", "data.npz", "--model", "calibrated.onnx", "--output-name", "z", "--outputs", "logits"),
        *("--split", "cal", "--method", "temperature", "-o", "art"),
    )
    assert done.exit_code == 0, done.stderr
    commands = printed(done.stdout)
    assert [words[0] for words in commands] == ["evaluate", "fuse", "inspect"]
    for words in commands:
        ran = invoke(words)
        assert ran.exit_code == 0, (words, ran.stderr)
    assert (tmp_path / "calibrated.onnx").read_bytes() == before


def test_the_line_of_an_archive_serves_what_was_packed(tmp_path: Path) -> None:
    store = tmp_path / "a store"
    artifact = temperature().save(tmp_path / "art")
    model = linear_onnx(tmp_path / "linear.onnx")
    done = calib_serve(
        *("pack", "--model", model, "--artifact", artifact, "--name", "digits", "--unproven", "-o", store),
    )
    assert done.exit_code == 0, done.stderr
    ((_, flag, folder, *archives),) = printed(done.stdout)
    assert flag == "--store"
    assert [(Path(folder) / name).is_file() for name in archives] == [True]


@pytest.mark.parametrize("name", [name for names in COMMANDS.values() for name in names])
def test_every_example_of_every_help_is_a_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = printed(str(program(name)[name].help_prologue))
    assert examples
    for words in examples:
        binds(words)
