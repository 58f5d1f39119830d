"""``--model FOLDER``: a classifier of Hugging Face from its folder to an artifact that its users apply."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import invoke
from hugging_face import (
    NAMES,
    classifier,
    drawn,
    logits,
    photographs,
    sentences,
    table,
    transformers,
    vision,
)

from calib_serve.artifact import Artifact
from calib_serve.fuse import calibrated
from calib_serve.models import load_model
from calib_serve.models.load import model_data
from calib_serve.scores import softmax


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A text classifier three times too sure, and a table of three splits, labels by name."""
    where = tmp_path_factory.mktemp("texts")
    classifier(where / "model")
    texts = sentences(900)
    labels = drawn(logits(where / "model", texts, at_once=64))
    splits = ["train"] * 200 + ["cal"] * 400 + ["test"] * 300
    table(where / "data.csv", texts, [NAMES[y] for y in labels], split=splits)
    return where


def run(*arguments: object):
    return invoke([str(one) for one in arguments])


def fit(folder: Path, out: Path, *more: object):
    return run(
        "fit", "--model", folder / "model", "--data", folder / "data.csv", "--split", "cal",
        "--option", "device=cpu", "-o", out, "--json", *more,
    )  # fmt: skip


def of_split(folder: Path, split: str) -> tuple[list[str], np.ndarray]:
    import csv

    with (folder / "data.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    return [row["text"] for row in rows], np.array([NAMES.index(row["label"]) for row in rows])


def test_a_text_classifier_gets_a_new_head_by_its_folder(folder, tmp_path) -> None:
    more = ("--train-split", "train", "--test-split", "test")
    done = fit(folder, tmp_path / "fitted", "--method", "masked-head", *more)
    assert done.exit_code == 0, done.output
    artifact = Artifact.load(tmp_path / "fitted")
    assert artifact.class_names == NAMES
    assert artifact.model.last_linear == "classifier"
    assert [step["kind"] for step in json.loads(done.stdout)["steps"]] == ["head"]
    assert artifact.after["nll"]["value"] < artifact.before["nll"]["value"]


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


def test_pictures_are_prepared_as_the_librarys_pipeline_prepares_them(tmp_path) -> None:
    vision(tmp_path / "model")
    paths, names = photographs(tmp_path / "data", 60), ("ant", "bee", "cat")
    lines = [f"{path.name},{names[i % 3]}" for i, path in enumerate(paths)]
    (tmp_path / "data" / "labels.csv").write_text("\n".join(["file,label", *lines]))
    (given,) = model_data(tmp_path / "model", tmp_path / "data", [None])
    model = load_model(tmp_path / "model", input_shape=given.inputs.shape[1:], device="cpu")
    pipe = transformers().pipeline("image-classification", model=str(tmp_path / "model"), device="cpu")
    rows = pipe([str(path) for path in paths], top_k=3, function_to_apply="none")
    scores = [{one["label"]: one["score"] for one in row} for row in rows]
    wanted = np.array([[row[name] for name in names] for row in scores])
    np.testing.assert_allclose(model.logits(given.inputs), wanted, atol=1e-4)
