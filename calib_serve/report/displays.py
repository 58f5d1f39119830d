"""The figures in scikit-learn's display convention: ``from_predictions``, ``from_estimator``, ``plot``.

    display = ReliabilityDisplay.from_estimator(model, X_test, y_test)
    ReliabilityDisplay.from_estimator(other, X_test, y_test, ax=display.ax_)

``data`` holds the figure's numbers, ``name`` its entry in the legend, ``ax_`` and ``figure_`` where it was
drawn last. Several displays on one axes get different colours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.bins import Edges
from calib_serve.core.errors import InputError
from calib_serve.metrics import (
    DecisionCurve,
    SmoothReliability,
    decision_curve,
    event_bins,
    smooth_curve,
    smooth_reliability,
)
from calib_serve.report.plot import (
    LINES,
    PALETTE,
    drawing,
    legend_beside,
    plot_decision_curve,
    plot_histogram,
    plot_reliability,
    plot_risk_coverage,
    plot_smooth_reliability,
)
from calib_serve.report.prepare import (
    Histogram,
    Reliability,
    RiskCoverage,
    confidence_histogram,
    reliability,
    reliability_of,
    risk_coverage,
)
from calib_serve.scores import Scores

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

Data = TypeVar("Data")

_BINS = 15


class DisplayKeywords(TypedDict, total=False):
    """Keywords of every display's ``from_predictions`` but ``labels`` and ``name``; each takes its own."""

    of: Literal["event", "top"] | None
    kind: Literal["bins", "smooth"]
    strategy: Literal["uniform", "quantile"]
    bins: int
    edges: Edges
    level: float
    target: float | None
    pos_label: Any
    sample_weight: ArrayLike | None
    ax: Axes | None
    color: str | None


class _Display(ABC, Generic[Data]):
    """Prepared ``data`` under a ``name``, to be drawn into any axes."""

    ax_: Axes
    figure_: Figure

    def __init__(self, data: Data, *, name: str = "classifier") -> None:
        self.data = data
        self.name = name

    def plot(self, ax: Axes | None = None, *, name: str | None = None, color: str | None = None) -> Self:
        """Draw into axes, and return the display.

        Args:
            ax: Where to draw; by default a new figure in the report's style.
            name: Entry in the legend; that of the display by default.
            color: By default the first that no line there has.
        """
        with drawing() if ax is None else nullcontext():
            if ax is None:
                # pyplot, as notebooks show its figures automatically.
                import matplotlib.pyplot as plt  # noqa: PLC0415

                ax = plt.subplots(figsize=(5.6, 5.0), layout="constrained")[1]
            self._draw(ax, self.name if name is None else name, color or _next_color(ax))
        figure = ax.get_figure(root=True)
        assert figure is not None, "axes that were drawn into belong to a figure"
        self.ax_, self.figure_ = ax, figure
        return self

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        name: str | None = None,
        **options: Unpack[DisplayKeywords],
    ) -> Self:
        """Draw the predictions of a fitted classifier.

        Args:
            estimator: Fitted classifier with ``predict_proba`` and ``classes_``.
            X: Samples (n, d).
            y: True labels (n,).
            name: Entry in the legend; the estimator's class by default.
            **options: Keywords of this display's ``from_predictions``, of these: ``of``, ``kind``,
                ``strategy``, ``bins``, ``edges``, ``level``, ``target``, ``pos_label``, ``sample_weight``,
                ``ax``, ``color``.
        """
        name = type(estimator).__name__ if name is None else name
        p = estimator.predict_proba(X)
        return cls.from_predictions(y, p, labels=estimator.classes_, name=name, **options)

    @classmethod
    @abstractmethod
    def from_predictions(cls, *args: Any, **options: Any) -> Self:
        """Draw true labels and probabilities."""

    @abstractmethod
    def _draw(self, ax: Axes, name: str, color: str) -> None: ...


class ReliabilityDisplay(_Display["Reliability | SmoothReliability"]):
    """A reliability diagram; ``line_`` holds the bins' points, or is the smooth curve.

    Args:
        data: Numbers of the figure, as ``calib_serve.report.reliability`` or
            ``calib_serve.metrics.smooth_reliability`` prepare them.
        name: Entry in the legend.
        event: Label of the x axis where it is of an event.

    >>> display = ReliabilityDisplay.from_predictions([0, 1], [0.3, 0.4], bins=10)
    >>> display.line_.get_xydata().round(3).tolist()
    [[0.3, 0.0], [0.4, 1.0]]
    """

    line_: Line2D

    def __init__(self, data: Any, *, name: str = "classifier", event: str = "") -> None:
        super().__init__(data, name=name)
        self.event = event

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        p: ArrayLike,
        *,
        of: Literal["event", "top"] | None = None,
        kind: Literal["bins", "smooth"] = "bins",
        strategy: Literal["uniform", "quantile"] = "uniform",
        bins: int = _BINS,
        edges: Edges = "right",
        level: float = 0.95,
        labels: ArrayLike | None = None,
        pos_label: Any = None,
        sample_weight: ArrayLike | None = None,
        name: str = "classifier",
        ax: Axes | None = None,
        color: str | None = None,
    ) -> Self:
        """Draw true labels and probabilities.

        Args:
            y: True labels (n,): class ids, names of ``labels``, or K labels in sorted order.
            p: Probabilities (n, K), or (n,) of the second of two classes.
            of: "event", P(y = 1) over [0, 1] against the share of class 1, or "top", the confidence of the
                predicted class against its accuracy; by default "event" of two classes, else "top".
            kind: "bins", with their intervals and what a calibrated model shows, or "smooth", a kernel
                regression with its band (``calib_serve.metrics.smooth_reliability``).
            strategy: Bins of equal width, or of equal counts ("quantile", of events).
            bins: Number of bins.
            edges: Whether a bin holds its upper end, "right", or its lower one, "left".
            level: Coverage of the intervals or the band, a fraction.
            labels: Names of the columns of p (K,).
            pos_label: Class of the event; the second by default.
            sample_weight: (n,), of binned diagrams of events.
            name: Entry in the legend.
            ax: Where to draw; a new figure by default.
            color: By default the first that no line there has.
        """
        if kind not in ("bins", "smooth"):
            raise InputError(f"kind must be 'bins' or 'smooth', got {kind!r}")
        of_bins = {
            "bins": bins != _BINS,
            "edges": edges != "right",
            "strategy": strategy != "uniform",
            "sample_weight": sample_weight is not None,
        }
        if kind == "smooth" and (given_too := [name for name, is_given in of_bins.items() if is_given]):
            raise InputError(f"{given_too[0]} is for kind='bins'")
        given = _scores(y, p, labels)
        probs, ids = pair = given.probs[:], given.labelled()
        of = of or ("event" if given.classes == 2 else "top")
        if of == "event":
            k = _event_class(given, pos_label)
            event, came = probs[:, k], ids == k
            shown: Reliability | SmoothReliability
            if kind == "smooth":
                shown = smooth_curve(np.clip(event, 0, 1), came, level=level, replicates=200, seed=0)
            else:
                sums, ends = event_bins(
                    event, came, bins=bins, strategy=strategy, edges=edges, sample_weight=sample_weight
                )
                shown = reliability_of(sums, level=level, edges=ends)
            what = "P(y = 1)" if pos_label is None else f"P(y = {pos_label})"
            return cls(shown, name=name, event=what).plot(ax, color=color)
        if strategy != "uniform" or sample_weight is not None or pos_label is not None:
            raise InputError("strategy, sample_weight and pos_label are for of='event'")
        data: Reliability | SmoothReliability = (
            reliability(*pair, bins=bins, edges=edges, level=level)
            if kind == "bins"
            else smooth_reliability(*pair, level=level)
        )
        return cls(data, name=name).plot(ax, color=color)

    def _draw(self, ax: Axes, name: str, color: str) -> None:
        if isinstance(self.data, SmoothReliability):
            plot_smooth_reliability(
                ax, self.data, color=color, label=f"{name} (smooth ECE {self.data.ece:.1%})"
            )
        else:
            self._draw_bins(ax, self.data, name, color)
        if self.event:
            ax.set(xlabel=self.event, ylabel="share that came true")
        self.line_ = ax.lines[-1]
        legend_beside(ax)

    @staticmethod
    def _draw_bins(ax: Axes, data: Reliability, name: str, color: str) -> None:
        before = len(ax.containers)
        plot_reliability(ax, data, color=color)
        for drawn in ax.containers[before:]:
            drawn.set_label("_")
        ax.collections[-1].set_label(f"{name} (ECE {data.ece:.1%})")


class ConfidenceHistogramDisplay(_Display[Histogram]):
    """A histogram of confidences, with their mean and the accuracy; ``bars_`` are the bins.

    Args:
        data: Numbers of the figure, as ``calib_serve.report.confidence_histogram`` prepares them.
        name: Entry in the legend.

    >>> display = ConfidenceHistogramDisplay.from_predictions([0, 1], [[0.7, 0.3], [0.6, 0.4]], bins=2)
    >>> [float(bar.get_height()) for bar in display.bars_]
    [0.0, 1.0]
    """

    bars_: tuple[Any, ...]

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        p: ArrayLike,
        *,
        bins: int = 20,
        edges: Edges = "right",
        labels: ArrayLike | None = None,
        name: str = "classifier",
        ax: Axes | None = None,
        color: str | None = None,
    ) -> Self:
        """Draw true labels and probabilities.

        Args:
            y: True labels (n,): class ids, names of ``labels``, or K labels in sorted order.
            p: Probabilities (n, K), or (n,) of the second of two classes.
            bins: Number of bins.
            edges: Whether a bin holds its upper end, "right", or its lower one, "left".
            labels: Names of the columns of p (K,).
            name: Entry in the legend.
            ax: Where to draw; a new figure by default.
            color: By default the first that no line there has.
        """
        data = confidence_histogram(*_pair(y, p, labels), bins=bins, edges=edges)
        return cls(data, name=name).plot(ax, color=color)

    def _draw(self, ax: Axes, name: str, color: str) -> None:
        bars, highest = len(ax.patches), ax.get_ylim()[1] if ax.patches else 0.0
        plot_histogram(ax, self.data, color=color)
        self.bars_ = tuple(ax.patches[bars:])
        for bar in self.bars_:
            bar.set_alpha(0.4)
        for line, what in zip(ax.lines[-2:], ("mean confidence", "accuracy"), strict=True):
            value = np.asarray(line.get_xdata())[0]
            line.set(color=color, label=f"{name}: {what} {value:.1%}")
        ax.set_ylim(0, max(highest, min(1.25 * max(bar.get_height() for bar in self.bars_), 1.02)))
        legend_beside(ax)


class RiskCoverageDisplay(_Display[RiskCoverage]):
    """The share of wrong answers by the share that is answered, the most confident first; ``line_`` is it.

    Args:
        data: Numbers of the figure, as ``calib_serve.report.risk_coverage`` prepares them.
        name: Entry in the legend.
        marked: Whether to mark the target.

    >>> display = RiskCoverageDisplay.from_predictions([0, 0, 1], [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> display.line_.get_ydata().round(2).tolist()
    [0.0, 0.0, 0.33]
    """

    line_: Line2D

    def __init__(self, data: RiskCoverage, *, name: str = "classifier", marked: bool = False) -> None:
        super().__init__(data, name=name)
        self.marked = marked

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        p: ArrayLike,
        *,
        target: float | None = None,
        level: float = 0.95,
        labels: ArrayLike | None = None,
        name: str = "classifier",
        ax: Axes | None = None,
        color: str | None = None,
    ) -> Self:
        """Draw true labels and probabilities.

        Args:
            y: True labels (n,): class ids, names of ``labels``, or K labels in sorted order.
            p: Probabilities (n, K), or (n,) of the second of two classes.
            target: Risk, 0 to 1, whose coverage is marked; None: none.
            level: Coverage of the intervals, a fraction.
            labels: Names of the columns of p (K,).
            name: Entry in the legend.
            ax: Where to draw; a new figure by default.
            color: By default the first that no line there has.
        """
        data = risk_coverage(*_pair(y, p, labels), target=target, level=level)
        return cls(data, name=name, marked=target is not None).plot(ax, color=color)

    def _draw(self, ax: Axes, name: str, color: str) -> None:
        first, highest = len(ax.lines), ax.get_ylim()[1] if ax.lines else 0.0
        plot_risk_coverage(ax, self.data, color=color, label=name, marked=self.marked)
        self.line_ = ax.lines[first]
        ax.set_ylim(0, max(highest, ax.get_ylim()[1]))
        legend_beside(ax)


class DecisionCurveDisplay(_Display[DecisionCurve]):
    """Net benefits of deciding by P(y = 1), by threshold, with those of treating all and none.

    Args:
        data: Numbers of the figure, as ``calib_serve.metrics.decision_curve`` makes them.
        name: Entry in the legend.

    >>> display = DecisionCurveDisplay.from_predictions([0, 1], [0.3, 0.9])
    >>> float(display.data.model[9])  # from 0.5 on: one of two is treated, and rightly
    0.5
    """

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        p: ArrayLike,
        *,
        level: float = 0.95,
        labels: ArrayLike | None = None,
        pos_label: Any = None,
        sample_weight: ArrayLike | None = None,
        name: str = "classifier",
        ax: Axes | None = None,
        color: str | None = None,
    ) -> Self:
        """Draw true labels and probabilities.

        Args:
            y: True labels (n,): class ids, names of ``labels``, or K labels in sorted order.
            p: Probabilities (n, K), or (n,) of the second of two classes.
            level: Coverage of the intervals, each of its threshold alone, a fraction.
            labels: Names of the columns of p (K,).
            pos_label: Class of the event; the second of two by default.
            sample_weight: (n,).
            name: Entry in the legend.
            ax: Where to draw; a new figure by default.
            color: By default the first that no line there has.
        """
        given = _scores(y, p, labels)
        k = _event_class(given, pos_label)
        event, came = np.clip(given.probs[:][:, k], 0, 1), given.labelled() == k
        return cls(decision_curve(event, came, sample_weight=sample_weight, level=level), name=name).plot(
            ax, color=color
        )

    def _draw(self, ax: Axes, name: str, color: str) -> None:
        plot_decision_curve(ax, self.data, color=color, label=name)
        legend_beside(ax)


def _next_color(ax: Axes) -> str:
    """The first of our colours that no line of ``ax`` has yet.

    The diagonal and the target are grey.
    """
    used = [line.get_color() for line in ax.lines]
    free = [name for name in LINES if not any(same_color(PALETTE[name], one) for one in used)]
    return PALETTE[free[0] if free else LINES[0]]


def _scores(y: ArrayLike, p: ArrayLike, labels: ArrayLike | None) -> Scores:
    names = () if labels is None else np.asarray(labels).tolist()
    return Scores.of(p, y, class_names=names, expected="probabilities")


def _pair(y: ArrayLike, p: ArrayLike, labels: ArrayLike | None) -> tuple[NDArray[Any], NDArray[Any]]:
    given = _scores(y, p, labels)
    return given.probs[:], given.labelled()


def _event_class(given: Scores, pos_label: Any) -> int:
    """The column of the event: of ``pos_label``, else the second of two classes."""
    if pos_label is None:
        if given.classes != 2:
            raise InputError(f"of {given.classes} classes the event is not known: say which, pos_label=")
        return 1
    names = given.class_names or tuple(map(str, range(given.classes)))
    if str(pos_label) not in names:
        raise InputError(f"pos_label {pos_label!r} is none of the classes {list(names[:20])}")
    return names.index(str(pos_label))
