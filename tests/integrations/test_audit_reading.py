"""An audit reads columns as they are said to be, tells so in one line, and refuses what contradicts it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from libraries import library
from pyarrow import parquet

from calib_serve.core.errors import InputError
from calib_serve.integrations.audit import Audit, Columns, audit

library("ibis")

pytestmark = pytest.mark.filterwarnings("ignore:::ibis")

Audited = Callable[..., Audit]
N = 4000


@pytest.fixture
def audited(tmp_path: Path) -> Audited:
    """Audits a log of these columns, with an id from 0 where none is given."""

    def run(predictions: dict[str, Any], labels: dict[str, Any] | Any, **options: Any) -> Audit:
        truth = labels if isinstance(labels, dict) else {"label": labels}
        for name, columns in (("p", predictions), ("l", truth)):
            ids = {} if "id" in columns else {"id": np.arange(len(next(iter(columns.values()))))}
            parquet.write_table(pa.table({**ids, **columns}), tmp_path / f"{name}.parquet")
        return audit(tmp_path / "p.parquet", tmp_path / "l.parquet", **options)

    return run


def binary(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """P(y = 1), calibrated, and labels drawn from it."""
    rng = np.random.default_rng(seed)
    p = 1 / (1 + np.exp(1 - 1.5 * rng.normal(size=n)))
    return p, (rng.random(n) < p).astype(int)


P, Y = binary()
TOP, PREDICTED = np.maximum(P, 1 - P), (P > 0.5).astype(int)
NAMES = np.array(["bad", "good"])


def ece(p: np.ndarray, came: np.ndarray, bins: int = 15) -> float:
    at = np.clip(np.searchsorted(np.linspace(0, 1, bins + 1), p) - 1, 0, bins - 1)
    return sum(abs((p - came)[at == b].sum()) for b in range(bins)) / len(p)


def test_a_confidence_that_no_predicted_class_has_is_refused_with_the_option(audited: Audited) -> None:
    log = {"y_pred": PREDICTED, "y_pred_proba": P}
    columns = Columns(predicted="y_pred", confidence="y_pred_proba")
    below = int((P < 0.495).sum())
    says = rf"(?s)y_pred_proba: {below:,} of 4,000 .* below 1/2 .*of id \d+.*--confidence-of 1.*--class-names"
    with pytest.raises(InputError, match=says):
        audited(log, Y, columns=columns)
    with pytest.raises(InputError, match="below 1/2"):
        audited(log, Y, columns=columns, skip_invalid=True)


@pytest.mark.parametrize("event", [1, "1", 0])
def test_the_probability_of_a_class_is_measured_against_that_class(audited: Audited, event: Any) -> None:
    p = P if int(event) else 1 - P
    for log in ({"predicted": PREDICTED, "confidence": p}, {"confidence": p}):
        found = audited(log, Y, confidence_of=event)
        told = found.as_dict()["total"]
        came = int(event) == Y
        assert told["labelled"]["ece"] == pytest.approx(ece(p, came), abs=1e-12)
        assert told["labelled"]["share"] == pytest.approx(came.mean())
        assert told["labelled"]["brier"] == pytest.approx(((p - came) ** 2).mean())
        assert "accuracy" not in told["labelled"]
        assert f"P({event})" in found.total.verdict.headline
        assert "predicted class" not in str(found.as_dict()["total"]["verdict"])
        assert f"confidence: the probability of {event}" in found.reading


def test_classes_by_name_and_by_truth_value(audited: Audited) -> None:
    log = {"predicted": NAMES[PREDICTED], "confidence": P}
    assert audited(log, NAMES[Y], confidence_of="good").total.bins.ece() == pytest.approx(
        ece(P, Y), abs=1e-12
    )
    with pytest.raises(InputError, match=r"no class Good .*bad, good"):
        audited(log, NAMES[Y], confidence_of="Good")
    truth = {"predicted": PREDICTED == 1, "confidence": P}
    assert audited(truth, Y == 1, confidence_of=True).total.bins.ece() == pytest.approx(ece(P, Y), abs=1e-12)


def test_a_rare_event_is_held_to_its_share(audited: Audited) -> None:
    """Says 0 of an event of 1 %: within two points of the truth, and no calibration."""
    came = (np.arange(20_000) % 100 == 0).astype(int)
    found = audited({"confidence": np.full(20_000, 1e-4)}, came, confidence_of=1)
    assert found.total.verdict.level == "off"


def test_a_thresholded_score_is_known_though_none_is_below_a_half(audited: Audited) -> None:
    p = 0.5 + P / 2
    log = {"predicted": (p > 0.75).astype(int), "confidence": p}
    with pytest.raises(
        InputError, match=r"every confidence of predicted 1 is above .* predicted 0.*--confidence-of 1"
    ):
        audited(log, Y)
    assert audited(log, Y, confidence_of="predicted").total.bins.n == N
    assert audited(log, Y, confidence_of=1).total.bins.ece() == pytest.approx(ece(p, Y), abs=1e-12)


def test_confidences_of_two_leaves_prove_nothing(audited: Audited) -> None:
    log = {"predicted": PREDICTED, "confidence": np.where(PREDICTED == 1, 0.9, 0.8)}
    assert audited(log, Y).total.bins.n == N


def test_a_said_class_that_the_confidences_contradict_is_told(audited: Audited) -> None:
    found = audited({"predicted": PREDICTED, "confidence": TOP}, Y, confidence_of=1)
    assert any("no probability of 1 is below 0.5, also where 0 was predicted" in one for one in found.says())
    right = audited({"predicted": PREDICTED, "confidence": P}, Y, confidence_of=1)
    assert not any("below 0.5" in one for one in right.says())


def test_more_classes_than_are_seen_are_named_and_decisions_of_another_kind_are_said(
    audited: Audited,
) -> None:
    log = {"predicted": PREDICTED, "confidence": 0.2 + TOP / 2}
    with pytest.raises(InputError, match="below 1/2"):
        audited(log, Y)
    assert audited(log, Y, class_names=("a", "b", "c", "d")).total.bins.n == N
    assert audited(log, Y, confidence_of="predicted").total.bins.n == N
    with pytest.raises(InputError, match="below 1/4"):
        audited({**log, "confidence": TOP / 4}, Y, class_names=("a", "b", "c", "d"))


def test_two_digits_of_a_third_are_a_third(audited: Audited) -> None:
    thirds = np.arange(N) % 3
    log = {"predicted": thirds, "confidence": np.full(N, 0.33)}
    assert audited(log, (thirds + (np.arange(N) % 2)) % 3).total.bins.n == N


@pytest.mark.parametrize(
    ("predicted", "labels"),
    [
        (NAMES[PREDICTED], np.char.title(NAMES)[Y]),
        (PREDICTED.astype(str), np.char.add(Y.astype(str), ".0")),
        (PREDICTED.astype(str), np.array(["False", "True"])[Y]),
        (PREDICTED.astype(str), NAMES[Y]),
        (PREDICTED, Y + 10),
        (np.char.add(NAMES, " ")[PREDICTED], NAMES[Y]),
    ],
    ids=["case", "1.0", "truth values", "names", "other ids", "blanks"],
)
def test_labels_that_are_no_predicted_class_are_refused_with_both_lists(
    audited: Audited, predicted: Any, labels: Any
) -> None:
    with pytest.raises(InputError) as refused:
        audited({"predicted": predicted, "confidence": TOP}, labels)
    for one in (*np.unique(predicted), *np.unique(labels)):
        assert str(one) in str(refused.value)
    assert "--class-names" in str(refused.value)


def test_many_labels_of_a_class_that_is_never_predicted_are_refused_and_few_are_told(
    audited: Audited,
) -> None:
    some = np.arange(N) % 10
    predicted = np.where(some < 5, "a", "b")
    labels = np.where(some < 3, "none", predicted)
    log = {"predicted": predicted, "confidence": np.full(N, 0.9)}
    with pytest.raises(InputError, match=r"1,200 of 4,000 labels .*none \(1,200\).*--ignore-label"):
        audited(log, labels)
    left = audited(log, labels, ignore_label=("none",))
    assert (left.labels.empty, left.total.bins.n, left.total.bins.accuracy()) == (1200, 2800, 1.0)
    said = audited(log, labels, class_names=("a", "b", "none"))
    assert said.total.bins.accuracy() == pytest.approx(0.7)
    few = audited(log, np.where((some < 1) & (np.arange(N) < 100), "none", predicted))
    assert any("10 labels are of classes that no prediction has: none" in one for one in few.says())


def test_labels_of_no_class_are_told_beside_the_probability_of_one(audited: Audited) -> None:
    log = {"predicted": NAMES[PREDICTED], "confidence": P}
    some = np.arange(N) % 10
    with pytest.raises(InputError, match=r"of classes that no prediction has.*--ignore-label"):
        audited(log, np.where(some < 3, "-1", NAMES[Y]), confidence_of="good")
    found = audited(log, np.where(some < 1, "-1", NAMES[Y]), confidence_of="good")
    assert any("400 labels are of classes that no prediction has: -1" in one for one in found.says())


def test_labels_of_other_models_in_the_same_table_are_nobody_s_classes(audited: Audited) -> None:
    labels = {"id": np.arange(2 * N), "label": np.concatenate([NAMES[Y], np.full(N, "cat")])}
    found = audited({"predicted": NAMES[PREDICTED], "confidence": TOP}, labels)
    assert (found.labels.without_prediction, "classes bad, good" in found.reading) == (N, True)


@pytest.mark.parametrize(
    ("predicted", "labels"),
    [
        (PREDICTED, NAMES[Y]),
        (NAMES[PREDICTED], Y),
        (PREDICTED.astype(str), NAMES[Y]),
        (PREDICTED == 1, Y),
        (PREDICTED, np.char.add(Y.astype(str), ".0")),
    ],
    ids=["ids and names", "names and ids", "digits", "truth values", "1.0"],
)
def test_class_names_join_ids_and_names(audited: Audited, predicted: Any, labels: Any) -> None:
    plain = audited({"predicted": PREDICTED, "confidence": TOP}, Y)
    log = {"predicted": predicted, "confidence": TOP}
    found = audited(log, labels, class_names=("bad", "good"))
    np.testing.assert_array_equal(found.total.sums.vector, plain.total.sums.vector)
    event = audited({**log, "confidence": P}, labels, class_names=("bad", "good"), confidence_of="good")
    assert event.total.bins.ece() == pytest.approx(ece(P, Y), abs=1e-12)


def test_a_value_that_is_none_of_the_named_classes_is_refused(audited: Audited) -> None:
    log = {"predicted": PREDICTED, "confidence": TOP}
    with pytest.raises(InputError, match=r"label holds 2: .*'bad', 'good'"):
        audited(log, Y * 2, class_names=("bad", "good"))
    with pytest.raises(InputError, match=r"predicted holds -1: .*'bad', 'good'"):
        audited({**log, "predicted": np.where(PREDICTED, 1, -1)}, Y, class_names=("bad", "good"))


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(
    ("values", "kind"), [(100 * TOP, "percent"), (np.log(TOP), "log_probs")], ids=["percent", "logarithms"]
)
def test_percents_and_logarithms_are_refused_or_said(
    audited: Audited, values: Any, kind: str, skip: bool
) -> None:
    log = {"predicted": PREDICTED, "confidence": values}
    with pytest.raises(InputError, match=r"in \[0, 1\].*--outputs percent"):
        audited(log, Y, skip_invalid=skip)
    found = audited(log, Y, outputs=kind)
    assert found.total.bins.ece() == pytest.approx(ece(TOP, PREDICTED == Y), abs=1e-9)
    assert kind in found.reading
    with pytest.raises(InputError, match=r"percent|log_probs"):
        audited({**log, "confidence": TOP}, Y, outputs=kind)


@pytest.mark.parametrize("name", ["confidence_pct", "percent_sure"])
def test_a_column_that_is_named_percent_holds_percents(audited: Audited, name: str) -> None:
    columns = Columns(confidence=name)
    found = audited({"predicted": PREDICTED, name: 100 * TOP}, Y, columns=columns)
    assert found.total.bins.ece() == pytest.approx(ece(TOP, PREDICTED == Y), abs=1e-9)
    with pytest.raises(InputError, match="--outputs probabilities"):
        audited({"predicted": PREDICTED, name: TOP}, Y, columns=columns)


def test_a_confidence_of_minus_one_is_left_out_when_that_is_said(audited: Audited) -> None:
    none = np.arange(N) % 10 == 0
    log = {"predicted": PREDICTED, "confidence": np.where(none, -1.0, TOP)}
    with pytest.raises(InputError, match="400 of 4,000 predictions"):
        audited(log, Y)
    found = audited(log, Y, skip_invalid=True)
    assert found.total.bins.n == 3600
    assert "400 left out for their confidence" in found.reading


def test_a_predicted_column_that_was_named_is_missed_and_a_score_is_no_class(audited: Audited) -> None:
    with pytest.raises(InputError, match="no column class"):
        audited({"confidence": P}, Y, confidence_of=1, columns=Columns(predicted="class"))
    found = audited({"predicted": P, "confidence": P}, Y, confidence_of=1)
    assert "classes 0, 1;" in found.reading


def test_missing_classes_are_counted_and_are_no_class(audited: Audited) -> None:
    gone = np.arange(N) % 20 == 0
    predicted = pa.array(NAMES[PREDICTED].tolist(), mask=gone)
    labels = {"label": pa.array(NAMES[Y].tolist(), mask=np.arange(N) % 20 == 1)}
    found = audited({"predicted": predicted, "confidence": TOP}, labels, skip_invalid=True)
    assert (found.refused["class"].count, found.labels.empty) == (200, 200)
    assert "classes bad, good" in found.reading
