"""The reliability diagram in scikit-learn's display convention.

    display = ReliabilityDisplay.from_estimator(model, X_test, y_test)
    ReliabilityDisplay.from_estimator(other, X_test, y_test, ax=display.ax_)

``data`` holds the figure's numbers, ``name`` its entry in the legend, ``ax_`` and ``figure_`` where it was
drawn last. Several displays on one axes get different colours.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from calib_serve.core.bins import Edges
from calib_serve.core.errors import InputError
from calib_serve.core.options.evaluate import Binned
from calib_serve.metrics import (
    SmoothReliability,
    event_bins,
    smooth_curve,
    smooth_reliability,
)
from calib_serve.report.plot import (
    LINES,
    PALETTE,
    drawing,
    legend_beside,
    plot_reliability,
    plot_smooth_reliability,
)
from calib_serve.report.prepare import (
    Reliability,
    reliability,
    reliability_of,
)
from calib_serve.scores import Scores

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class DisplayKeywords(TypedDict, total=False):
    """Keywords of ``from_predictions`` but ``labels`` and ``name``."""

    of: Literal["event", "top"] | None
    kind: Literal["bins", "smooth"]
    strategy: Literal["uniform", "quantile"]
    bins: int
    edges: Edges
    level: float
    pos_label: Any
    sample_weight: ArrayLike | None
    ax: Axes | None
    color: str | None


class ReliabilityDisplay:
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

    ax_: Axes
    figure_: Figure
    line_: Line2D

    def __init__(
        self, data: Reliability | SmoothReliability, *, name: str = "classifier", event: str = ""
    ) -> None:
        self.data, self.name, self.event = data, name, event

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
            **options: Keywords of ``from_predictions``: ``of``, ``kind``, ``strategy``, ``bins``, ``edges``,
                ``level``, ``pos_label``, ``sample_weight``, ``ax``, ``color``.
        """
        name = type(estimator).__name__ if name is None else name
        p = estimator.predict_proba(X)
        return cls.from_predictions(y, p, labels=estimator.classes_, name=name, **options)

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        p: ArrayLike,
        *,
        of: Literal["event", "top"] | None = None,
        kind: Literal["bins", "smooth"] = "bins",
        strategy: Literal["uniform", "quantile"] = "uniform",
        bins: int = Binned.bins,
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
            "bins": bins != Binned.bins,
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
