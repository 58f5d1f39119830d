"""Values are used like numbers, read by name and shown in a line, in a notebook and as a frame."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from libraries import library

from calib_serve.artifact import Artifact, Head, LogitMap, Mixture, Score
from calib_serve.errors import SchemaError
from calib_serve.fit.output import fit_by_name, select
from calib_serve.metrics import Estimate

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.standard_normal((300, 3))
LABELS = np.where(RNG.random(300) < 0.7, LOGITS.argmax(axis=1), RNG.integers(0, 3, 300))
E = Estimate(0.0123, 0.0101, 0.015)
TEMPERATURE = LogitMap.temperature(2.0)


def test_an_estimate_is_used_as_the_number_that_it_is() -> None:
    assert float(E) == E.value == 0.0123
    assert type(E.value) is float
    assert (round(E, 3), f"{E:.3f}", f"{E:.1%}") == (0.012, "0.012", "1.2%")
    assert (E + 1, 1 - E, E * 2, 1 / E, -E, abs(E)) == (1.0123, 0.9877, 0.0246, 1 / 0.0123, -0.0123, 0.0123)
    assert type(E + E) is float
    assert 0.01 < E < 0.02
    assert max(E, Estimate(0.5), 0.1) == 0.5
    assert Estimate(0.0123, 0.0, 1.0) == E == 0.0123
    assert len({E, Estimate(0.0123), 0.0123}) == 1
    assert math.isfinite(E)


def test_numpy_takes_an_estimate_for_the_number_that_it_is() -> None:
    assert np.asarray(E).dtype == np.float64
    assert np.asarray([E, E]).tolist() == [0.0123, 0.0123]
    assert np.isfinite(E)
    assert not np.isfinite(Estimate(math.nan))
    assert (np.array([1.0, 2.0]) + E).tolist() == [1.0123, 2.0123]
    assert (np.float64(1) - E, np.float32(2) * E) == pytest.approx((0.9877, 0.0246))
    assert pytest.approx(0.0123) == E


def test_an_estimate_never_changes_and_travels_whole() -> None:
    for name in ("value", "low", "other"):
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(E, name, 1.0)
    for same in (copy.copy(E), copy.deepcopy(E), pickle.loads(pickle.dumps(E))):
        assert (same.value, same.low, same.high) == (E.value, E.low, E.high)


def test_the_metrics_of_an_artifact_are_a_frame_of_before_and_after() -> None:
    library("pandas")
    artifact = Artifact(
        (TEMPERATURE,),
        method="temperature",
        classes=3,
        before={"ece": E.as_dict(), "nll": {"value": 1.0}},
        after={"ece": {"value": 0.001}},
    )
    frame = artifact.to_frame()
    columns = ("before", "before_low", "before_high", "after", "after_low", "after_high")
    assert tuple(frame.columns) == columns
    assert frame.loc["ece", "before_low"] == E.low
    assert frame["before"].tolist() == [0.0123, 1.0]
    assert frame["after"].isna().tolist() == [False, True]


HOSTILE = "<script>alert(1)</script>"


def test_no_name_of_an_artifact_becomes_a_tag_of_a_notebook() -> None:
    artifact = Artifact(
        (),
        method=HOSTILE,
        classes=2,
        class_names=(HOSTILE, "b"),
        before={HOSTILE: {"value": 1.0}, "ece": {"value": HOSTILE}, "nll": HOSTILE},
        after={HOSTILE: {"value": 1.0}},
    )
    html = artifact._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert artifact.metrics_before == {HOSTILE: 1.0}


@pytest.mark.parametrize("name", ["temperature", "vector", "temperature-mixture", "none"])
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
    fitted = select(LOGITS, LABELS, candidates=["temperature", "vector"], folds=3, criterion="brier")
    artifact = Artifact.load(fitted.save(tmp_path / "a"))
    found = artifact.selection
    assert found == fitted.selection
    assert (found.criterion, found.folds, found.chosen) == ("brier", 3, artifact.method)
    assert [score.method for score in found.scores] == ["none", "temperature", "vector"]
    assert isinstance(found.scores[0], Score)
    assert found.as_dict() == artifact.fit["selection"]
    assert artifact.metrics_before["ece"].value == artifact.before["ece"]["value"]
    assert artifact.metrics_after["nll"].low == artifact.after["nll"]["low"]
    assert math.isnan(artifact.metrics_after["refinement_auroc"].low)
    assert fit_by_name("temperature", LOGITS, LABELS).selection is None


@pytest.mark.parametrize("selection", [5, "auto", {}, {"scores": [5]}, {"scores": [{"method": "a", "x": 1}]}])
def test_a_selection_that_is_none_is_refused(selection: object) -> None:
    with pytest.raises(SchemaError, match="selection"):
        _ = Artifact((), method="none", classes=2, fit={"selection": selection}).selection
