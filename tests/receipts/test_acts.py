"""What a reporter and a model logged with MLflow say of acts, and what their receipts will count."""

from __future__ import annotations

import numpy as np
import pytest
from deciding import IN_SEGMENTS, acts_by_hand
from prometheus_client import CollectorRegistry

from calib_serve import Artifact, Keyring, Reporter
from calib_serve.artifact import LogitMap

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
