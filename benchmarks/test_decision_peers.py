"""Net benefit is dcurves', Cllr and minCllr are lir's, the variance between sources is statsmodels'.

Skill and detection are scikit-learn's parts.

python benchmarks/peers.py requirements-decisions.txt
.venv-bench-decisions/bin/python -m pytest benchmarks/test_decision_peers.py

lir has no EER and no minDCF; these are compared with what scikit-learn's ROC gives at every threshold.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from calib_serve import metrics
from calib_serve.fit.output.by_source import between_sources, shrunk

SIZES = ((50, 0.5), (400, 0.1), (5000, 0.3))


@pytest.fixture(params=SIZES, ids=str)
def trials(request) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, some of them equal, and outcomes."""
    n, share = request.param
    rng = np.random.default_rng(n)
    y = (rng.random(n) < share).astype(int)
    y[:2] = 0, 1
    z = np.round(rng.normal(size=n) + 1.3 * y, 2)
    return 1 / (1 + np.exp(-z)), y


def test_net_benefit_is_that_of_dcurves(trials) -> None:
    dcurves, pandas = pytest.importorskip("dcurves"), pytest.importorskip("pandas")
    p, y = trials
    thresholds = np.arange(1, 100) / 100
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = dcurves.dca(
            data=pandas.DataFrame({"y": y, "p": p}), outcome="y", modelnames=["p"], thresholds=thresholds
        )
    ours = metrics.decision_curve(p, y, thresholds=thresholds)
    for name, curve in (("p", ours.model), ("all", ours.all)):
        rows = theirs[theirs["model"] == name].sort_values("threshold")
        np.testing.assert_allclose(np.array(curve), rows["net_benefit"], rtol=1e-9, atol=1e-12)
        if name == "p":
            spared = np.array(ours.over_all) / (thresholds / (1 - thresholds))
            np.testing.assert_allclose(spared, rows["net_intervention_avoided"], rtol=1e-9, atol=1e-9)


def test_costs_of_likelihood_ratios_are_those_of_lir(trials) -> None:
    lir = pytest.importorskip("lir.metrics")
    data, isotonic = (
        pytest.importorskip(f"lir.{name}") for name in ("data.models", "algorithms.isotonic_regression")
    )
    p, y = trials
    ours = metrics.log_ratios(p, prior=0.3)
    in_powers = ours / np.log(10)
    theirs = data.LLRData(features=in_powers[:, None], labels=y)
    assert metrics.cllr(ours, y).value == pytest.approx(lir.cllr(theirs), abs=1e-9)
    assert metrics.min_cllr(ours, y) == pytest.approx(lir.cllr_min(theirs), abs=1e-9)
    with np.errstate(divide="ignore"):
        pooled = isotonic.IsotonicCalibrator().fit_transform(in_powers, y)
    np.testing.assert_allclose(metrics.pav_log_ratios(ours, y) / np.log(10), pooled, atol=1e-9)


def test_detection_is_that_of_scikit_learns_roc(trials) -> None:
    curves = pytest.importorskip("sklearn.metrics")
    p, y = trials
    alarm, hit, _ = curves.roc_curve(y, p, drop_intermediate=False)
    for prior in (0.001, 0.01, 0.3, 0.9):
        least = (prior * (1 - hit) + (1 - prior) * alarm).min() / min(prior, 1 - prior)
        ratios = metrics.log_ratios(p, prior=prior)
        assert metrics.min_dcf(ratios, y, prior=prior).value == pytest.approx(least, abs=1e-9)
    # The hull crosses the diagonal between two corners: the lowest crossing of any two.
    x, up = alarm[:, None], 1 - hit[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = (up - x) / ((up - x) - (up - x).T)
        crossing = np.where((part >= 0) & (part <= 1), x + part * (x.T - x), np.inf)
    assert metrics.eer(p, y).value == pytest.approx(np.nanmin(crossing), abs=1e-9)


def test_skill_is_one_less_the_ratio_of_scikit_learns_losses(trials) -> None:
    losses = pytest.importorskip("sklearn.metrics")
    p, y = trials
    pair, base = np.stack([1 - p, p], axis=1), np.full(len(p), y.mean())
    for score, loss in (("brier", losses.brier_score_loss), ("nll", losses.log_loss)):
        found = metrics.skill(pair, y, reference="shares", score=score)
        assert found.value == pytest.approx(1 - loss(y, p) / loss(y, base), abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_the_variance_between_sources_and_their_mean_are_those_of_statsmodels(seed: int) -> None:
    meta = pytest.importorskip("statsmodels.stats.meta_analysis")
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 40))
    v = rng.uniform(0.01, 0.5, n)
    x = rng.normal(size=n) * rng.uniform(0.1, 2)
    between = between_sources(x, v)

    # At a root that rounding puts on its other side it says 0: it makes its last step from just below.
    close = {"tau2_start": (1 - 1e-6) * between, "atol": 1e-9}
    theirs = meta.combine_effects(x, v, method_re="iterated", **close)
    assert between == pytest.approx(theirs.tau2, abs=1e-9)
    pooled, _, _ = shrunk(x[:, None], v[:, None, None])
    assert pooled.mean[0] == pytest.approx(theirs.mean_effect_re, abs=1e-9)
