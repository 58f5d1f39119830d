"""``--model FOLDER``: a classifier of Hugging Face from its folder to an artifact that its users apply."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hugging_face import (
    NAMES,
    WORDS,
    classifier,
    drawn,
    logits,
    photographs,
    sentences,
    table,
    transformers,
    vision,
)
from typer.testing import CliRunner

from calib_serve.artifact import Artifact
from calib_serve.cli import app
from calib_serve.fuse.torch import calibrated
from calib_serve.metrics import softmax


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A text classifier three times too sure, and a table of three splits, labels by name."""
    where = tmp_path_factory.mktemp("texts")
    classifier(where / "model")
    texts = sentences(900)
    texts[-1] = " ".join(WORDS * 5)  # of the split test
    labels = drawn(logits(where / "model", texts, at_once=64))
    splits = ["train"] * 200 + ["cal"] * 400 + ["test"] * 300
    table(where / "data.csv", texts, [NAMES[y] for y in labels], split=splits)
    return where


def run(*arguments: object):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def fit(folder: Path, out: Path, *more: object):
    return run(
        "fit", "--model", folder / "model", "--data", folder / "data.csv", "--split", "cal",
        "--device", "cpu", "-o", out, "--json", *more,
    )  # fmt: skip


def of_split(folder: Path, split: str) -> tuple[list[str], np.ndarray]:
    import csv

    with (folder / "data.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    return [row["text"] for row in rows], np.array([NAMES.index(row["label"]) for row in rows])


@pytest.mark.parametrize(
    ("method", "options", "steps"),
    [
        ("temperature", [], ["logit_map"]),
        ("masked-head", ["--train-split", "train", "--checkpoints", "KEPT"], ["head"]),
    ],
)
def test_a_text_classifier_is_calibrated_by_its_folder(folder, tmp_path, method, options, steps) -> None:
    more = [part.replace("KEPT", str(tmp_path / "kept")) for part in options]
    done = fit(folder, tmp_path / "fitted", "--method", method, "--eval-split", "test", *more)
    assert done.exit_code == 0, done.output
    artifact = Artifact.load(tmp_path / "fitted")
    assert artifact.class_names == NAMES
    assert artifact.model.last_linear == "classifier"
    assert artifact.model.source == "model"
    assert [step["kind"] for step in json.loads(done.stdout)["steps"]] == steps
    assert artifact.after["nll"]["value"] < artifact.before["nll"]["value"]
    (remark,) = (one for one in artifact.fit["remarks"] if "truncated" in one)
    assert remark.startswith("1 of 300 texts of split test were truncated to the model's 24 tokens")


def test_the_artifact_is_applied_to_the_librarys_own_logits(folder, tmp_path) -> None:
    fit(folder, tmp_path / "fitted", "--method", "temperature")
    artifact = Artifact.load(tmp_path / "fitted")
    texts, y = of_split(folder, "test")
    z = logits(folder / "model", texts, at_once=32)
    plain, better = softmax(z), artifact.probs(z)
    assert -np.log(better[np.arange(len(y)), y]).mean() < -np.log(plain[np.arange(len(y)), y]).mean()
    assert 2.4 < artifact.fit["temperature"] < 3.6
    # And the same inside of the model, with all that its users pass to it.
    found = transformers()
    model = found.AutoModelForSequenceClassification.from_pretrained(folder / "model")
    words = found.AutoTokenizer.from_pretrained(folder / "model")
    given = dict(words(texts[:9], padding=True, truncation=True, return_tensors="pt"))
    with torch.no_grad():
        inside = calibrated(model, artifact, example=given)(**given).numpy()
    np.testing.assert_allclose(inside, better[:9], atol=1e-5)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("pictures")
    vision(where / "model")
    paths = photographs(where / "data", 240)
    rows = zip(paths, drawn(pixels_logits(where / "model", paths)), strict=True)
    names = ("ant", "bee", "cat")
    lines = [f"{path.name},{names[y]},{'cal' if i % 2 else 'test'}" for i, (path, y) in enumerate(rows)]
    (where / "data" / "labels.csv").write_text("\n".join(["file,label,split", *lines]))
    return where


def pixels_logits(folder: Path, paths: list[Path]) -> np.ndarray:
    """By the library's own pipeline."""
    pipe = transformers().pipeline("image-classification", model=str(folder), device="cpu")
    rows = pipe([str(path) for path in paths], top_k=3, function_to_apply="none")
    scores = [{one["label"]: one["score"] for one in row} for row in rows]
    return np.array([[row[name] for name in ("ant", "bee", "cat")] for row in scores])


def test_pictures_are_prepared_as_the_librarys_pipeline_prepares_them(pictures) -> None:
    from calib_serve.model import load_model
    from calib_serve.model.load import model_data

    (given,) = model_data(pictures / "model", pictures / "data", ["cal"])
    model = load_model(pictures / "model", input_shape=given.inputs.shape[1:], device="cpu")
    paths = [pictures / "data" / f"0-{i}.png" for i in range(1, 240, 2)]
    np.testing.assert_allclose(
        model.logits(given.inputs), pixels_logits(pictures / "model", paths), atol=1e-4
    )
