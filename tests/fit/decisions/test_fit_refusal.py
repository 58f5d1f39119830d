"""Refusal as none of the known classes: its exact distribution, and what it does not promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sizes import sized

from calib_serve import calibrate, decide
from calib_serve.artifact import Abstain, Artifact, LogitMap, evaluate_decisions, promises
from calib_serve.core.errors import FitError, InputError, OptionError
from calib_serve.fit.decisions import fit_refusal


def tops(confidence: Any) -> np.ndarray:
    c = np.asarray(confidence, np.float64)
    return np.stack([c, 1 - c], axis=1)


@pytest.mark.parametrize("refused", [0.0, 1.0, -0.1, 1.5, float("nan"), float("inf")])
def test_a_share_beyond_0_and_1_is_refused(refused: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        fit_refusal(tops(np.linspace(0.5, 1, 50)), known_refused=refused)


def test_an_abstention_makes_one_promise() -> None:
    for wrong in ({}, {"risk": 0.1, "known_refused": 0.1}, {"known_refused": 0.1, "level": 0.9}):
        with pytest.raises(InputError, match=r"promise|level"):
            Abstain(0.5, **wrong)
    assert Abstain(0.5, known_refused=0.1).facts == {"threshold": 0.5, "known_refused": 0.1}
    assert Abstain(0.5, risk=0.1).facts == {"threshold": 0.5, "risk": 0.1, "level": 0.95}
    assert Abstain(0.5, known_refused=0.1).answered == 0.9


@pytest.mark.parametrize(("refused", "least"), [(0.05, 19), (0.1, 9), (0.3, 3), (0.01, 99)])
def test_with_too_few_samples_it_says_how_many_it_takes(refused: float, least: int) -> None:
    c = np.linspace(0.6, 0.9, least)
    assert fit_refusal(tops(c), known_refused=refused).threshold == pytest.approx(0.6, abs=1e-6)
    with pytest.raises(FitError, match=f" {least} or more"):
        fit_refusal(tops(c[1:]), known_refused=refused)
    twice = np.repeat(np.arange(least - 1), 2)
    with pytest.raises(FitError, match=f"of {least - 1} groups"):
        fit_refusal(tops(np.repeat(c[1:], 2)), known_refused=refused, groups=twice)


def test_the_threshold_is_the_kth_smallest_and_ties_are_answered() -> None:
    rng = np.random.default_rng(0)
    c = rng.uniform(0.5, 1, 199)
    found = fit_refusal(tops(c), known_refused=0.1)
    k = 20  # of 200
    assert found(tops(c)).sum() == k - 1
    tied = fit_refusal(tops(np.full(100, 0.7)), known_refused=0.1)
    assert not tied(tops(np.full(100, 0.7)).astype(np.float32)).any()
    assert tied(tops([0.6, np.nan, 0.8])).tolist() == [True, True, False]


def test_the_share_refused_over_many_draws_has_its_exact_distribution() -> None:
    rng = np.random.default_rng(1)
    runs, n, m, refused = 400, 99, 100, 0.1
    counts = [
        fit_refusal(tops(c[:n]), known_refused=refused)(tops(c[n:])).sum()
        for c in rng.beta(5, 2, (runs, n + m)) / 2 + 0.5
    ]
    exact = stats.betabinom(m, 10, n + 1 - 10)
    seen = np.bincount(counts, minlength=m + 1)
    cut = np.array([exact.ppf(q) for q in (0.2, 0.4, 0.6, 0.8)], int)
    parts = np.array([part.sum() for part in np.split(seen, cut + 1)])
    chances = np.diff([0, *exact.cdf(cut), 1])
    assert stats.chisquare(parts, runs * chances).pvalue > 0.001


def test_groups_weigh_the_same_whatever_their_size() -> None:
    rng = np.random.default_rng(2)
    size = rng.integers(1, 20, 400)
    centre = rng.uniform(0.6, 0.95, 400) - 0.005 * size  # large groups are less sure
    codes = np.repeat(np.arange(400), size)
    c = np.clip(centre[codes] + 0.01 * rng.standard_normal(len(codes)), 0.5, 1)
    found = fit_refusal(tops(c), known_refused=0.1, groups=codes)
    of_group = np.bincount(codes, found(tops(c))) / size
    assert of_group.mean() == pytest.approx(0.1, abs=0.01)
    assert found(tops(c)).mean() > 0.12  # of rows it is more


def _decided(refused: float = 0.1, **more: Any) -> tuple[Artifact, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    z = 3 * rng.standard_normal((600, 4))
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1)
    plain = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=4)
    return decide(plain, z[:300], y[:300], known_refused=refused, outputs="logits", **more), z, y


def test_an_artifact_keeps_says_and_measures_its_promise(tmp_path: Path) -> None:
    decided, z, y = _decided()
    decided.save(tmp_path / "a")
    again = Artifact.load(tmp_path / "a")
    assert again.abstain == decided.abstain
    assert again.fingerprint == decided.fingerprint
    said = " ".join(promises(again))
    for words in ("At most 10 %", "by 300 samples", "nothing is promised", "95 times in 100"):
        assert words in said
    found = evaluate_decisions(again, again.of_logits(z[300:]), y[300:]).abstain
    assert found.promised is None
    assert found.promised_answered == 0.9
    assert found.p > 0.025
    assert "(promised at least 90 %)" in found.says()
    unsure = np.abs(z).max(axis=1) < np.quantile(np.abs(z).max(axis=1), 0.3)
    shifted = evaluate_decisions(again, again.of_logits(z[unsure]), y[unsure]).abstain
    assert shifted.p < 0.001
    assert shifted.as_dict()["p"] == shifted.p
    assert "Fewer are answered than promised" in shifted.says()


def test_a_later_decision_replaces_the_promise_and_sets_stay() -> None:
    decided, z, y = _decided(coverage=0.9)
    other = decide(decided, z[300:], y[300:], risk=0.5, outputs="logits")
    assert other.sets is decided.sets
    assert other.abstain is not None
    assert (other.abstain.risk, other.abstain.known_refused) == (0.5, None)
    assert decided.fit.decisions.abstain is not None
    alone = decide(decided, z[300:], y[300:], coverage=0.8, outputs="logits")
    assert alone.fit.decisions.abstain == decided.fit.decisions.abstain


def test_two_promises_of_one_threshold_are_refused() -> None:
    for wrong in ({"risk": 0.1}, {"level": 0.9}):
        with pytest.raises(OptionError, match=r"known_refused|level"):
            _decided(**wrong)


@pytest.mark.parametrize(
    "name", ["c10LT_resnet110", "banking77_mlp_inhouse", "kull_resnet110_c10", "akamaster_resnet20_c10"]
)
def test_known_samples_of_real_networks_are_refused_as_rarely_as_promised(data_dir: Path, name: str) -> None:
    with np.load(data_dir / "logits" / f"{name}.npz") as arrays:
        z = np.concatenate([arrays["cal_logits"], arrays["test_logits"]]).astype(np.float64)
        y = np.concatenate([arrays["cal_labels"], arrays["test_labels"]]).ravel()
    splits, refused, shares = sized(ci=20, nightly=200), 0.05, []
    fit, rest = np.split(np.random.default_rng(0).permutation(len(y)), [len(y) // 3])
    p = calibrate(z[fit], y[fit], "temperature", cross_validate=False, outputs="logits").probs(z[rest])
    n = len(rest) // 2
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(rest))
        shares.append(fit_refusal(p[order[:n]], known_refused=refused)(p[order[n:]]).mean())
    assert np.mean(shares) <= refused + 3 * np.std(shares) / splits**0.5


def test_an_abstention_without_a_threshold_is_refused() -> None:
    for wrong in (None, "0.5"):
        with pytest.raises(TypeError):
            Abstain(wrong, risk=0.1)  # type: ignore[arg-type]
