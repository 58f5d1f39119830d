"""Studies on scores, and on a model."""

from __future__ import annotations

import digits
import numpy as np
import pytest
from sizes import sized

from calib_serve import calibrate, judge
from calib_serve.artifact import Head, InputShift
from calib_serve.fit.on_model import ON_MODEL, FitOnModel
from calib_serve.metrics import ece, nll
from calib_serve.models import from_module
from calib_serve.papers import ablation, bin_effect, optimal_temperature, shift, stability, validation_size
from calib_serve.papers.corruptions import CORRUPTIONS, corrupt
from calib_serve.papers.methods import ece_by_temperature
from calib_serve.scores import softmax


def drawn(n: int, seed: int, *, temperature: float = 2.5) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are calibrated after division by ``temperature``."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 5))
    labels = np.array([rng.choice(5, p=p) for p in softmax(z)])
    return temperature * z, labels


CAL, TEST = drawn(3000, 1), drawn(3000, 2)


def test_the_ece_at_each_temperature_is_that_of_the_scaled_softmax() -> None:
    grid = [0.5, 1.0, 2.5, 7.0]
    expected = [ece(softmax(TEST[0] / t), TEST[1]) for t in grid]
    np.testing.assert_allclose(ece_by_temperature(*TEST, grid), expected, atol=1e-12)


def test_the_optimum_is_found_and_nothing_fitted_beats_it() -> None:
    study = optimal_temperature(CAL, TEST)
    found = {row[0]: row for row in study.rows}
    assert found["best for test"][1] == pytest.approx(2.5, rel=0.15)
    assert found["best for test"][2] == min(row[2] for row in study.rows)
    assert found["none"][2] == pytest.approx(ece(softmax(TEST[0]), TEST[1]))
    assert min(study.curves[0].y) == pytest.approx(found["best for test"][2], abs=0.01)


def test_stability_tests_every_sample_once_and_compares_by_welch() -> None:
    study = stability([CAL], folds=5)
    found = {(row[0], row[1]): row[2:] for row in study.rows}
    whole = (CAL[0].argmax(1) == CAL[1]).mean()
    assert found["none", "accuracy"][0] == pytest.approx(whole)
    assert found["temperature", "accuracy"][0] == pytest.approx(whole)
    assert found["temperature", "ece"][0] < found["none", "ece"][0]
    assert study.says[0].startswith("best by ece: temperature, then none")


def test_the_bin_study_holds_the_eces() -> None:
    study = bin_effect(CAL, TEST, counts=(10, 20))
    raw = {row[1]: row[2] for row in study.rows if row[0] == "none"}
    assert raw == {count: pytest.approx(ece(softmax(TEST[0]), TEST[1], bins=count)) for count in (10, 20)}
    assert "the same at every bin count" in study.says[0]


IMAGES = np.random.default_rng(0).integers(0, 256, (4, 3, 16, 16), dtype=np.uint8)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize(
    "images", [IMAGES, IMAGES.transpose(0, 2, 3, 1), IMAGES[:, :1], IMAGES[:, 0]], ids=str
)
def test_a_corruption_keeps_shape_dtype_and_meaning(name: str, images: np.ndarray) -> None:
    images = np.ascontiguousarray(images)
    done = corrupt(images, name, 3)
    assert (done.shape, done.dtype) == (images.shape, np.uint8)
    assert (done != images).any()
    floats = corrupt((images / 255).astype(np.float32), name, 3)
    assert floats.dtype == np.float32
    np.testing.assert_allclose(floats * 255, done, atol=1e-3)


def test_the_shift_study_measures_the_model_on_corrupted_images() -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((3 * 8 * 8, 4)) / 8

    def model(images: np.ndarray) -> np.ndarray:
        return 3 * (images.reshape(len(images), -1) - 0.5) @ weight

    images = rng.random((400, 3, 8, 8)).astype(np.float32)
    labels = np.array([rng.choice(4, p=p) for p in softmax(model(images) / 3)])
    halves = (images[:200], labels[:200]), (images[200:], labels[200:])
    study = shift(model, *halves, corruptions=["noise", "brightness"], severities=[5])
    found = {row[:3]: row[3:] for row in study.rows}
    corrupted = softmax(model(corrupt(images[200:], "noise", 5)))
    assert found["noise", 5, "none"][1] == pytest.approx(ece(corrupted, labels[200:]))
    assert found["clean", 0, "temperature"][1] < found["clean", 0, "none"][1]
    assert study.says[0].startswith("temperature keeps up with")


def test_the_size_study_asks_for_as_many_test_samples_as_the_verdict() -> None:
    rng = np.random.default_rng(8)
    z = 2 * rng.standard_normal((1500, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    cal, test = (3 * z[:700], y[:700]), (3 * z[700:], y[700:])
    *_, told = validation_size(cal, test, sizes=(100,), repeats=2).says
    fitted = calibrate(*cal, "temperature", cross_validate=False, outputs="logits")
    found = judge(fitted.probs(test[0]), test[1], outputs="probabilities")
    assert found.level == "no_error_found"
    assert told == f"temperature, tested: {found.headline} {found.do[0]}"
    assert "samples would prove" in told


SLOW = ("neural-clamping",)  # by minutes, at full size


@pytest.fixture(scope="module")
def parts():
    """The network, its training images, and 300 and 600 other ones."""
    data = digits.load_splits(seed=0, sizes=(100, 300, 0))
    net = digits.train(data.train, epochs=sized(60, 200))
    model = from_module(net, input_shape=(1, 8, 8), device="cpu")
    held = data.test[:600]
    return model, *((part.images, part.labels) for part in (data.train, data.calibration, held)), net


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if name == "neural-clamping-paper" else [])
        for name in sorted(ON_MODEL)
        if name not in SLOW
    ],
)
def test_each_method_on_the_model_is_studied_and_changes_it(parts, method: str) -> None:
    model, train, cal, test, _ = parts
    found = FitOnModel(model, train=train)
    artifact = found.fit(method, *cal)
    probs = found.probs(artifact, test[0])
    assert probs.shape == (600, 10)
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-9)
    assert np.abs(probs - softmax(model.logits(test[0]))).max() > 0.01
    assert any(isinstance(step, (Head, InputShift)) for step in artifact.steps)


def test_the_ablation_tells_what_each_part_does(parts) -> None:
    model, train, cal, test, _ = parts
    methods = ["neural-clamping-efficient", "tuned-head", "no-mask-head+temperature"]
    study = ablation(cal, test, methods=methods, fit=FitOnModel(model, train=train))
    found = {row[:2]: row[2:] for row in study.rows}
    plain = softmax(model.logits(test[0]))
    assert found["none", "nothing"] == pytest.approx(
        (found["none", "nothing"][0], ece(plain, test[1]), nll(plain, test[1]))
    )
    assert set(found) == {
        ("none", "nothing"),
        ("temperature", "temperature"),
        *(("neural-clamping-efficient", part) for part in ("shift", "temperature", "shift + temperature")),
        *((name, part) for name in methods[1:] for part in ("head", "temperature", "head + temperature")),
    }
    artifact = FitOnModel(model).fit(methods[0], *cal)
    moved = softmax(model.logits(test[0], shift=artifact.input_shift))
    assert found[methods[0], "shift"][2] == pytest.approx(nll(moved, test[1]))
    assert found["tuned-head", "head + temperature"][2] < found["temperature", "temperature"][2]
    assert study.says[0].startswith("NLL: ")
    assert any("no-mask-head+temperature: " in sentence for sentence in study.says)
