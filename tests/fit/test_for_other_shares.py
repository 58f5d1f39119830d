"""An artifact for other class shares: exact where its steps can say it, refused where they cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calib_serve import Artifact
from calib_serve.artifact import Abstain, LogitMap, Mixture, ProbTable
from calib_serve.core.errors import InputError
from calib_serve.fit.output.candidates import CANDIDATES, fit_by_name
from calib_serve.fit.shares import correctable, for_shares
from calib_serve.metrics.shares import corrected

K = 4
OLD, NEW = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.2, 0.5])


@pytest.fixture(scope="module")
def scores() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.choice(K, 1200, p=OLD)
    return (3 * (rng.normal(size=(1200, K)) + 1.5 * np.eye(K)[y])).astype("f4"), y


@pytest.mark.parametrize("method", [name for name in CANDIDATES if correctable(name, K, "each")])
def test_every_method_is_corrected_by_bayes_rule(method: str, scores: tuple[np.ndarray, np.ndarray]) -> None:
    z, y = scores
    options = {"of": "each"} if method.startswith("histogram") else {}
    artifact = fit_by_name(method, z, y, **options)
    made = for_shares(artifact, NEW, how="given")
    expected = corrected(artifact.of_logits(z), np.bincount(y) / len(y), NEW)
    # The structured methods' uniform floor, a sample's weight, stays uniform.
    ratio = NEW / OLD
    floor = ratio.max() / ratio.min() / len(y) if method.startswith("structured") else 1e-9
    np.testing.assert_allclose(made.of_logits(z), expected, atol=floor)
    assert made.fit.prior.new == tuple(NEW)
    assert made.data["confusion"]["unknown"]
    assert made.reference is None
    assert made.examples is not None
    np.testing.assert_array_equal(made.examples.probs, made.of_logits(made.examples.logits))
    back = for_shares(made, np.bincount(y) / len(y), how="given")
    np.testing.assert_allclose(back.of_logits(z), artifact.of_logits(z), atol=floor)


def known(*steps: LogitMap | Mixture | ProbTable, **more: object) -> Artifact:
    return Artifact(steps, method="test", classes=K, data={"class_shares": OLD}, **more)


EDGES = np.tile([0.25, 0.5, 0.75], (K, 1))
VALUES = np.random.default_rng(1).random((K, 4))


def test_what_cannot_be_corrected_is_refused_with_what_to_do() -> None:
    two = Mixture([1.0, 0.5], [0.5, 0.4, 0.1])
    broad = Mixture([1.0], [0.9, 0.1])
    for steps in ((two,), (broad,), (LogitMap.temperature(2.0), two)):
        with pytest.raises(InputError, match="fit with temperature"):
            for_shares(known(*steps), NEW, how="given")
    with pytest.raises(InputError, match=r"of='each' \(--option of=each\)"):
        for_shares(known(ProbTable(EDGES[:1], VALUES[:1])), NEW, how="given")
    with pytest.raises(InputError, match="would not keep their promise"):
        for_shares(known(abstain=Abstain(0.5, risk=0.1)), NEW, how="given")
    with pytest.raises(InputError, match="does not say under which class shares"):
        for_shares(replace(known(), data={}), NEW, how="given")
    with pytest.raises(InputError, match=r"no calibration sample is of classes \[3\]"):
        for_shares(replace(known(), data={"class_shares": [0.5, 0.3, 0.2, 0.0]}), NEW, how="given")
    labels = Artifact((), method="none", classes=K, model={"outputs": "label_logits"})
    with pytest.raises(InputError, match="multi-label"):
        for_shares(labels, NEW, how="given")


@pytest.mark.parametrize("outputs", ["logit", "probability"])
def test_one_score_a_sample_is_corrected_on_its_log_odds(outputs: str) -> None:
    one = Artifact(
        (LogitMap.temperature(2.0),),
        method="t",
        classes=2,
        data={"class_shares": [0.5, 0.5]},
        model={"outputs": outputs},
    )
    made = for_shares(one, np.array([0.8, 0.2]), how="given")
    z = np.linspace(-3, 3, 9)
    odds = np.log(made.of_logits(z)[:, 1] / made.of_logits(z)[:, 0])
    np.testing.assert_allclose(odds, z / 2 + np.log(0.25), atol=1e-12)
    (step,) = made.logit_maps
    assert step.bias is not None
    assert step.bias[0] == 0
