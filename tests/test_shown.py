"""Values are used like numbers, read by name and shown in a line and in a notebook."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from calib_serve.artifact import Artifact, Head, Mixture, Score
from calib_serve.fit import fit_by_name, select
from calib_serve.fit.samples import Samples

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.standard_normal((300, 3))
LABELS = np.where(RNG.random(300) < 0.7, LOGITS.argmax(axis=1), RNG.integers(0, 3, 300))


@pytest.mark.parametrize("name", ["temperature", "vector", "structured-vector", "none"])
def test_the_temperature_is_known_where_it_is_all_there_is(name: str) -> None:
    artifact = fit_by_name(name, LOGITS, LABELS)
    if name == "temperature":
        assert artifact.temperature == pytest.approx(artifact.fit["temperature"])
        head = Head((np.eye(3),), (np.zeros(3),))
        assert replace(artifact, steps=(head, *artifact.steps)).temperature == artifact.temperature
        assert replace(artifact, steps=artifact.steps * 2).temperature is None
        mixed = (*artifact.steps, Mixture([1.0], [0.5, 0.5]))
        assert replace(artifact, steps=mixed).temperature is None
    else:
        assert artifact.temperature is None


def test_the_selection_is_read_as_it_was_written(tmp_path) -> None:
    fitted = select(Samples.of(LOGITS, LABELS), candidates=["temperature", "vector"], folds=3)
    artifact = Artifact.load(fitted.save(tmp_path / "a"))
    found = artifact.selection
    assert found == fitted.selection
    assert (found.criterion, found.folds, found.chosen) == ("nll", 3, artifact.method)
    assert [score.method for score in found.scores] == ["none", "temperature", "vector"]
    assert isinstance(found.scores[0], Score)
    assert artifact.metrics_before["ece"].value == artifact.before["ece"]["value"]
    assert artifact.metrics_after["nll"].low == artifact.after["nll"]["low"]
    assert math.isnan(artifact.metrics_after["refinement_auroc"].low)
    assert fit_by_name("temperature", LOGITS, LABELS).selection is None
