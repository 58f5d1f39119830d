"""What a reporter and a model logged with MLflow say of acts, and what their receipts will count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deciding import IN_SEGMENTS, acts_by_hand
from prometheus_client import CollectorRegistry

from calib_serve import Artifact, Keyring, LogitMap, Reporter
from calib_serve.artifact import Clause, Contract
from calib_serve.errors import InputError, ShapeError
from calib_serve.mlflow.served import Calibrated

FITTED = Artifact((LogitMap.temperature(0.5),), method="temperature", classes=3, contract=IN_SEGMENTS)
Z = np.random.default_rng(0).normal(size=(60, 3))
P = FITTED.probs(Z)
WHERE = ["", "nord", "süd"] * 20


def reporter(what: Artifact | int = FITTED, ring: Keyring | None = None) -> Reporter:
    keyring, registry = ring or Keyring.new(), CollectorRegistry()
    return Reporter(what, model="m", version="1", keyring=keyring, registry=registry)


def by_hand(probs: np.ndarray = P) -> list[bool]:
    return [acts_by_hand(p[None], of)[0] for p, of in zip(probs, WHERE, strict=True)]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_it_says_what_its_receipts_will_count(dtype: str) -> None:
    ring, probs = Keyring.new(), P.astype(dtype)
    with reporter(ring=ring) as one:
        acts = one.acts(probs, segment=WHERE)
        receipts = [ring.verify(str(r)) for r in one.served(probs, segment=WHERE)]
    assert acts.dtype == np.bool_
    assert acts.tolist() == by_hand(probs.astype("f8"))
    assert acts.tolist() == [IN_SEGMENTS.acts_on(r.confidence, r.predicted, r.segment) for r in receipts]
    assert 0 < acts.mean() < 1
    assert one.acts(probs[0]).tolist() == acts_by_hand(probs[:1].astype("f8"))


def test_what_is_no_prediction_may_not_be_acted_on() -> None:
    odd = np.array([[np.nan, np.nan, np.nan], [1 + 1e-9, 0, 0], [0, 0, 7.0]])
    assert reporter().acts(odd).tolist() == [False, True, False]


def test_what_cannot_be_decided_is_refused() -> None:
    silent = Contract((Clause("coverage", 0.5, above=0.9),))
    for what in (3, replace(FITTED, contract=None), replace(FITTED, contract=silent)):
        with pytest.raises(InputError, match="no contract says"):
            reporter(what).acts(P)
    with pytest.raises(InputError, match="one segment for each"):
        reporter().acts(P, segment=["de"])
    with pytest.raises(ShapeError):
        reporter().acts(P[:, :2])


class Inner:
    """Returns the logits that it is given."""

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return rows


def test_a_logged_model_says_it_by_segment_and_not_of_what_is_not_finite() -> None:
    model = Calibrated(Inner(), FITTED, outputs="logits")
    assert [row["act"] for row in model.predict(Z, {"segment": WHERE})] == by_hand()
    assert [row["act"] for row in model.predict(Z)] == acts_by_hand(P)
    odd = Z.copy()
    odd[0] = np.nan
    assert "act" not in model.predict(odd)[0]
    with pytest.raises(InputError, match="one segment for each"):
        model.predict(Z, {"segment": ["de"]})
    plain = Calibrated(Inner(), replace(FITTED, contract=None), outputs="logits")
    assert "act" not in plain.predict(Z)[0]
