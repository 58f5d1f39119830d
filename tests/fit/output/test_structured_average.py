"""The average of structured scaling: what it is made of, and that it follows no single noisy choice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from too_sure import draw

from calib_serve.fit.folds import folds_of
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.output import averaged
from calib_serve.fit.output.averaged import Averaged, HeldOutGain, fit_structured_average, strengths_of
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.fit.samples import Samples
from calib_serve.metrics import nll


def skewed(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    z, y = draw(n, seed=seed)
    return z * np.array([0.4, 1.0, 1.5, 2.5]) + np.array([3.0, 0.0, -3.0, 0.0]), y


def test_a_fold_is_weighed_without_its_own_samples() -> None:
    samples = Samples.of(*draw(200))
    average = Averaged.of(samples, folds_of(samples, folds=5, seed=0))
    inside = average.fold == 2
    member = average.members[0]
    before = average.weighed(without=2)[0]
    member.losses[inside] += 10
    assert average.weighed(without=2)[0] == before
    assert average.weighed()[0][member.name] < before[member.name]


@pytest.mark.parametrize("seed", range(3))
def test_on_new_samples_it_is_as_good_as_a_temperature_and_better_where_classes_differ(seed: int) -> None:
    for make, most in ((draw, 1.03), (skewed, 0.95)):
        logits, labels = make(400, seed=seed)
        new, truth = make(5000, seed=seed + 100)
        ours = nll(fit_structured_average(Samples.of(logits, labels)).probs(new), truth)
        assert ours < most * nll(fit_by_name("temperature", logits, labels).probs(new), truth)


def paraphrased(classes: int, prompts: int, copies: int, tested: int = 3000) -> tuple[np.ndarray, ...]:
    """Scores of many classes whose calibration samples come as a few copies of each of some prompts."""
    rng = np.random.default_rng(0)
    centre = 1.1 * rng.standard_normal((classes, 32))
    believed = centre + 0.3 * rng.standard_normal(centre.shape)

    def scores(y: np.ndarray, copies: int) -> np.ndarray:
        prompt = np.repeat(rng.standard_t(4, (len(y) // copies, 32)), copies, axis=0)
        inputs = centre[y] + prompt + 0.1 * rng.standard_normal(prompt.shape)
        return 0.87 * (inputs @ believed.T - (believed**2).sum(axis=1) / 2)

    labels, truth = np.repeat(np.arange(classes), prompts * copies), rng.integers(0, classes, tested)
    return scores(labels, copies), labels, scores(truth, 1), truth


def test_samples_that_resemble_each_other_do_not_make_it_worse_than_a_temperature() -> None:
    logits, labels, new, truth = paraphrased(150, prompts=10, copies=3)
    ours = nll(fit_structured_average(Samples.of(logits, labels)).of_logits(new), truth)
    assert ours <= nll(fit_by_name("temperature", logits, labels).of_logits(new), truth)


def test_of_few_samples_that_are_nearly_all_right_it_does_no_harm() -> None:
    ratios = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 3, 5050)
        z = 6 * np.eye(3)[y] + 2 * rng.standard_normal((len(y), 3))  # nearly all are right
        samples = Samples.of(z[:50], y[:50])
        fits = fit_structured_average(samples), fit_by_name("none", samples)
        ratios.append([nll(one.of_logits(z[50:]), y[50:]) for one in fits])
    ours, best = np.mean(ratios, axis=0)
    assert ours < best


positive = st.floats(1e-6, 1e3)


@given(positive, positive, st.floats(1.01, 100))
@example(74.0, 1e-6, 1.25)
def test_more_than_a_temperature_is_taken_as_far_as_the_evidence_goes(
    gain: float, error: float, more: float
) -> None:
    share = HeldOutGain(gain, error).share
    assert 0 < share <= HeldOutGain(more * gain, error).share <= 1
    assert HeldOutGain(more * gain, more * error).share == pytest.approx(share)
    assert HeldOutGain(error, error).share == pytest.approx(0.5)
    assert HeldOutGain(-gain, error).share == 0 == HeldOutGain(gain, float("nan")).share


@given(st.integers(2, 1000), st.integers(2, 10**6))
def test_strengths_fall_no_further_than_the_samples_of_a_class_allow(classes: int, n: int) -> None:
    tried = strengths_of(n, classes)
    assert tried
    assert tried == sorted(tried, reverse=True)
    assert len(tried) == 1 or tried[-1] >= 5 * classes / n
    assert set(tried) <= set(strengths_of(10 * n, classes))


def confused(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits of four classes, each of which depends on those of the others."""
    rng = np.random.default_rng(3)
    z = 3 * rng.standard_normal((n, 4))
    mixed = z @ (np.eye(4) / 2 + 0.1 * rng.standard_normal((4, 4)))
    return z, (mixed + rng.gumbel(size=z.shape)).argmax(axis=1)


def test_one_fold_of_many_samples_gives_the_average_of_all_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = confused(8000)
    samples = Samples.of(z, y)
    folds = fit_structured_average(samples)
    monkeypatch.setattr(averaged, "MEASURED", MEASURED._replace(most_samples_cross_validated=4000))
    one = fit_structured_average(samples)
    assert nll(one.of_logits(z), y) == pytest.approx(nll(folds.of_logits(z), y), abs=1e-3)
    assert (one.of_logits(z) != folds.of_logits(z)).any()
    assert np.isfinite(list(one.fit["held_out_nll"].values())).all()


def test_where_classes_are_confused_in_pairs_matrices_are_the_best_members() -> None:
    samples = Samples.of(*confused(1500))
    losses = fit_structured_average(samples).fit["held_out_nll"]
    of = {kind: [nll for name, nll in losses.items() if kind in name] for kind in ("vector", "matrix")}
    assert min(map(len, of.values())) > 1
    assert max(of["matrix"]) < min(of["vector"]) < losses["temperature"] < losses["none"]
