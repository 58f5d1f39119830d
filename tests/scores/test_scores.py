"""Scores: one value, made once, from arrays, frames and files, with labels by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import invoke
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from calib_serve import Artifact, calibrate, compare_methods, decide, evaluate, judge
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics import ece
from calib_serve.scores import Scores, log_softmax, softmax

NAMES = ["cat", "dog", "owl"]


def samples(n: int, seed: int, scale: float = 2.0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Logits (n, 3) that are ``scale`` times too large, and class ids."""
    rng = np.random.default_rng(seed)
    z = 3 * rng.normal(size=(n, 3))
    return z, (softmax(z / scale).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def test_probabilities_and_logits_of_one_model_give_the_same_everywhere() -> None:
    z, y = samples(2000, 1)
    p = softmax(z)
    for found in (
        evaluate(p, y, replicates=0),
        evaluate(z, y, replicates=0, outputs="logits"),
    ):
        assert found.ece == pytest.approx(ece(p, y), abs=1e-9)
    assert judge(p, y).tests[0].error == pytest.approx(judge(z, y, outputs="logits").tests[0].error, abs=1e-9)
    both: list[tuple[Any, dict[str, Any]]] = [(p, {}), (z, {"outputs": "logits"})]
    fits = [calibrate(s, y, "temperature", cross_validate=False, **how) for s, how in both]
    np.testing.assert_allclose(fits[0].probs(p), fits[1].probs(z), atol=1e-6)
    tables = [compare_methods((s, y), (s, y), ["none", "temperature"], **how) for s, how in both]
    for one, other in zip(*tables, strict=True):
        assert one.metrics is not None
        assert other.metrics is not None
        assert one.metrics.nll == pytest.approx(other.metrics.nll, abs=1e-4)
    again, later = samples(2000, 2)
    sets = [
        decide(fit, s, later, coverage=0.9).sets for fit, s in zip(fits, (softmax(again), again), strict=True)
    ]
    np.testing.assert_allclose(sets[0].threshold, sets[1].threshold, atol=1e-5)


def test_one_probability_a_sample_is_platt_scaled_as_by_scikit_learn() -> None:
    calibration = pytest.importorskip("sklearn.calibration")
    rng = np.random.default_rng(3)
    s = 2 * rng.normal(size=1500)
    p, y = 1 / (1 + np.exp(-s)), (rng.random(1500) < 1 / (1 + np.exp(1 - 0.6 * s))).astype(int)
    fitted = calibrate(p, y, "platt", cross_validate=False, outputs="probability")
    expected = calibration._SigmoidCalibration().fit(s, y).predict(s)
    np.testing.assert_allclose(fitted.probs(p)[:, 1], expected, atol=1e-6)
    assert (
        evaluate(p, y, replicates=0, outputs="probability").positive_ece
        == evaluate(np.c_[1 - p, p], y, replicates=0).positive_ece
    )


@settings(max_examples=25)
@given(st.permutations(range(3)), st.booleans())
def test_columns_are_found_by_their_names(order: list[int], with_ids: bool) -> None:
    z, y = samples(200, 5)
    frame = pd.DataFrame(z, columns=NAMES)
    labels = y if with_ids else np.array(NAMES)[y]
    fitted = calibrate(frame, labels, "vector", class_names=NAMES, cross_validate=False, outputs="logits")
    turned = frame[[NAMES[k] for k in order]]
    np.testing.assert_allclose(fitted.probs(turned), fitted.probs(z), atol=1e-12)
    assert (fitted.probs(turned).argmax(axis=1) == fitted.probs(z).argmax(axis=1)).all()
    with pytest.raises(InputError, match="not in both"):
        fitted.probs(turned.rename(columns={"owl": "fox"}))


def test_labels_move_with_their_columns() -> None:
    z, y = samples(300, 6)
    given_order = Scores.of(pd.DataFrame(z, columns=NAMES), np.array(NAMES)[y], outputs="logits")
    turned = given_order.in_order(["owl", "cat", "dog"])
    before, after = (
        {name: e.value for name, e in evaluate(one, replicates=0).estimates().items()}
        for one in (given_order, turned)
    )
    assert after == pytest.approx(before)
    assert turned.in_order(NAMES).labels.tolist() == y.tolist()


def test_decisions_are_not_made_of_columns_in_another_order_unless_that_is_meant() -> None:
    z, y = samples(600, 7)
    names = np.array(NAMES)
    fitted = calibrate(pd.DataFrame(z[:300], columns=NAMES), names[y[:300]], "temperature", outputs="logits")
    turned = pd.DataFrame(z[300:], columns=NAMES)[["owl", "cat", "dog"]]
    with pytest.raises(InputError, match="another order"):
        decide(fitted, turned, names[y[300:]], coverage=0.9)
    meant = decide(fitted, turned, names[y[300:]], coverage=0.9, columns=NAMES)
    plain = decide(fitted, z[300:], y[300:], coverage=0.9)
    assert meant.sets is not None
    assert plain.sets is not None
    assert meant.sets.threshold == pytest.approx(plain.sets.threshold)


def test_what_was_calibrated_is_not_calibrated_again(tmp_path: Path) -> None:

    z, y = samples(400, 8)
    np.savez(tmp_path / "z.npz", logits=z, labels=y)
    fitted = calibrate(softmax(z), y, "temperature")
    fitted.save(tmp_path / "a")
    np.savez(tmp_path / "p.npz", probs=softmax(z), labels=y)
    files = [str(tmp_path / name) for name in ("a", "p.npz", "o.npz")]
    assert invoke(["export", "probabilities", *files[:2], "-o", files[2]]).exit_code == 0
    made = Scores.read(tmp_path / "o.npz")
    np.testing.assert_allclose(made.probs[:], fitted.probs(softmax(z)))
    with pytest.raises(InputError, match="twice"):
        fitted.probs(made)
    assert evaluate(made, replicates=0).n == 400


def test_pixels_are_samples_and_pictures_are_groups() -> None:
    rng = np.random.default_rng(9)
    z = rng.normal(size=(4, 3, 5, 6))
    y = rng.integers(0, 3, (4, 5, 6))
    first, last = Scores.of(z, y, outputs="logits"), Scores.of(np.moveaxis(z, 1, -1), y, outputs="logits")
    assert "the 30 places of each of 4 samples" in " ".join(first.remarks)
    np.testing.assert_array_equal(first.values, last.values)
    assert first.labels.tolist() == y.ravel().tolist()
    assert np.bincount(first.groups).tolist() == [30] * 4
    np.testing.assert_array_equal(first.values[7], z[0, :, 1, 1])
    void = Scores.of(z, np.where(y == 2, 255, y), ignore_label=255, outputs="logits")
    assert len(void) == int((y != 2).sum()) == len(void.groups)
    with pytest.raises(ShapeError, match="which axis"):
        Scores.of(rng.normal(size=(4, 3, 3, 3)), rng.integers(0, 3, (4, 3, 3)))


def test_the_largest_probabilities_alone_are_calibrated_as_ranks() -> None:
    rng = np.random.default_rng(10)
    z = 3 * rng.normal(size=(3000, 50))
    p = softmax(z)
    y = (softmax(z / 2).cumsum(axis=1) > rng.random((3000, 1))).argmax(axis=1)
    top = np.argsort(-p, axis=1)[:, :5]
    kept, found = np.take_along_axis(p, top, 1), top == y[:, None]
    ranks = np.where(found.any(axis=1), found.argmax(axis=1), 5)
    whole = np.column_stack([kept, 1 - kept.sum(axis=1)])
    given_top = Scores.of(whole, ranks, outputs="probabilities", class_names=[*"12345", "rest"])
    assert (given_top.labels == 0).mean() == (p.argmax(axis=1) == y).mean()
    fitted = calibrate(given_top, method="temperature", cross_validate=False)
    logs = np.log(given_top.values)

    def loss(t: float) -> float:
        return float(-np.log(softmax(logs / t)[np.arange(3000), given_top.labels]).mean())

    best = minimize_scalar(loss, bounds=(0.2, 9), method="bounded", options={"xatol": 1e-10})
    assert fitted.fit["temperature"] == pytest.approx(best.x, rel=1e-5)


@pytest.mark.parametrize("outputs", ["logits", "probabilities", "label_logits", "probability", "logit"])
def test_a_view_has_the_rows_and_columns_of_what_it_stands_for(outputs: Any) -> None:
    z, _ = samples(50, 12)
    values = {
        "logits": z, "label_logits": z, "probabilities": softmax(z), "logit": z[:, :1],
        "probability": softmax(z)[:, :1],
    }[outputs]  # fmt: skip
    truths = (z > 0).astype(int) if outputs == "label_logits" else None
    view = Scores.of(values, truths, outputs=outputs).probs
    p = np.asarray(view)
    one = p[:, 1:] if outputs == "probability" else None
    assert p.dtype == np.float64
    if outputs in ("logit", "label_logits"):
        np.testing.assert_allclose(p[:, -values.shape[1] :], 1 / (1 + np.exp(-values)))
    else:
        np.testing.assert_allclose(p if one is None else one, values if one is not None else softmax(z))
    if outputs != "label_logits":
        np.testing.assert_allclose(p.sum(axis=1), 1)
    np.testing.assert_array_equal(view[10:30, 1], p[10:30, 1])
    rows, columns = np.array([5, 3, 40]), np.array([0, 1, 1])
    np.testing.assert_array_equal(view[rows, columns], p[rows, columns])
    np.testing.assert_array_equal(view[rows, 1], p[rows, 1])
    np.testing.assert_array_equal(view.take(rows)[:], p[rows])


@pytest.mark.parametrize("outputs", ["logits", "log_probs", "probabilities"])
def test_what_is_described_of_rows_is_their_probabilities_losses_and_entropies(outputs: Any) -> None:
    z, y = samples(50, 13)
    values = {"logits": z, "log_probs": log_softmax(z), "probabilities": softmax(z)}[outputs]
    p = softmax(z)[10:30]
    found = Scores.of(values, outputs=outputs).probs.described(slice(10, 30), y[10:30])
    wanted = (p, -np.log(p[np.arange(20), y[10:30]]), -(p * np.log(p)).sum(axis=1))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-12)


def test_columns_stay_where_one_side_has_no_names_or_one_column() -> None:
    z, y = samples(40, 14)
    named = Scores.of(pd.DataFrame(z, columns=NAMES), np.array(NAMES)[y], outputs="logits")
    assert named.in_order(()) is named
    assert named.in_order(NAMES) is named
    bare = Scores.of(z, y, outputs="logits")
    assert bare.in_order(NAMES) is bare
    one = Scores.of(z[:, 0], y > 0, outputs="logit", class_names=["no", "yes"])
    assert one.in_order(["yes", "no"]) is one
    assert "the order of the other one" in named.in_order(NAMES[::-1], of="the other one").remarks[-1]


def test_scores_that_are_made_take_what_they_lack() -> None:
    z, y = samples(40, 15)
    bare = Scores.of(z[:, :1], outputs="logit")
    assert Scores.of(bare, outputs="logits") is bare, "of one column, that is what these are"
    with pytest.raises(InputError, match="are logit already"):
        Scores.of(bare, outputs="probability")
    whole = Scores.of(
        Scores.of(z, outputs="logits"), y, sample_weight=np.arange(40), groups=np.arange(40) // 4
    )
    assert whole.labels.tolist() == y.tolist()
    assert (whole.weights.sum(), whole.groups.max()) == (780, 9)
    with pytest.raises(InputError, match="all zero"):
        Scores.of(z, y, sample_weight=np.zeros(40), outputs="logits")


def test_what_belongs_to_a_sample_goes_with_it() -> None:
    z, y = samples(40, 16)
    beside = {"sample_weight": 1.0 + np.arange(40), "groups": np.arange(40) % 7, "ids": np.arange(40) + 100}
    found = Scores.of(z, np.where(y == 1, 255, y), ignore_label=255, outputs="logits", **beside)
    kept = np.flatnonzero(y != 1)
    for got, of in (
        (found.ids, beside["ids"]),
        (found.weights, beside["sample_weight"]),
        (found.groups, beside["groups"]),
        (found.values, z),
        (found.take(slice(2, 5)).ids, beside["ids"][kept][2:5]),
    ):
        np.testing.assert_array_equal(got, of[kept] if len(of) == 40 else of)


def test_rows_that_sum_to_one_are_shares_of_classes_and_others_are_truths() -> None:
    z, y = samples(40, 21)
    shares = softmax(z[::-1])
    soft = Scores.of(z, shares, outputs="logits")
    np.testing.assert_array_equal(soft.labels, shares)
    np.testing.assert_array_equal(Scores.of(z, shares, outputs="logits").labels, shares)
    assert Scores.of(z, np.eye(3)[y], outputs="logits").labels.tolist() == y.tolist()
    truths = (z > 0).astype(int)
    found = Scores.of(z, truths, outputs="label_logits")
    assert found.labels.tolist() == truths.tolist()
    assert found.is_multilabel
    for wrong in (truths, shares * 2, np.where(np.arange(3) == 0, -shares, shares + 2 * shares[:, :1] / 2)):
        with pytest.raises(InputError, match="any number of which may be true"):
            Scores.of(z, wrong, outputs="logits")
    with pytest.raises(ShapeError, match="soft labels are"):
        Scores.of(z, shares[:, :2] / shares[:, :2].sum(axis=1, keepdims=True), outputs="logits")


def test_pictures_take_a_weight_and_a_group_for_each_or_for_each_place() -> None:
    rng = np.random.default_rng(17)
    z, y, weights = rng.normal(size=(4, 3, 5, 6)), rng.integers(0, 3, (4, 5, 6)), 1.0 + np.arange(4)
    found = Scores.of(z, y, sample_weight=weights, groups=np.array([7, 7, 8, 9]), outputs="logits")
    assert found.weights.tolist() == np.repeat(weights, 30).tolist()
    assert found.groups.tolist() == np.repeat([7, 7, 8, 9], 30).tolist()
    each = rng.random((4, 5, 6))
    found = Scores.of(z, y, sample_weight=each, outputs="logits")
    np.testing.assert_array_equal(found.weights, each.ravel())


NAMED: list[tuple[list[Any], list[Any], Any]] = [
    # Names of columns, labels, and their ids; or words of the refusal.
    (["0", "2", "x"], [0, 2], "names of classes and ids of others"),
    (["0", "2", "x"], ["0", "2"], [0, 1]),
    (["0", "5", "x"], [0, 5], [0, 1]),
    (["a", "b", "c"], [True, False], "no class is called"),
    (["a", "b"], ["yes", "no"], [1, 0]),
    (["a", "b"], [-1, 1], [0, 1]),
    (["spam"], ["spam", "spam"], [1, 1]),
    (["spam"], ["ham", "spam"], [0, 1]),
    (["spam"], ["ham", "spam", "eggs"], "labels are"),
    (["spam"], ["no", "yes"], [0, 1]),
    (["spam"], [1.0, 0.0], [1, 0]),
    (["a", "b", "c"], [0.5, 1], "class ids or names, got 0.5"),
    (["a", "b", "c"], [1, 3], "these seem to begin at 1"),
    (["a", "b", "c"], [0, 255], "255 stands for none"),
    (["a", "b", "c"], ["a", " c", "b "], [0, 2, 1]),
    (["a", "b", "c"], ["2", " 1", "1.0"], [2, 1, 1]),
    (["a", "b", "c"], ["a", "2"], "no class is called '2'"),
    (["2", "0", "1"], ["0", "2", "1"], [1, 0, 2]),
    (["1", "2", "3"], ["1", "2", "1"], [0, 1, 0]),
    (["1", "2", "3"], ["0", "2", "1"], "'0' is none of the classes"),
]


@pytest.mark.parametrize(("names", "labels", "ids"), NAMED)
def test_labels_are_names_or_ids_and_never_a_guess_between_the_two(
    names: list[str], labels: list[Any], ids: Any
) -> None:
    rng = np.random.default_rng(18)
    frame = pd.DataFrame({name: rng.normal(size=len(labels)) for name in names})
    kinds = [labels] if any(isinstance(one, float) for one in labels) else [labels, np.array(labels, object)]
    for given_labels in kinds:
        if isinstance(ids, str):
            with pytest.raises(InputError, match=ids):
                Scores.of(frame, given_labels, outputs="logits", columns=names)
        else:
            found = Scores.of(frame, given_labels, outputs="logits", columns=names)
            assert found.labels.tolist() == ids


@pytest.mark.parametrize("mark", ["_", ".", "-", " ", ":"])
def test_what_all_columns_begin_with_is_no_part_of_a_name_if_labels_lack_it(mark: str) -> None:
    z, y = samples(60, 19)
    frame = pd.DataFrame(z, columns=[f"clf{mark}{name}" for name in NAMES])
    found = Scores.of(frame, np.array(NAMES)[y], outputs="logits")
    assert found.class_names == tuple(NAMES)
    assert any(f"'clf{mark}'" in said for said in found.remarks)
    whole = np.array(frame.columns)[y]
    assert Scores.of(frame, whole, outputs="logits").class_names == tuple(frame.columns)
    other = frame.rename(columns={frame.columns[0]: f"q{mark}cat"})
    with pytest.raises(InputError, match=f"no label is called 'q{mark}cat'"):
        Scores.of(other, np.array(NAMES)[y], outputs="logits")


def test_columns_beside_those_of_labels_are_no_classes() -> None:
    z, y = samples(30, 20)
    beside = {"age": 20 + np.arange(30), "sure": softmax(z).max(axis=1), "again": z.max(axis=1)}
    for name, column in beside.items():
        frame = pd.DataFrame({**dict(zip(NAMES, z.T, strict=True)), name: column})
        with pytest.raises(InputError, match=rf"no label is called '{name}'.*\(--columns"):
            Scores.of(frame, np.array(NAMES)[y], outputs="logits")
        with pytest.raises(InputError, match="nothing says that the columns"):
            Scores.of(frame, y, outputs="logits")
        said = Scores.of(frame, y, outputs="logits", class_names=NAMES)
        assert (said.class_names, said.values.shape) == (tuple(NAMES), (30, 3))


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (np.full((30, 3), 0.2), {}, "they may be probabilities of labels"),
    (np.linspace(0, 90, 40), {}, "percent"),
    (np.full((30, 2), 0.5), {"outputs": "log_odds"}, "must be one of"),
    (np.full((30, 2), 0.7), {"outputs": "probabilities"}, "sum to 1"),
    (np.full((30, 2), -3.0), {"outputs": "probabilities"}, "lie in"),
    (np.zeros((30, 2)), {"columns": ["a"]}, "frames"),
    (np.zeros((0, 2)), {}, "no sample"),
    (np.zeros((30, 2)), {"outputs": "logits", "sample_weight": -np.ones(30)}, "not negative"),
    (np.zeros((30, 2)), {"outputs": "logits", "sample_weight": np.ones(3)}, "must be"),
    (np.zeros((30, 2)), {"outputs": "logits", "groups": np.ones(3)}, "groups must be"),
    (np.zeros((30, 2)), {"outputs": "logits", "class_names": ["a", "b", "c"]}, "class names"),
    (np.zeros((30, 2)), {"groups": "patient"}, "name a column"),
    (np.zeros((30, 2)), {}, r"the 2 columns hold numbers from 0 to 0.*--outputs"),
    (np.linspace(-3, 3, 40), {}, r"the only column holds .*--outputs logit"),
    (np.linspace(0, 1, 40), {}, r"the only column holds .*--outputs probability"),
    (np.array([[0.2, 0.8]]), {}, "their rows sum to 1, as so few"),
]


@pytest.mark.parametrize(("scores", "how", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_what_cannot_be_or_may_be_two_things_is_refused(scores: Any, how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Scores.of(scores, np.arange(len(scores)) % 2, **how)


def test_an_artifact_without_a_kind_takes_logits() -> None:
    made = Artifact((), method="none", classes=2)
    assert made.probs([[0.0, 1.0]]).tolist() == softmax([[0.0, 1.0]]).tolist()


RNG = np.random.default_rng(0)
ONE = 4 * RNG.standard_normal(300)
LABELS = (RNG.random(300) < 1 / (1 + np.exp(-ONE / 2))).astype(int)
TWO = np.stack([np.zeros_like(ONE), ONE], axis=1)


def test_what_is_wrong_is_said_with_the_file_and_the_split(tmp_path: Path) -> None:
    path = tmp_path / "z.npz"
    np.savez(path, cal_logits=TWO, logits=TWO, test_logits=TWO, test_labels=LABELS + 1)
    with pytest.raises(InputError, match="have no labels"):
        Scores.read(path, split="cal").labelled()
    with pytest.raises(InputError, match=r"z\.npz: labels must lie in \[0, 2\), got 1 to 2"):
        Scores.read(path, split="test")
    np.savez(path, logits=TWO, labels=LABELS + 0.5)
    with pytest.raises(InputError, match="must be class ids or names"):
        Scores.read(path)


def test_a_parquet_of_scores_that_is_a_bomb_or_names_a_column_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "z.parquet"
    pq.write_table(pa.table({"a": pa.repeat(0.5, 10**7), "label": pa.repeat(1, 10**7)}), path)
    with pytest.raises(InputError, match="as a bomb does"):
        Scores.read(path)
    pq.write_table(pa.Table.from_arrays([pa.array([0.5])] * 3, ["a", "b", "a"]), path)
    with pytest.raises(InputError, match="names a column twice: a"):
        Scores.read(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("3", "row 2 is '3'; a row is an object"),
        ('"cat"', "row 2 is 'cat'; a row is an object"),
        ("null", "row 2 is 'None'; a row is an object"),
        ('{"p_a": 0.5,', "row 2 is no JSON"),
        ('{"p_a": 0.5, "p_a": 0.7, "p_b": 0.5, "label": "a"}', "row 2 is no JSON: it names a column twice"),
        ('{"p_a": 0.5, "label": "a"}', "row 2 lacks p_b"),
        ('{"p_a": "high", "p_b": 0.5, "label": "a"}', "'p_a', row 2 holds 'high', which is no score"),
    ],
)
def test_a_line_that_is_no_row_is_refused_by_its_number(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "z.jsonl"
    path.write_text('{"p_a": 0.25, "p_b": 0.75, "label": "b"}\n\n' + line)
    with pytest.raises(InputError, match=said):
        Scores.read(path)
