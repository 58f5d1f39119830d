"""An option that is given and could do nothing is refused by its name, never taken in silence."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import calib_serve as invoke
from torch import nn

import calib_serve
from calib_serve import Scores
from calib_serve.artifact import Clause, Contract, InputShift, LogitMap
from calib_serve.core.errors import CalibServeError
from calib_serve.fit import fit_neural_clamping_paper
from calib_serve.integrations.sklearn.estimators import CalibratedClassifier
from calib_serve.models import from_module
from calib_serve.torchserve.foreign import calibrate_archive
from calib_serve.web import MonitoringOptions

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 3)).astype("f4")
Y = (X + RNG.gumbel(size=X.shape)).argmax(axis=1)
SCORES = Scores.of(3 * X, Y, outputs="logits", class_names=["ant", "bee", "cat"])
ARTIFACT = calib_serve.Artifact(
    (LogitMap.temperature(3.0),), method="temperature", classes=3, class_names=SCORES.class_names
)
SHIFTED = replace(ARTIFACT, steps=(InputShift(np.zeros(3)), *ARTIFACT.steps))
OF_A_CLASS = Contract((Clause(0.9, above=0.8, predicted=1),))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    parts = {"cal": SCORES.take(slice(150)), "test": SCORES.take(slice(150, None))}
    arrays = {f"{name}_logits": part.values for name, part in parts.items()}
    labels = {f"{name}_labels": part.labels for name, part in parts.items()}
    np.savez(tmp_path / "s.npz", class_names=SCORES.class_names, **arrays, **labels)
    ARTIFACT.save(tmp_path / "artifact")
    replace(ARTIFACT, contract=OF_A_CLASS).save(tmp_path / "promised")
    monkeypatch.chdir(tmp_path)
    return tmp_path


FIT = "fit s.npz --split cal -o made"
DECIDE = "decide artifact s.npz --split test -o made"
AROUND = "pack --from x.mar --artifact artifact"
LINES = [
    (f"{FIT} --option class_names=a,b,c", "class_names"),
    *((f"{FIT} --option seed={seed}", "seed") for seed in ("abc", "1.5", "-1", "true")),
    ("compare s.npz --study size --option seed=abc", "seed"),
    ("compare s.npz --study size --option seed=1 --option seed=2", "seed twice"),
    (f"{FIT} --model net.pt2 --method temperature --option scores=1", "scores"),
    (f"{FIT} --model net.pt2 --option outputs=logits", "outputs"),
    ("evaluate s.npz --split test --weights w.safetensors", "--weights"),
    (f"{DECIDE} --coverage 0.9 --weights w.safetensors", "--weights"),
    (f"{DECIDE} --risk 0.5 --score aps", "--score"),
    (f"{DECIDE} --risk 0.5 --per-class", "--per-class"),
    (f"{DECIDE} --coverage 0.9 --level 0.99", "--level"),
    ("contract check promised s.npz --split test --weights w.safetensors", "--weights"),
    ("compare s.npz --train-split train", "--train-split"),
    ("compare s.npz --study optimum --methods vector", "--methods"),
    ("compare s.npz --groups patients", "--groups"),
    ("compare s.npz --study size --option cal=2", "cal"),
    ("audit p --labels l --engine postgres://a@b/c --memory 2GB", "--memory"),
    (f"{AROUND} --untried --probe-data d", "--probe-data"),
    (f"{AROUND} --option top=3", "top"),
    ("export monitoring made --token-file t --targets watch=h:1", "token"),
]


@pytest.mark.parametrize(("line", "named"), LINES, ids=[line for line, _ in LINES])
def test_a_command_refuses_it_before_any_work(line: str, named: str, folder: Path) -> None:
    done = invoke(*line.split())
    assert done.exit_code == 2, done.output
    assert named in done.stderr.splitlines()[-1]
    assert not (folder / "made").exists()


# Of ``keywords`` there is none: it holds the options. The masked head's ``train`` is a split.
ARGUMENTS = {"train"} | {
    name
    for fit in (calib_serve.calibrate, calib_serve.calibrate_model, calibrate_archive)
    for name in inspect.signature(fit).parameters
    if name != "keywords"
}


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_an_argument_of_a_fit_is_no_option_of_a_method(name: str, folder: Path) -> None:
    done = invoke(*FIT.split(), "--option", f"{name}=1")
    assert done.exit_code == 2, done.output
    assert f"--option takes no {name}" in done.stderr


def network(classes: int = 3) -> nn.Module:
    layer = nn.Linear(3, classes)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3)[:classes] * 3)
        layer.bias.zero_()
    return layer.eval()


def model(method: str, **given: Any) -> Any:
    return calib_serve.calibrate_model(network(), X, Y, method, device="cpu", **given)


def ready(**given: Any) -> Any:
    classifier = from_module(network(), input_shape=(3,), device="cpu")
    return calib_serve.calibrate_model(classifier, X, Y, "temperature", **given)


def of_labels(**given: Any) -> Any:
    truths = (X > 0).astype(int)
    return calib_serve.calibrate_model(network(), X, truths, "platt", outputs="label_logits", **given)


class Fitted:
    classes_ = np.array([0, 1, 2])

    def fit(self, X: Any, y: Any) -> Fitted:
        return self

    def predict_proba(self, X: Any) -> Any:
        return SCORES.probs[: len(X)]


def clamped() -> Any:
    classifier = from_module(network(), input_shape=(3,), device="cpu")
    return fit_neural_clamping_paper(classifier, X, Y, input_range=(-9.0, 9.0))


def display(**given: Any) -> Any:
    from calib_serve.report.displays import ReliabilityDisplay

    two = Scores.of(X[:, :2], Y % 2, outputs="logits")
    return ReliabilityDisplay.from_predictions(two.labels, two.probs[:], kind="smooth", **given)


CALLS: dict[str, Callable[[], Any]] = {
    "ignore_label": lambda: calib_serve.calibrate(SCORES, method="temperature", ignore_label=255),
    "columns": lambda: calib_serve.evaluate(SCORES, columns=["ant", "bee"]),
    "class_names": lambda: calib_serve.judge(SCORES, class_names=["cat", "bee", "ant"]),
    "outputs": lambda: ARTIFACT.probs(SCORES, outputs="probabilities"),
    "sample_weight": lambda: calib_serve.compare_methods(SCORES, SCORES, ["none"], sample_weight=np.ones(2)),
    "no option 'groups'": lambda: model("temperature", groups=np.arange(300) // 3),
    "no option 'ignore_label'": lambda: model("auto", ignore_label=255),
    "no option class_weight": lambda: model("neural-clamping", class_weight="balanced"),
    "weights=": lambda: ready(weights="w.safetensors"),
    "outputs=": lambda: ready(outputs="label_logits"),
    "batch_size=": lambda: ready(batch_size=7),
    "train is for the masked head": lambda: of_labels(train=(X, Y)),
    "drop a column or array that is called group": lambda: calib_serve.calibrate(
        X, (X > 0).astype(int), "platt", outputs="label_logits", groups=np.arange(300) // 3
    ),
    "input_range": clamped,
    "the token": lambda: MonitoringOptions(token_file="t", targets=("watch=h:1",)),
    "sample_weight is for": lambda: display(sample_weight=np.ones(300)),
    "strategy is for": lambda: display(strategy="quantile"),
    "bins is for": lambda: display(bins=5),
    "sessions": lambda: CalibratedClassifier(Fitted(), cv="prefit").fit(X, Y, sessions=np.ones(300)),
    "last_linear": lambda: calib_serve.calibrated(network(), ARTIFACT, last_linear="head"),
}


@pytest.mark.parametrize("named", CALLS)
def test_a_function_refuses_it(named: str) -> None:
    with pytest.raises(CalibServeError, match=named):
        CALLS[named]()


def test_scores_are_given_what_they_lack() -> None:
    bare = Scores.of(3 * X, Y, outputs="logits")
    again = Scores.of(bare, class_names=["ant", "bee", "cat"], ids=np.arange(300), groups=np.arange(300) // 3)
    assert again.class_names == SCORES.class_names
    assert again.ids is not None
    assert (again.ids.tolist(), len(np.unique(again.groups))) == (list(range(300)), 100)
    by_name = calib_serve.calibrate(bare, method="temperature", class_names=SCORES.class_names)
    assert by_name.class_names == SCORES.class_names
