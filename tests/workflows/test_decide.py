"""Decisions added to a calibration: from samples that it has not seen, and with what they promise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calib_serve import Artifact, calibrate, decide
from calib_serve.artifact import Abstain, PredictionSets, evaluate_decisions, promises
from calib_serve.core.errors import FitError, InputError


def draw(n: int, seed: int, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, classes))
    return (3 * z).astype(np.float32), (z + rng.gumbel(size=z.shape)).argmax(axis=1)


CAL, HELD, TEST = draw(800, 0), draw(1500, 1), draw(2000, 2)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return calibrate(*CAL, "temperature", cross_validate=False, outputs="logits")


def test_sets_and_abstention_are_added_and_change_no_probability(artifact: Artifact, tmp_path: Path) -> None:
    found = decide(artifact, *HELD, coverage=0.9, risk=0.1)
    assert isinstance(found.sets, PredictionSets)
    assert isinstance(found.abstain, Abstain)
    np.testing.assert_array_equal(found.probs(TEST[0]), artifact.probs(TEST[0]))
    again = Artifact.load(found.save(tmp_path / "decided"))
    assert again.fit.decisions == found.fit.decisions
    assert promises(again) == promises(found)
    facts = found.fit.decisions.sets
    assert (facts.samples, facts.threshold_samples, facts.always_in) == (1500, 1500, ())


def test_what_was_promised_is_what_is_measured(artifact: Artifact) -> None:
    found = decide(artifact, *HELD, coverage=0.9, score="aps", risk=0.1)
    measured = evaluate_decisions(found, found.probs(TEST[0]), TEST[1])
    assert measured.sets is not None
    assert measured.abstain is not None
    assert measured.sets.coverage.low < 0.9 < measured.sets.coverage.high
    assert measured.sets.promised == 0.9
    assert 0.01 < measured.sets.p < 0.99
    assert measured.abstain.risk.low < 0.1
    assert not evaluate_decisions(artifact, artifact.probs(TEST[0]), TEST[1])


def test_a_decision_that_is_not_asked_for_stays(artifact: Artifact) -> None:
    first = decide(artifact, *HELD, coverage=0.9)
    both = decide(first, *TEST, risk=0.1)
    assert both.sets is first.sets
    assert both.fit.decisions.sets == first.fit.decisions.sets
    assert both.fit.decisions.abstain.samples == 2000


def test_the_samples_of_the_fit_are_refused_as_they_are_and_in_disguise(artifact: Artifact) -> None:
    z, y = CAL
    order = np.random.default_rng(3).permutation(800)
    with pytest.raises(InputError, match="these are the samples"):
        decide(artifact, z, y, coverage=0.9)
    with pytest.raises(InputError, match="8 of the 8 samples"):
        decide(artifact, z[order].astype(float), y[order], coverage=0.9)
    among = np.concatenate([HELD[0], z]), np.concatenate([HELD[1], y])
    with pytest.raises(InputError, match="has not seen"):
        decide(artifact, *among, risk=0.1)


def test_scores_that_come_again_and_again_are_not_taken_for_those_of_the_fit() -> None:
    rng = np.random.default_rng(4)
    levels = rng.standard_normal((6, 3)).astype(np.float32)
    rows = rng.integers(0, 6, (2, 300))
    y = (levels[rows] + rng.gumbel(size=(2, 300, 3))).argmax(axis=2)
    artifact = calibrate(levels[rows[0]], y[0], "temperature", cross_validate=False, outputs="logits")
    assert decide(artifact, levels[rows[1]], y[1], coverage=0.9).sets is not None


def test_what_cannot_be_is_refused(artifact: Artifact) -> None:
    z, y = HELD
    with pytest.raises(InputError, match="is what is promised: give one or more"):
        decide(artifact, z, y)
    with pytest.raises(InputError, match="missing"):
        decide(artifact, z * np.nan, y, coverage=0.9)
    with pytest.raises(InputError, match="outputs"):
        decide(artifact, artifact.probs(z), y, coverage=0.9)
    with pytest.raises(InputError):
        decide(artifact, z[:, :4], np.minimum(y, 3), coverage=0.9)
    with pytest.raises(FitError, match="can be promised"):
        decide(artifact, z, y, risk=0.0001)


def test_a_class_of_too_few_samples_is_in_every_set(artifact: Artifact) -> None:
    few = (HELD[1] != 3) | (np.cumsum(HELD[1] == 3) <= 4)
    found = decide(artifact, HELD[0][few], HELD[1][few], coverage=0.9, per_class=True)
    assert found.fit.decisions.sets.always_in == (3,)


def test_groups_are_counted_and_no_exact_range_is_claimed(artifact: Artifact) -> None:
    groups = np.arange(1500) // 5
    found = decide(artifact, *HELD, coverage=0.9, risk=0.2, groups=groups)
    assert found.fit.decisions.sets.groups == 300
    assert not any("Over draws" in said for said in promises(found))
    assert any("--per-class" in said and "one sample of each group" in said for said in promises(found))
    measured = evaluate_decisions(found, found.probs(TEST[0]), TEST[1])
    assert measured.sets is not None
    assert np.isnan(measured.sets.p)
