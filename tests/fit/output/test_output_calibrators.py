"""Every output calibrator, under one roof: what all of them owe, and what each is known for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression
from threadpoolctl import threadpool_info, threadpool_limits
from too_sure import draw

from calib_serve import Artifact, calibrate
from calib_serve.core.errors import FitError, InputError
from calib_serve.fit.output.candidates import CANDIDATES, TWO_CLASSES, fit_by_name
from calib_serve.fit.output.ece_grid import GRIDS, Gaps, ece_of_grid, fit_temperature_ece
from calib_serve.fit.output.linear import fit_dirichlet_odir, fit_matrix_odir, odir
from calib_serve.fit.output.mixture import base
from calib_serve.fit.output.tables import fit_histogram_mass, fit_histogram_width, fit_isotonic
from calib_serve.fit.samples import Samples
from calib_serve.fit.softmax_regression import Problem
from calib_serve.metrics import ece, nll
from calib_serve.scores import softmax

METHODS = pytest.mark.parametrize("method", CANDIDATES)
LINEAR = ("vector", "matrix", "ms-odir", "dirichlet-odir", "structured-vector", "structured-matrix")


@METHODS
def test_it_gives_distributions_certifies_itself_and_comes_back_from_disk(method: str, tmp_path: Path):
    logits, labels = draw()
    artifact = fit_by_name(method, logits, labels)
    assert artifact.method == method
    probs = artifact.probs(logits)
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-12)
    assert (probs >= 0).all()
    assert artifact.fit.facts.get("seed", 0) == 0
    assert artifact.reference is not None
    assert artifact.reference.ece() == pytest.approx(ece(probs, labels), abs=1e-9)
    assert list(artifact.reference_classes) == np.bincount(probs.argmax(axis=1), minlength=4).tolist()
    if method not in ("none", "batch"):  # the latter reads no label
        assert nll(probs, labels) < nll(softmax(logits), labels)
    if method in LINEAR:
        assert artifact.fit["gap"] <= 1e-8
        assert artifact.fit["gradient_norm"] < 1e-3
    loaded = Artifact.load(artifact.save(tmp_path / "a"))
    np.testing.assert_array_equal(loaded.probs(logits), probs)


HOSTILE = {
    "one sample a class": lambda z: (z[:4], np.arange(4)),
    "one sample": lambda z: (z[:1], np.array([2])),
    "infinite logits": lambda z: (np.where(z > 5, np.inf, z), z.argmin(axis=1)),
    "float16": lambda z: (z.astype(np.float16), np.roll(z.argmax(axis=1), 1)),
    "huge logits": lambda z: (1e30 * z, np.where(np.arange(len(z)) % 3, z.argmax(axis=1), 0)),
    "tiny logits": lambda z: (1e-30 * z, np.where(np.arange(len(z)) % 3, z.argmax(axis=1), 0)),
    "one outlier": lambda z: (
        np.where(np.arange(len(z))[:, None] == 7, 1e6 * z, z),
        np.where(np.arange(len(z)) % 3, z.argmax(axis=1), 0),
    ),
}


@METHODS
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_input_gives_a_finite_artifact_or_a_clear_error(method: str, case: str):
    logits, labels = HOSTILE[case](draw(400)[0])
    try:
        artifact = fit_by_name(method, logits, labels)
    except (FitError, InputError):
        return
    probs = artifact.probs(logits)
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-9)


@METHODS
def test_two_classes_and_one_binary_logit_work(method: str):
    logits, labels = draw(500, 2)
    margin = logits[:, 1] - logits[:, 0]
    artifact = fit_by_name(method, margin, labels)
    assert artifact.classes == 2
    zero = np.stack([np.zeros_like(margin), margin], axis=1)
    assert nll(artifact.probs(zero), labels) < nll(softmax(logits), labels) + 1e-9


EVERY = [*CANDIDATES, *TWO_CLASSES, "auto"]


def whole(method: str, logits, labels, **weights):
    """Fitted, with two classes where the method wants them."""
    two = method in TWO_CLASSES
    z, y = (logits[:, :2], np.minimum(labels, 1)) if two else (logits, labels)
    return calibrate(z, y, method, cross_validate=False, **weights, outputs="logits").of_logits(z[:50])


@pytest.mark.parametrize("method", EVERY)
def test_a_weight_of_zero_is_a_sample_that_is_not_there(method: str):
    logits, labels = draw(500)
    rng = np.random.default_rng(3)
    kept = rng.random(500) < 0.7
    for weight in (np.ones(500), rng.uniform(0.2, 3, 500)):
        with_zeros = whole(method, logits, labels, sample_weight=np.where(kept, weight, 0))
        z, y, w = logits[kept], labels[kept], weight[kept]
        two = method in TWO_CLASSES
        z, y = (z[:, :2], np.minimum(y, 1)) if two else (z, y)
        without = calibrate(z, y, method, cross_validate=False, sample_weight=w, outputs="logits")
        expected = without.of_logits(logits[:50, :2] if two else logits[:50])
        np.testing.assert_allclose(with_zeros, expected, atol=1e-7)


@pytest.mark.parametrize("method", EVERY)
def test_a_weight_that_counts_is_a_row_that_is_there_as_often(method: str):
    logits, labels = draw(300)
    rng = np.random.default_rng(4)
    counts = rng.integers(0, 4, 300)
    order = rng.permutation(counts.sum())
    z, y = (np.repeat(values, counts, axis=0)[order] for values in (logits, labels))
    two = method in TWO_CLASSES
    z, y = (z[:, :2], np.minimum(y, 1)) if two else (z, y)
    repeated = calibrate(z, y, method, cross_validate=False, outputs="logits")
    expected = repeated.of_logits(logits[:50, :2] if two else logits[:50])
    np.testing.assert_allclose(whole(method, logits, labels, sample_weight=counts), expected, atol=1e-6)


@pytest.mark.parametrize(("fit", "on"), [(fit_dirichlet_odir, "log_probs"), (fit_matrix_odir, "logits")])
def test_odir_with_a_huge_lambda_is_vector_scaling_and_with_a_small_one_fits_better(fit, on):
    samples = Samples.of(*draw(400))
    problem = Problem.of(samples, "full", on=on)
    stiff, loose = (problem.solve(odir(4, lam, 1e-3), np.zeros(20), gap=1e-9).x for lam in (1e9, 1e-3))
    weight, _ = problem.map(stiff)
    assert np.abs(weight - np.diag(np.diag(weight))).max() < 1e-6
    assert problem.nll(loose) < problem.nll(stiff)
    fitted = fit(samples)
    assert fitted.steps[0].on == on
    assert fitted.fit["nll_after"] < problem.nll(stiff) + 1e-3


@pytest.mark.parametrize("method", ["structured-vector", "structured-matrix", "ms-odir", "dirichlet-odir"])
def test_the_objective_is_the_nll_and_the_penalty_of_the_paper(method: str):
    logits, labels = draw(300)
    artifact = fit_by_name(method, logits, labels)
    fit, (step,) = artifact.fit, [one for one in artifact.steps if getattr(one, "bias", None) is not None]
    weight = np.diag(step.weight) if step.weight.ndim == 1 else step.weight
    own, bias = np.diag(weight) - 1, step.bias @ step.bias
    off = np.sum((weight - np.diag(np.diag(weight))) ** 2)
    if "odir" in method:  # Kull 2019: means of squares
        penalty = fit["lambda"] * off / 12 + fit["mu"] * bias / 4 + 1e-8 * own @ own
    else:  # Berta 2025, of n = 300 and K = 4
        penalty = fit["strength"] * (4 / 300 * (bias + own @ own) + 4 * 3 / 300 * off)
    assert fit["objective_value"] - fit["nll_after"] == pytest.approx(penalty, rel=1e-6)
    assert "scipy" in artifact.versions


def test_the_uniform_part_finds_the_share_of_labels_that_nothing_foretells():
    logits, labels = draw(20_000, 5, 1.0)
    rng = np.random.default_rng(1)
    noisy = np.where(rng.random(len(labels)) < 0.2, rng.integers(0, 5, len(labels)), labels)
    fit = vars(base(Samples.of(logits, noisy)))
    assert fit["uniform"] == pytest.approx(0.2, abs=0.03)
    assert fit["temperature"] == pytest.approx(1.0, abs=0.1)


def test_a_histogram_holds_the_share_of_each_bin():
    # Confidences .6 (right, wrong) and .9 (right, right, wrong): bins (.5, .75] and (.75, 1].
    p = np.array([[0.6, 0.4], [0.6, 0.4], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])
    labels = np.array([0, 1, 0, 0, 1])
    table = fit_histogram_width(Samples.of(np.log(p), labels), bins=4, smoothing=0, of="top").steps[0]
    np.testing.assert_allclose(table.values, [[0.125, 0.375, 1 / 2, 2 / 3]])
    prior = fit_histogram_width(Samples.of(np.log(p), labels), bins=4, smoothing=1, of="top").steps[0]
    np.testing.assert_allclose(prior.values, [[0.125, 0.375, 1.6 / 3, 2.9 / 4]])


def test_isotonic_is_scikit_learns_on_the_calibration_set():
    logits, labels = draw(800)
    artifact = fit_isotonic(Samples.of(logits, labels))
    p = softmax(logits)
    floor = 1 / (4 * 801)
    columns = [
        IsotonicRegression(y_min=floor, y_max=1 - floor).fit_transform(p[:, k], labels == k) for k in range(4)
    ]
    expected = np.stack(columns, axis=1)
    np.testing.assert_allclose(
        artifact.probs(logits), expected / expected.sum(axis=1, keepdims=True), atol=1e-9
    )


@pytest.mark.parametrize("of", ["top", "each"])
@pytest.mark.parametrize("fit", [fit_histogram_mass, fit_isotonic])
def test_rounding_moves_no_sample_of_a_model_with_few_probabilities_to_another_bin(fit, of):
    # As a forest of ten trees has; its file holds them in float32, and a served graph rounds once more.
    rng = np.random.default_rng(0)
    p = rng.multinomial(10, rng.dirichlet(np.ones(4), 500)).astype(np.float32) / np.float32(10)
    labels = np.array([rng.choice(4, p=q / q.sum()) for q in p.astype(np.float64)])
    z = np.log(np.maximum(p, np.finfo(np.float32).tiny))
    artifact = fit(Samples.of(z, labels), of=of)
    read = softmax(z).max(axis=1, keepdims=True) if of == "top" else softmax(z)
    found = [artifact.steps[0].of_each(read * rounded) for rounded in (1 - 2e-7, 1, 1 + 2e-7)]
    assert len(np.unique(found[1])) > 3
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[2], found[1])


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *(("histogram-width", {"bins": bins}) for bins in (0, 2.5, True, "9", None)),
        *(("histogram-mass", {"smoothing": smoothing}) for smoothing in (-1, np.inf, np.nan, "1")),
        *((method, {"of": "both"}) for method in ("histogram-width", "isotonic")),
        *(("temperature-ece", {"grid": grid}) for grid in ([1.0], [0, 1], [[1, 2], [3, 4]], "finest", ["a"])),
        *(("auto", {"folds": folds}) for folds in ("3", 2.0, True, 51)),
        ("auto", {"keep_predictions": "no"}),
        ("auto", {"keep_predictions": True, "candidates": ["vector"]}),
    ],
)
def test_options_that_cannot_be_right_are_refused(method: str, options: dict[str, object]):
    with pytest.raises(InputError):
        calibrate(*draw(50), method, outputs="logits", **options)


def test_folds_that_are_too_few_to_choose_by_are_said():
    logits, labels = draw(50)
    for y, method, said in (
        (labels, "temperature", "a temperature is fitted; 1 folds are too few"),
        (logits.argmax(axis=1), "none", "nothing is fitted; 1 folds are too few"),
    ):
        artifact = calibrate(logits, y, folds=1, outputs="logits", cross_validate=False)
        assert artifact.method == method
        assert said in artifact.fit.remarks[-1]


def test_options_may_be_numbers_of_any_kind():
    artifact = fit_by_name("histogram-width", *draw(50), bins=np.int64(4), smoothing=2)
    assert (artifact.fit["bins"], artifact.fit["smoothing"]) == (4, 2)


@pytest.mark.parametrize("weight", [None, np.linspace(0.2, 2, 500)], ids=["alike", "weighted"])
def test_the_ece_at_each_temperature_of_a_grid_is_that_of_the_scaled_softmax(weight: np.ndarray | None):
    logits, labels = draw(500)
    logits[:20, :3] = 9.0  # ties, whose confidence is 1 / 3 at a low temperature
    grid, share = np.geomspace(0.2, 9, 30), np.ones(500) if weight is None else weight
    share = share / share.sum()
    expected = []
    for t in grid:
        p = softmax(logits / t)
        gap = share * (p.max(axis=1) - (logits.argmax(axis=1) == labels))
        index = np.ceil(15 * p.max(axis=1) - 1e-9).astype(int)
        expected.append(np.abs(np.bincount(index, weights=gap)).sum())
    samples = Samples.of(logits, labels, sample_weight=weight)
    np.testing.assert_allclose(ece_of_grid(Gaps.of(samples), grid), expected, atol=1e-5)
    artifact = fit_temperature_ece(samples, grid=grid[::-1])
    assert artifact.fit["temperature"] == grid[np.argmin(expected)]
    assert artifact.fit["ece_after"] == pytest.approx(min(expected), abs=1e-9)
    assert artifact.fit["grid"] == {"values": 30, "low": pytest.approx(0.2), "high": pytest.approx(9)}


def test_the_temperature_of_least_ece_is_the_brute_force_one(data_dir: Path):
    data = np.load(data_dir / "logits" / "resnet50_c10_cross_entropy.npz")
    logits, labels = data["cal_logits"], data["cal_labels"]
    artifact = fit_temperature_ece(Samples.of(logits, labels), grid="coarse")
    brute = [ece(softmax(logits / t), labels) for t in GRIDS["coarse"]]
    assert artifact.fit["temperature"] == pytest.approx(GRIDS["coarse"][int(np.argmin(brute))]) == 2.5
    assert artifact.fit["ece_after"] == pytest.approx(min(brute), abs=1e-12)
    assert 100 * ece(artifact.probs(data["test_logits"]), data["test_labels"]) == pytest.approx(
        1.35, abs=0.01
    )
    fine = fit_temperature_ece(Samples.of(logits, labels))
    assert fine.fit["ece_after"] <= artifact.fit["ece_after"]


@pytest.mark.parametrize(("classes", "threads"), [(4, 1), (2000, 2)])
def test_small_fits_run_linear_algebra_on_one_thread_and_give_the_others_back(
    classes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def fit(samples: Samples) -> Artifact:
        seen.extend(threads_of_blas())
        return Artifact(method="temperature", classes=samples.classes, steps=())

    monkeypatch.setattr("calib_serve.fit.output.candidates._fitter", lambda *_: fit)
    with threadpool_limits(2, "blas"):
        fit_by_name("temperature", *draw(k=classes))
        assert set(threads_of_blas()) == {2}
    assert set(seen) == {threads}


def threads_of_blas() -> list[int]:
    return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
