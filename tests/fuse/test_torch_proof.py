"""A torch model that the artifact does not fit is refused; every kind and place of scores is proved."""

from __future__ import annotations

import zipfile
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import scripted
import torch
from fuse_artifacts import KINDS, artifact, head, output_steps
from sizes import sized
from torch import nn

from calib_serve import Artifact
from calib_serve.artifact import Examples, InputShift, LogitMap, ProbTable
from calib_serve.core.bins import bin_index
from calib_serve.core.errors import CalibServeError, FuseError, InputError, ModelError, ShapeError
from calib_serve.fuse import calibrated, fuse_torch
from calib_serve.fuse.torch._tails import CalibrateScores
from calib_serve.scores import to_logits, to_probs

D, K = 6, 4
X = {"x": np.random.default_rng(0).normal(size=(5, D))}
MULTILABEL = {"outputs": "label_logits"}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Ends(nn.Module):
    """A linear model whose scores end in ``how``."""

    def __init__(self, columns: int, how: str = "logits") -> None:
        super().__init__()
        self.fc = nn.Linear(D, columns)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = 3 * self.fc(x)
        if self.how == "softmax":
            return torch.softmax(z, dim=1)
        if self.how == "log_softmax":
            return torch.log_softmax(z, dim=1)
        if self.how == "sigmoid":
            return torch.sigmoid(z)
        if self.how == "squeezed":
            return z.squeeze(1)
        if self.how == "squeezed sigmoid":
            return torch.sigmoid(z).squeeze(1)
        return z


def x(n: int = 40) -> torch.Tensor:
    return torch.randn(n, D)


def scaled(classes: int, outputs: str | None, **facts) -> Artifact:
    """Vector scaling: it matters to it whether its scores are normalised."""
    rng = np.random.default_rng(0)
    step = LogitMap(rng.uniform(0.5, 1.5, classes), rng.normal(size=classes))
    return artifact(step, classes=classes, model={"outputs": outputs} if outputs else {}, **facts)


HALVED = artifact(LogitMap.temperature(2.0), classes=2)


def test_one_logit_is_two_classes_not_1_for_every_row():
    model = Ends(1).eval()
    got = calibrated(model, HALVED, example=x())(x(5))
    assert got.shape == (5, 2)
    inputs = x(5)
    expected = HALVED.of_logits(model(inputs).numpy())
    np.testing.assert_allclose(calibrated(model, HALVED, example=x())(inputs), expected, atol=1e-6)
    with pytest.raises(ShapeError, match=r"outputs="):  # nothing said that it is one logit: no softmax of one
        calibrated(model, HALVED)(inputs)
    got = calibrated(model, HALVED, outputs="logit")(inputs)
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("returns", ["probabilities", "logits", "all"])
def test_a_model_of_other_classes_is_refused(returns):
    wide = artifact(LogitMap.temperature(2.0), classes=10)
    with pytest.raises(CalibServeError, match=r"7 classes.*10"):
        calibrated(Ends(7).eval(), wide, returns=returns, example=x())
    whole = calibrated(Ends(7).eval(), wide, returns=returns)
    inputs = x()
    with pytest.raises(ShapeError, match=r"7.*10"):
        whole(inputs)
    with pytest.raises(torch.jit.Error, match="ShapeError"):
        scripted.script(whole)(inputs)
    with pytest.raises((ShapeError, RuntimeError)):
        scripted.trace(whole, (inputs,), check_trace=False)(inputs)
    with pytest.raises(Exception, match="7"):
        torch.export.export(whole, (inputs,))


def test_a_softmax_is_seen_by_its_numbers():
    model, inputs = Ends(K, "softmax").eval(), x()
    step = artifact(LogitMap.temperature(2.0), classes=K)
    expected = step.of_logits(np.log(model(inputs).numpy()))
    np.testing.assert_allclose(calibrated(model, step, example=inputs)(inputs), expected, atol=1e-6)
    with pytest.raises(FuseError, match="fitted on logits, and the model's outputs are probabilities"):
        calibrated(model, scaled(K, "logits"), example=inputs)
    with pytest.raises(FuseError, match=r"artifact\.model\.outputs"):
        calibrated(model, scaled(K, None), example=inputs)


class Drops(Ends):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.fc(x), 0.5, training=True)


def infinite() -> nn.Module:
    model = Ends(K)
    model.fc.weight.fill_(float("nan"))
    return model


TWO = artifact(LogitMap.temperature(2.0), classes=K)
OF_LABELS = artifact(LogitMap.temperature(2.0), classes=K, model=MULTILABEL)
REFUSED = {
    r"taken for probabilities, and cannot be: .* beyond": (
        lambda: Ends(K),
        TWO,
        "probabilities",
    ),
    "taken for log_probs": (lambda: Ends(K), TWO, "log_probs"),
    "taken for probability": (lambda: Ends(1), HALVED, "probability"),
    "made by a Sigmoid": (lambda: Ends(K, "sigmoid"), TWO, None),
    "made by a Softmax": (lambda: Ends(K, "softmax"), OF_LABELS, None),
    "fitted on scores of labels": (lambda: Ends(K), OF_LABELS, "logits"),
    "fitted on scores of classes": (lambda: Ends(K), TWO, "label_logits"),
    # (8,) for 8 inputs is one logit a sample, not one row of 8 classes.
    r"1 of logit a sample.*8 classes": (lambda: Ends(1, "squeezed"), artifact(classes=8), None),
    "NaN or infinite": (infinite, TWO, None),
    r"move by .* training mode": (lambda: Drops(K), TWO, None),
    r"must be an nn\.Module, got function": (lambda: lambda inputs: inputs, HALVED, None),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_is_refused(said):
    make, fitted, outputs = REFUSED[said]
    model = make()
    with pytest.raises(CalibServeError, match=said):
        calibrated(
            model.eval() if isinstance(model, nn.Module) else model, fitted, outputs=outputs, example=x(8)
        )


class Masked(Ends):
    """Two of its classes are masked."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.tensor([0.0, 0.0, -1e9, -1e9])


def test_masked_classes_do_not_hide_what_is_wrong_with_the_others(monkeypatch):
    fitted, wrong = (artifact(LogitMap.temperature(t), classes=K) for t in (2.0, 2.01))
    masked = Masked(K).eval()
    np.testing.assert_array_equal(calibrated(masked, fitted, example=x())(x())[:, 2:], 0)
    probs = Artifact.of_segments
    monkeypatch.setattr(Artifact, "of_segments", lambda _, z, segments: probs(wrong, z, segments))
    with pytest.raises(FuseError, match="probabilities differ by"):
        calibrated(masked, fitted, example=x())


@pytest.mark.parametrize(
    ("returns", "outputs"), [("logits", "logits"), ("all", "logits"), ("all", "label_logits")]
)
def test_logits_whose_probabilities_do_not_show_what_is_wrong_are_proved(returns, outputs, monkeypatch):
    fitted, right = _fitted(outputs, "vector"), CalibrateScores.logits
    model, inputs = Ends(K).eval(), x()
    calibrated(model, fitted, returns=returns, example=inputs)
    monkeypatch.setattr(CalibrateScores, "logits", lambda tail, z: right(tail, z) + 0.01)
    with pytest.raises(FuseError, match=r"^logits differ by 0\.01, rounding allows .*; the calibrated model"):
        calibrated(model, fitted, returns=returns, example=inputs)


def test_a_damaged_artifact_does_not_pass_by_its_examples():
    z = np.random.default_rng(0).normal(size=(5, K))
    step = LogitMap.temperature(2.0)
    right = artifact(step, classes=K).of_logits(z)
    calibrated(nn.Identity(), artifact(step, classes=K, examples=Examples(z, right)))
    with pytest.raises(FuseError, match="the fit's own"):
        calibrated(nn.Identity(), artifact(step, classes=K, examples=Examples(z, to_probs(z, "logits"))))


MODELS = {
    "logits": (K, "logits"),
    "log_probs": (K, "log_softmax"),
    "probabilities": (K, "softmax"),
    "logit": (1, "logits"),
    "probability": (1, "sigmoid"),
    "label_logits": (K, "logits"),
    "label_probabilities": (K, "sigmoid"),
}


def _fitted(outputs: str, kind: str) -> Artifact:
    rng = np.random.default_rng(0)
    classes = 2 if outputs in ("logit", "probability") else K
    if not outputs.startswith("label"):
        return artifact(*output_steps(kind, classes, rng), classes=classes, model={"outputs": outputs})
    edges = np.sort(rng.random((K, 4)), axis=1)
    steps = {
        "temperature": (LogitMap.temperature(1.7),),
        "vector": (LogitMap(rng.uniform(0.5, 2, K), rng.normal(size=K)),),
        "classwise": (LogitMap.temperature(1.7), ProbTable(edges, rng.random((K, 5)))),
    }
    return artifact(*steps.get(kind, ()), classes=K, model={"outputs": outputs})


CASES = [
    (outputs, kind, shape)
    for outputs, (columns, _) in MODELS.items()
    for kind in sized(ci=["vector", "mixture", "classwise", "none"], nightly=[*KINDS, "none"])
    for shape in (["(n, 1)", "(n,)"] if columns == 1 else [f"(n, {columns})"])
]


@pytest.mark.parametrize(("outputs", "kind", "shape"), CASES)
def test_every_kind_of_scores_gets_its_calibration(outputs, kind, shape):
    columns, how = MODELS[outputs]
    if shape == "(n,)":
        how = {"logits": "squeezed", "sigmoid": "squeezed sigmoid"}[how]
    model, step, inputs = Ends(columns, how).eval(), _fitted(outputs, kind), x()
    raw = model(inputs).numpy()
    expected = step.of_logits(to_logits(raw, outputs))
    for example in (None, inputs):
        probs = calibrated(model, step, example=example)(inputs).numpy()
        assert probs.shape == (40, step.classes)
        np.testing.assert_allclose(probs, expected, atol=1e-5)
    again = scripted.script(calibrated(model, step, returns="logits", example=inputs))(inputs).numpy()
    assert again.shape == raw.shape
    if outputs.startswith("label"):
        own = "label_logits" if step.steps or outputs == "label_logits" else outputs
    elif columns == 1:
        own = "logit" if step.steps or outputs == "logit" else outputs
    else:
        own = "logits" if step.steps else outputs
    np.testing.assert_allclose(to_probs(again, own), expected, atol=1e-5)


@pytest.mark.parametrize("table", [False, True])
def test_all_of_labels_is_of_each_label(table):
    step, inputs = _fitted("label_logits", "classwise" if table else "vector"), x()
    model = Ends(K).eval()
    whole = calibrated(model, step, returns="all", example=inputs)
    for out in (whole(inputs), scripted.script(whole)(inputs)):
        _, probs, confidence, predicted, index = (t.numpy() for t in out.values())
        np.testing.assert_allclose(probs, step.of_logits(model(inputs).numpy()), atol=1e-6)
        np.testing.assert_array_equal(predicted, (probs > 0.5).astype(int))
        np.testing.assert_allclose(confidence, np.maximum(probs, 1 - probs))
        np.testing.assert_array_equal(index, bin_index(confidence.ravel()).reshape(confidence.shape))


# fitted on, model ends in, columns
EXACT = [
    ("probabilities", "logits", K),
    ("log_probs", "logits", K),
    ("probabilities", "log_softmax", K),
    ("log_probs", "softmax", K),
    ("probability", "logits", 1),
    ("probability", "logits", 2),
    ("logit", "logits", 2),
    ("logit", "softmax", 2),
]


@pytest.mark.parametrize(("fitted", "how", "columns"), EXACT)
def test_scores_become_what_it_was_fitted_on_where_that_is_exact(fitted, how, columns):
    """The model that it was fitted on and another export of it get the same probabilities."""
    step = scaled(max(2, columns), fitted)
    assert step.depends_on_kind
    model, inputs = Ends(columns, how).eval(), x()
    z = to_logits(Ends.forward(model, inputs).numpy(), {"softmax": "probabilities"}.get(how, "logits"))
    own = to_probs(z, "logits")
    as_fitted = {
        "probabilities": lambda: own,
        "log_probs": lambda: np.log(own),
        "probability": lambda: own[:, 1],
        "logit": lambda: np.log(own[:, 1]) - np.log(own[:, 0]),
    }[fitted]()
    expected = step.of_logits(to_logits(as_fitted, fitted))
    np.testing.assert_allclose(calibrated(model, step, example=inputs)(inputs), expected, atol=1e-5)


Pair = namedtuple("Pair", "hidden logits")


@dataclass
class Plain:
    logits: torch.Tensor
    loss: object = None


class Returns(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.fc = nn.Linear(D, K)
        self.how = how

    def forward(self, x):
        z, hidden = self.fc(x), x.unsqueeze(2)
        return {
            "dict": {"hidden": hidden, "logits": z, "loss": None},
            "two dicts": {"logits": z, "other": -z},
            "tuple": (hidden, z),
            "nested": (hidden, {"logits": z}),
            "named tuple": Pair(hidden, z),
            "object": Plain(z),
            "twice": (z, -z),
        }[self.how]


@pytest.mark.parametrize("how", ["dict", "two dicts", "tuple", "nested", "named tuple", "object"])
@pytest.mark.parametrize("layers", [0, 2])
def test_scores_are_found_in_what_is_returned(how, layers):
    model, inputs = Returns(how).eval(), x()
    rng = np.random.default_rng(0)
    step = artifact(*([head(D, K, layers, rng)] if layers else []), LogitMap.temperature(2.0), classes=K)
    z = step.head(inputs.numpy()) if layers else model.fc(inputs).numpy()
    whole = calibrated(model, step, example=inputs)
    np.testing.assert_allclose(whole(inputs), step.of_logits(z), atol=1e-6)
    program = torch.export.export(whole, (inputs,))
    np.testing.assert_allclose(program.module()(inputs), step.of_logits(z), atol=1e-6)


def test_a_place_that_is_told_is_taken_or_refused():
    model, inputs = Returns("twice").eval(), x()
    step = artifact(LogitMap.temperature(2.0), classes=K)
    with pytest.raises(ModelError, match="name one with --output"):
        calibrated(model, step, example=inputs)
    got = calibrated(model, step, example=inputs, output="1")(inputs)
    np.testing.assert_allclose(got, step.of_logits(-model.fc(inputs).numpy()), atol=1e-6)
    for example in (inputs, None):
        with pytest.raises(CalibServeError, match="logits"):
            calibrated(model, step, example=example, output="logits")(inputs)
    named = Returns("named tuple").eval()
    got = calibrated(named, step, output="logits")(inputs)
    np.testing.assert_allclose(got, step.of_logits(named.fc(inputs).numpy()), atol=1e-6)
    with pytest.raises(FuseError, match="output="):
        calibrated(Returns("dict").eval(), step)(inputs)


class Scripts(nn.Module):
    """A scripted model of several inputs that returns several things."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(D, K)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 2.0
    ) -> dict[str, torch.Tensor]:
        if mask is not None:
            x = x * mask
        return {"features": x, "logits": scale * self.fc(x)}


def test_torchscript_of_several_inputs_keeps_its_signature(tmp_path):
    model, inputs, mask = Scripts().eval(), x(), (torch.rand(40, D) > 0.5).float()
    scripted.script(model).save(str(tmp_path / "model.pt"))
    np.savez(tmp_path / "in.npz", x=inputs, mask=mask.numpy().astype("f8"))
    step = artifact(InputShift(np.full(D, 0.3)), LogitMap.temperature(2.0), classes=K)
    with scripted.told():
        report = fuse_torch(
            tmp_path / "model.pt",
            step,
            tmp_path / "out.pt",
            inputs=tmp_path / "in.npz",
            output="logits",
            unproven=True,
        )
    assert (report.samples, report.output, report.outputs) == (40, "logits", "logits")
    out = scripted.load(tmp_path / "out.pt")
    for call in ({}, {"mask": mask}, {"scale": 1.0, "mask": mask}):
        expected = step.of_logits(model(inputs + 0.3, **call)["logits"].numpy())
        np.testing.assert_allclose(out(inputs, **call), expected, atol=1e-6)
    with scripted.told(), pytest.raises(InputError, match=r"inputs are \['y', 'z'\].*'x', 'mask', 'scale'"):
        fuse_torch(
            tmp_path / "model.pt",
            step,
            tmp_path / "no.pt",
            inputs={"y": inputs.numpy()[:, 0], "z": inputs.numpy()},
            unproven=True,
        )


@pytest.fixture
def script(tmp_path):
    return scripted.traced(tmp_path / "model.pt", Ends(K).eval(), x(2))


def test_without_inputs_nothing_is_written(script, tmp_path):
    step = artifact(LogitMap.temperature(2.0), classes=K)
    with scripted.told(), pytest.raises(FuseError, match=r"--inputs FILE.npz \(inputs=\)"):
        fuse_torch(script, step, tmp_path / "out.pt", unproven=True)
    with scripted.told(), pytest.raises(ModelError, match=r"refuses the inputs .*--inputs"):
        fuse_torch(script, step, tmp_path / "out.pt", inputs={"x": np.ones((5, D + 1))}, unproven=True)
    assert not (tmp_path / "out.pt").exists()
    with scripted.told():
        report = fuse_torch(script, step, tmp_path / "out.pt", inputs=X, unproven=True)
    assert report.samples == 5
    assert report.max_abs_diff <= report.tolerance == pytest.approx(1e-5, rel=10)
    with scripted.told(), pytest.raises(CalibServeError, match=r"4 classes.*10"):
        fuse_torch(script, artifact(classes=10), tmp_path / "no.pt", inputs=X, unproven=True)


def exported(model: nn.Module, args: tuple, path, named=None, **options) -> None:
    torch.export.save(torch.export.export(model, args, named, **options), path)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(D, K)

    def forward(self, tokens, mask=None):
        """(n, length, D) to (hidden, scores)."""
        kept = tokens if mask is None else tokens * mask[:, :, None]
        return kept, self.fc(kept.mean(1))


def test_an_exported_program_keeps_its_names_and_what_was_free(tmp_path):
    model, n, length = Two().eval(), torch.export.Dim("n", max=64), torch.export.Dim("length", min=2, max=9)
    tokens, mask = torch.randn(3, 5, D), torch.ones(3, 5)
    shapes = {"tokens": {0: n, 1: length}, "mask": {0: n, 1: length}}
    exported(model, (tokens,), tmp_path / "model.pt2", {"mask": mask}, dynamic_shapes=shapes)
    step = artifact(LogitMap.temperature(2.0), classes=K)
    report = fuse_torch(tmp_path / "model.pt2", step, tmp_path / "out.pt2", unproven=True)
    assert (report.samples, report.output) == (3, "1")
    out = torch.export.load(tmp_path / "out.pt2").module()
    for rows, words in ((1, 9), (64, 2), (7, 4)):
        tokens, mask = torch.randn(rows, words, D), (torch.rand(rows, words) > 0.3).float()
        expected = step.of_logits(model(tokens, mask)[1].numpy())
        np.testing.assert_allclose(out(tokens, mask=mask), expected, atol=1e-6)
    with pytest.raises(Exception, match=r"10|9"):
        out(torch.randn(3, 10, D), mask=torch.ones(3, 10))


@pytest.mark.parametrize("kind", ["pt", "pt2"])
def test_files_that_were_packed_beside_the_model_stay_in_the_archive(kind, tmp_path):
    model, packed = nn.Linear(D, K).eval(), {"names.json": '["a", "b"]', "maps/labels.txt": "0 a"}
    step = artifact(LogitMap.temperature(2.0), classes=K)
    if kind == "pt":
        scripted.save(scripted.script(model), str(tmp_path / "model.pt"), _extra_files=packed)
    else:
        torch.export.save(torch.export.export(model, (x(3),)), tmp_path / "model.pt2", extra_files=packed)
    shape = {"inputs": {"input": X["x"]}} if kind == "pt" else {}
    with scripted.told(kind == "pt"):
        fuse_torch(tmp_path / f"model.{kind}", step, tmp_path / f"out.{kind}", unproven=True, **shape)
    found = dict.fromkeys(packed, "")
    if kind == "pt":
        scripted.load(str(tmp_path / "out.pt"), _extra_files=found)
    else:
        torch.export.load(tmp_path / "out.pt2", extra_files=found)
    assert {n: t.decode() if isinstance(t, bytes) else t for n, t in found.items() if n in packed} == packed
    with scripted.told(kind == "pt"), pytest.raises(FuseError, match="calibrated already"):
        fuse_torch(tmp_path / f"out.{kind}", step, tmp_path / "again", unproven=True, **shape)


def test_what_was_compiled_ahead_of_time_is_refused(tmp_path):
    path = tmp_path / "compiled.pt2"
    with zipfile.ZipFile(path, "w") as archive:  # the names that aoti_compile_and_package writes
        archive.writestr("compiled/data/aotinductor/model/c.wrapper.so", b"\x7fELF")
        archive.writestr("compiled/archive_format", "pt2")
    with pytest.raises(ModelError, match=r"compiled by AOTInductor.*then compile the result"):
        fuse_torch(path, HALVED, tmp_path / "out.pt2", unproven=True)
