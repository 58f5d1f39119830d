"""The displays hold the numbers that they draw, and follow scikit-learn's convention."""

from __future__ import annotations

from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")

import matplotlib.pyplot as plt
from sklearn.calibration import calibration_curve
from sklearn.datasets import load_wine
from sklearn.naive_bayes import GaussianNB

from calib_serve.core.errors import CalibServeError
from calib_serve.report import draw_curves, reliability
from calib_serve.report.displays import ReliabilityDisplay
from calib_serve.scores import softmax

RNG = np.random.default_rng(7)
LOGITS = 2 * RNG.standard_normal((2000, 5))
PROBS = softmax(LOGITS)
LABELS = np.array([RNG.choice(5, p=p) for p in softmax(LOGITS / 1.5)])


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def legend(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_a_reliability_line_goes_through_the_bins() -> None:
    display = ReliabilityDisplay.from_predictions(LABELS, PROBS, bins=10, name="net")
    data = reliability(PROBS, LABELS, bins=10)
    full = data.count > 0
    x, y = display.line_.get_data()
    np.testing.assert_array_equal(x, data.confidence[full])
    np.testing.assert_array_equal(y, data.accuracy[full])
    bands = [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in display.ax_.patches]
    np.testing.assert_allclose(bands, np.stack([data.expected_low, data.expected_high], axis=1)[full])
    assert legend(display.ax_) == [f"net (ECE {data.ece:.1%})"]
    assert display.figure_ is display.ax_.figure


def test_an_estimator_gives_what_its_predictions_give() -> None:
    x, y = load_wine(return_X_y=True)
    names = np.array(["red", "blue", "green"])[y]
    model = GaussianNB().fit(x, names)
    given = ReliabilityDisplay.from_estimator(model, x, names)
    ids = np.searchsorted(model.classes_, names)
    by_ids = ReliabilityDisplay.from_predictions(ids, model.predict_proba(x))
    np.testing.assert_equal(vars(given.data), vars(by_ids.data))
    assert given.name == "GaussianNB"
    assert any("GaussianNB" in text for text in legend(given.ax_))


def test_one_column_is_the_second_class_and_labels_have_names() -> None:
    p = PROBS[:, 0] / PROBS[:, :2].sum(axis=1)
    y = np.where(LABELS == 0, "yes", "no")
    display = ReliabilityDisplay.from_predictions(y, p, of="top")
    expected = reliability(np.stack([1 - p, p], axis=1), (LABELS == 0).astype(int))
    np.testing.assert_equal(vars(display.data), vars(expected))
    turned = ReliabilityDisplay.from_predictions(y, 1 - p, labels=["yes", "no"], of="top")
    assert turned.data.ece == pytest.approx(expected.ece)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_an_event_has_the_points_of_scikit_learns_calibration_curve(strategy: str) -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(2, 5, 900)
    y = (rng.random(900) < 0.8 * p).astype(int)
    display = ReliabilityDisplay.from_predictions(y, p, strategy=strategy, bins=10)
    came, said = calibration_curve(y, p, strategy=strategy, n_bins=10)
    np.testing.assert_allclose(display.line_.get_xydata(), np.stack([said, came], axis=1))
    turned = ReliabilityDisplay.from_predictions(
        np.where(y, "ill", "well"), np.stack([p, 1 - p], axis=1), labels=["ill", "well"], pos_label="ill",
        strategy=strategy, bins=10,
    )  # fmt: skip
    np.testing.assert_allclose(turned.line_.get_xydata(), display.line_.get_xydata())
    assert turned.ax_.get_xlabel() == "P(y = ill)"


def test_weights_of_an_event_are_as_many_rows() -> None:
    rng = np.random.default_rng(0)
    p, y, counts = rng.random(300), rng.integers(0, 2, 300), rng.integers(0, 4, 300)
    again = np.repeat(np.arange(300), counts)
    weighted = ReliabilityDisplay.from_predictions(y, p, sample_weight=counts)
    rows = ReliabilityDisplay.from_predictions(y[again], p[again])
    np.testing.assert_allclose(weighted.line_.get_xydata(), rows.line_.get_xydata())


@pytest.mark.parametrize(
    ("y", "p", "more"),
    [
        ([0, 1, 2], np.full((3, 3), 1 / 3), {"of": "event"}),
        ([0, 1], [0.2, 0.8], {"pos_label": "ill"}),
        ([0, 1], [0.2, 0.8], {"strategy": "equal"}),
        ([0, 1], [20.0, 80.5], {}),
        ([0, 1, 2], np.full((3, 3), 1 / 3), {"strategy": "quantile"}),
        ([0, 1], [0.2, 0.8], {"sample_weight": [1.0]}),
    ],
    ids=[
        "which of three",
        "no such class",
        "no such bins",
        "odd numbers",
        "quantiles of the top",
        "a weight",
    ],
)
def test_what_cannot_be_drawn_is_refused(y, p, more) -> None:
    with pytest.raises(CalibServeError):
        ReliabilityDisplay.from_predictions(y, p, **more)


def test_each_curve_has_its_own_look_and_its_spread() -> None:
    x, y, spread = [1, 10, 100], [0.1, 0.2, 0.3], {"low": [0.0, 0.1, 0.2], "high": [0.2, 0.3, 0.4]}
    bare = SimpleNamespace(label="bare", x=x, y=y, low=[], high=[])
    lines = [bare, *(SimpleNamespace(label=str(i), x=x, y=y, **spread) for i in range(6))]
    (axes,) = draw_curves(lines, title="t", x_label="samples", y_label="ECE", log_x=True).axes
    assert [line.get_label() for line in axes.lines] == [line.label for line in lines]
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == len(lines)
    assert len(axes.collections) == 6
    assert (axes.get_xscale(), axes.get_xlabel(), axes.get_ylabel()) == ("log", "samples", "ECE")
