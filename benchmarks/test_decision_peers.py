"""Net benefit is dcurves', Cllr and minCllr are lir's, the variance between sources is statsmodels'.

Skill, detection and costs are scikit-learn's, promises are MAPIE's.

python benchmarks/peers.py requirements-decisions.txt
.venv-bench-decisions/bin/python -m pytest benchmarks/test_decision_peers.py

lir has no EER and no minDCF; these are compared with what scikit-learn's ROC gives at every threshold.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from calib_serve import metrics
from calib_serve.core.options.evaluate import PromiseOptions
from calib_serve.fit.choices import choice_by
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
    data = pytest.importorskip("lir.data.models")
    p, y = trials
    ours = metrics.log_ratios(p, prior=0.3)
    in_powers = ours / np.log(10)
    theirs = data.LLRData(features=in_powers[:, None], labels=y)
    found = metrics.evaluate_ratios(ours, y)
    assert found["cllr"].value == pytest.approx(lir.cllr(theirs), abs=1e-9)
    assert found["min_cllr"].value == pytest.approx(lir.cllr_min(theirs), abs=1e-9)


def test_detection_is_that_of_scikit_learns_roc(trials) -> None:
    curves = pytest.importorskip("sklearn.metrics")
    p, y = trials
    alarm, hit, _ = curves.roc_curve(y, p, drop_intermediate=False)
    for prior in (0.001, 0.01, 0.3, 0.9):
        least = (prior * (1 - hit) + (1 - prior) * alarm).min() / min(prior, 1 - prior)
        ratios = metrics.log_ratios(p, prior=prior)
        found = metrics.evaluate_ratios(ratios, y, prior=prior)
        assert found["min_dcf"].value == pytest.approx(least, abs=1e-9)
    # The hull crosses the diagonal between two corners: the lowest crossing of any two.
    x, up = alarm[:, None], 1 - hit[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = (up - x) / ((up - x) - (up - x).T)
        crossing = np.where((part >= 0) & (part <= 1), x + part * (x.T - x), np.inf)
    assert metrics.evaluate_ratios(p, y)["eer"].value == pytest.approx(np.nanmin(crossing), abs=1e-9)


def test_skill_is_one_less_the_ratio_of_scikit_learns_losses(trials) -> None:
    losses = pytest.importorskip("sklearn.metrics")
    p, y = trials
    pair, base = np.stack([1 - p, p], axis=1), np.full(len(p), y.mean())
    for score, loss in (("brier", losses.brier_score_loss), ("nll", losses.log_loss)):
        found = metrics.skill(pair, y, score=score)
        assert found.value == pytest.approx(1 - loss(y, p) / loss(y, base), abs=1e-9)


COSTS = (1.0, 1.0), (1.0, 5.0), (4.0, 1.0), (1.0, 50.0)


def two_columns(p: np.ndarray) -> np.ndarray:
    return np.stack([1 - p, p], axis=1)


def ready(sklearn_base) -> type:
    """A scikit-learn classifier whose one feature is its probability."""

    class Ready(sklearn_base.ClassifierMixin, sklearn_base.BaseEstimator):
        def fit(self, x, y):
            self.classes_, self.n_features_in_ = np.array([0, 1]), 1
            return self

        def predict_proba(self, x):
            return two_columns(np.asarray(x)[:, 0])

        def predict(self, x):
            return (np.asarray(x)[:, 0] >= 0.5).astype(int)

    return Ready


@pytest.mark.parametrize("costs", COSTS, ids=str)
def test_costs_decide_as_scikit_learns_classifier_at_the_threshold_of_elkan(trials, costs) -> None:
    base, selection = (pytest.importorskip(f"sklearn.{name}") for name in ("base", "model_selection"))
    p, y = trials
    fp, fn = costs
    ours = choice_by(PromiseOptions(cost=(fp, fn)), two_columns(p), y, ())(two_columns(p))
    theirs = selection.FixedThresholdClassifier(
        ready(base)().fit(p[:, None], y), threshold=fp / (fp + fn), response_method="predict_proba"
    )
    sure = np.abs(p - fp / (fp + fn)) > 1e-9
    np.testing.assert_array_equal(theirs.fit(p[:, None], y).predict(p[:, None])[sure], ours[sure])


@pytest.mark.parametrize("costs", COSTS, ids=str)
def test_costs_come_near_those_of_scikit_learns_tuned_threshold(costs) -> None:
    base, selection = (pytest.importorskip(f"sklearn.{name}") for name in ("base", "model_selection"))
    metrics_of = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    p = rng.beta(0.7, 1.5, 100_000)
    y = (rng.random(len(p)) < p).astype(int)
    table = np.array([[0.0, costs[0]], [costs[1], 0.0]])

    def gain(true, chosen) -> float:
        return -float(table[true, chosen].mean())

    tuned = selection.TunedThresholdClassifierCV(
        ready(base)(), scoring=metrics_of.make_scorer(gain), cv="prefit", refit=False, thresholds=200
    )
    tuned.estimator.fit(p[:5000, None], y[:5000])
    theirs = tuned.fit(p[:5000, None], y[:5000]).predict(p[5000:, None])
    choice = choice_by(PromiseOptions(cost=(costs[0], costs[1])), two_columns(p[:5000]), y[:5000], ())
    ours = choice(two_columns(p[5000:]))
    assert -gain(y[5000:], ours) <= 1.002 * -gain(y[5000:], theirs)  # tuned on samples, it can only be worse


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("goal", ["recall", "budget"])
def test_recall_and_budget_are_those_of_mapies_fixed_sequence(goal: str, level: float) -> None:
    """MAPIE tests a grid, and rounds the count of failures up, now and then by one."""
    control = pytest.importorskip("mapie.risk_control")
    name = {"budget": "predicted_positive_fraction"}.get(goal, goal)
    for n, share in ((100, 0.5), (400, 0.8), (2000, 0.9), (2000, 0.2)):
        rng = np.random.default_rng(n)
        p = np.sort(rng.beta(0.7, 1.5, n))
        y = (rng.random(n) < p).astype(int)
        grid = np.concatenate([[0.0], (p[1:] + p[:-1]) / 2])  # one threshold between each two samples
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = control.BinaryClassificationController(
                lambda x: two_columns(x[:, 0]),
                name,
                share,
                level,
                list_predict_params=grid,
                fwer_method="fixed_sequence",
                best_predict_param_choice="recall",
            ).calibrate(p[:, None], y)
        valid = np.asarray(theirs.valid_predict_params)
        ours = metrics.promised_threshold(p, y == 1, goal, share, level=level)
        among = p[y == 1] if goal == "recall" else p
        last = valid.max() if goal == "recall" else valid.min()
        apart = int((among >= last).sum() - (among >= ours).sum())
        assert apart in ((0, 1) if goal == "recall" else (-1, 0))


def test_a_precision_that_mapie_promises_is_one_of_ours_and_as_many_are_chosen() -> None:
    control = pytest.importorskip("mapie.risk_control")
    rng, chosen = np.random.default_rng(1), {"ours": 0, "theirs": 0}
    for _ in range(20):
        p = rng.beta(0.7, 1.5, 2000)
        y = (rng.random(2000) < p).astype(int)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = control.BinaryClassificationController(
                lambda x: two_columns(x[:, 0]), "precision", 0.8, 0.9, fwer_method="bonferroni_holm"
            ).calibrate(p[:, None], y)
        ours = metrics.promised_threshold(p, y == 1, "precision", 0.8, level=0.9)
        best = theirs.best_predict_param
        chosen["ours"] += int((p >= ours).sum())
        chosen["theirs"] += 0 if best is None else int((p >= best).sum())
    assert chosen["ours"] >= chosen["theirs"] > 0


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
