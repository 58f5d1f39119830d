"""A calibration by source in servers: the segment of a prediction is its source, and the watch shows each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from calib_serve.artifact import Artifact, SourceMaps
from calib_serve.fit import calibrate
from calib_serve.gateway.calibration import Calibration
from calib_serve.integrations.mlflow import Calibrated
from calib_serve.ledger import Ledger
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import Keyring, Reporter, Tag
from calib_serve.scores import ClassAnswer, softmax

MAPS = SourceMaps("site", ("north", "south"), np.array([1.0, 0.5, 2.0]))
ARTIFACT = Artifact((MAPS,), method="temperature", classes=3, model={"outputs": "logits"})
Z = np.random.default_rng(0).normal(size=(4, 3))


def test_a_gateway_calibrates_by_the_segment_of_the_request_and_counts_unknown_ones() -> None:
    registry = CollectorRegistry()
    reports = Reporter(ARTIFACT, model="m", version="1", keyring=Keyring.new(), registry=registry)
    calibration = Calibration("m", "1", ARTIFACT, output="z", kind="logits", reports=reports)
    for segment, scale in (("north", 0.5), ("south", 2.0), ("Mars", 1.0), ("", 1.0)):
        made = calibration(Z, Tag(segment=segment))
        np.testing.assert_allclose(softmax(made.values), softmax(scale * Z), atol=1e-12)
    stage = {"stage": "source"}
    assert registry.get_sample_value("calib_monitor_errors_total", stage) == 8
    reports.served(softmax(Z), segment=["north", "Mars", "south", ""])
    assert registry.get_sample_value("calib_monitor_errors_total", stage) == 10
    reports.close()


@pytest.mark.store
def test_the_watch_shows_the_estimates_of_each_source(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    n, ring = 1200, Keyring.new()
    site, z = np.array(["north", "south"])[rng.integers(0, 2, n)], 3 * rng.normal(size=(n, 3))
    true = softmax(z / np.where(site == "north", 1.0, 4.0)[:, None])
    y = (true.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    fitted = calibrate(z, y, "temperature", outputs="logits", by={"site": site}, cross_validate=False)
    one = calibrate(z, y, "temperature", outputs="logits", cross_validate=False)
    gaps = {}
    for name, artifact in (("by source", fitted), ("one for all", one)):
        version = ("m", name)
        watch = Watch(ring, Ledger(tmp_path / f"{name}.db"), models={version: Watched.of(artifact)})
        reporter = Reporter(artifact, model="m", version=name, keyring=ring, watch=watch)
        receipts = reporter.served(artifact.of_segments(z, site)[0], segment=list(site))
        assert reporter.flush() == 0
        reporter.labels([{"receipt": r, "label": int(k)} for r, k in zip(receipts, y, strict=True)])
        slices = watch.windows_until_now(version, ["24h"])["24h"].slices
        of = {key.name: sums.feedback for key, sums in slices.items() if key.kind == "segment"}
        assert {key: int(bins.n) for key, bins in of.items()} == {s: (site == s).sum() for s in set(site)}
        gaps[name] = max(abs(bins.confidence.sum() - bins.correct.sum()) / bins.n for bins in of.values())
        reporter.close()
        watch.close()
    assert gaps["by source"] < 0.03
    assert gaps["one for all"] > 0.1


def test_answers_of_a_language_model_are_calibrated_by_their_segment() -> None:
    class Words:
        names = ("a", "b", "c")

        def read(self, _: Any) -> Any:
            return ClassAnswer(softmax(Z[:1])[0], np.zeros(3), 0.0)

    reports = Reporter(ARTIFACT, model="m", version="1", keyring=Keyring.new(), registry=CollectorRegistry())
    for segment, scale in (("north", 0.5), ("south", 2.0), ("", 1.0)):
        probs, receipt = reports.answered({}, Words(), segment=segment)
        np.testing.assert_allclose(probs, softmax(scale * Z)[0], atol=1e-6)
        assert receipt is not None
    reports.close()


def test_a_model_of_mlflow_is_calibrated_by_the_segment_of_each_row() -> None:
    class Inner:
        def predict(self, rows: Any) -> Any:
            return rows

    model = Calibrated(Inner(), ARTIFACT, outputs="logits")
    model.check(Z)
    z = np.concatenate([Z, [[np.nan, 0, 0]]])
    rows = model.predict(z, {"segment": ["north", "south", "Mars", "", "north"]})
    expected = softmax(np.array([0.5, 2.0, 1.0, 1.0])[:, None] * Z)
    np.testing.assert_allclose([row["probabilities"] for row in rows[:4]], expected, atol=1e-12)
    assert rows[4]["predicted"] is None
    assert [row["confidence"] for row in model.predict(Z)] == pytest.approx(softmax(Z).max(axis=1).tolist())
