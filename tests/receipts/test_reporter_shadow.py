"""A reporter's shadow: what receipts say of it, and that whatever is wrong with it the reply goes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from calib_serve import Artifact, Keyring, Reporter
from calib_serve.artifact import LogitMap
from calib_serve.receipts import Shadow

MODEL = {"model": "digits", "version": "1.0"}
Z = np.array([[2.0, 1.0, 0.0], [0.0, 0.5, 3.0], [1.0, 1.1, 0.9], [0.3, 0.2, 0.1]])


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def temperature(t: float, classes: int = 3) -> Artifact:
    return Artifact((LogitMap.temperature(t),), method="temperature", classes=classes)


def tag(artifact: Artifact) -> bytes:
    return bytes.fromhex(artifact.fingerprint.removeprefix("sha256:")[:8])


@pytest.fixture
def ring() -> Keyring:
    return Keyring.new()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def failures(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value("calib_monitor_errors_total", {"stage": "shadow"})


def shadows(ring: Keyring, receipts: list[Any]) -> list[Shadow | None]:
    return [ring.verify(str(one)).shadow for one in receipts]


@pytest.mark.parametrize("form", ["artifact", "folder"])
def test_an_artifact_in_the_shadow_is_applied_to_the_logits(
    form: str, ring: Keyring, registry: CollectorRegistry, tmp_path: Path
) -> None:
    shadow = temperature(4.0)
    what: Any = shadow if form == "artifact" else shadow.save(tmp_path / "shadow")
    with Reporter(temperature(2.0), **MODEL, keyring=ring, registry=registry, shadow=what) as reporter:
        found = shadows(ring, reporter.served(softmax(Z / 2), logits=Z))
        one = shadows(ring, reporter.served(softmax(Z / 2)[0], logits=Z[0]))
    p = softmax(Z / 4).astype("f4")
    assert found == [
        Shadow(int(k), pytest.approx(float(row[k])), tag(shadow))
        for row, k in zip(p, p.argmax(1), strict=True)
    ]
    assert one == found[:1]
    assert failures(registry) == 0


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        ({}, 4),  # neither logits nor probabilities
        ({"shadow": np.ones((4, 2)) / 2}, 4),
        ({"shadow": np.ones((3, 3)) / 3}, 4),
        ({"shadow": [["a", "b", "c"]] * 4}, 4),
        ({"shadow": [[0.5, 0.5, 0.0], [np.nan] * 3, [7.0, 0.0, 0.0], [0.2, 0.3, 0.5]]}, 2),
        ({"logits": [[1.0, 2.0, 3.0], [np.nan] * 3, [1e308, -1e308, 0.0], [0.0, 0.0, 0.0]]}, None),
    ],
)
def test_a_shadow_that_cannot_be_computed_is_counted_and_every_receipt_goes_out(
    given: dict[str, Any], lost: int | None, ring: Keyring, registry: CollectorRegistry
) -> None:
    with Reporter(
        temperature(2.0), **MODEL, keyring=ring, registry=registry, shadow=temperature(4.0)
    ) as reporter:
        found = shadows(ring, reporter.served(softmax(Z / 2), **given))
    assert len(found) == 4
    missing = found.count(None)
    assert failures(registry) == missing
    assert missing == lost if lost is not None else missing >= 1
