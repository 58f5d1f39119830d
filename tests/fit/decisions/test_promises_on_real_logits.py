"""Real networks: a temperature of one third, thresholds of another, both promises measured on the last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sizes import sized

from calib_serve import calibrate
from calib_serve.fit.decisions import fit_abstain, fit_sets
from calib_serve.metrics import coverage_range


@pytest.mark.parametrize(("name", "coverage", "risk"), [("c10LT_resnet110", 0.9, 0.11)])
def test_coverage_and_risk_are_those_promised(
    data_dir: Path, name: str, coverage: float, risk: float
) -> None:
    with np.load(data_dir / "logits" / f"{name}.npz") as arrays:
        z = np.concatenate([arrays["cal_logits"], arrays["test_logits"]]).astype(np.float64)
        y = np.concatenate([arrays["cal_labels"], arrays["test_labels"]]).ravel()
    splits, n = sized(ci=20, nightly=100), 2000
    found: dict[str, list[float]] = {"lac": [], "aps": [], "raps": [], "broken": []}
    for seed in range(splits):
        fit, held_out, test = np.split(np.random.default_rng(seed).permutation(len(y)), [n, 2 * n])
        artifact = calibrate(z[fit], y[fit], "temperature", cross_validate=False, outputs="logits")
        p, q, truth = artifact.probs(z[held_out]), artifact.probs(z[test]), y[test]
        for score in ("lac", "aps", "raps"):
            inside = fit_sets(p, y[held_out], coverage=coverage, score=score, seed=seed)(q)
            found[score].append(inside[np.arange(len(truth)), truth].mean())
        answered = ~fit_abstain(p, y[held_out], risk=risk)(q)
        found["broken"].append(float((q.argmax(axis=1) != truth)[answered].mean() > risk))
    # Splits of one file are not independent: as if there were a fifth of them.
    spread = (coverage_range(n, coverage).high - coverage) / 2
    for score in ("lac", "aps", "raps"):
        assert abs(np.mean(found[score]) - coverage) < 4 * spread / (splits / 5) ** 0.5, score
    assert np.mean(found["broken"]) <= 0.25
