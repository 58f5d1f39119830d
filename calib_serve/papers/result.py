"""Studies: methods fitted on logits or on a model's inputs, and the results."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import as_array, finite, repeated
from calib_serve.core.errors import InputError
from calib_serve.fit import CANDIDATES, TWO_CLASSES, fit_by_name
from calib_serve.scores import Scores, two_columns

Samples = Union[Scores, tuple[Any, Any]]
"""A model's scores and labels, logits, or ``Scores``; or a model's inputs and labels."""

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""
Cell = str | int | float | None


def in_logits(samples: Samples) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scores and labels as logits (n, K) and class ids (n,); weighted rows are repeated."""
    given = samples if isinstance(samples, Scores) else Scores.of(*samples, expected="logits")
    given = given if given.weights is None else given.take(repeated(given.weights))
    return given.logits, given.labelled()


def arrays(samples: Samples, fit: object) -> tuple[NDArray[Any], NDArray[Any]]:
    """Samples in a study's form: scores as logits.

    Under the ``fit`` of a model inputs as they are.
    """
    if fit is None or isinstance(samples, Scores):
        return in_logits(samples)
    return as_array(samples[0]), as_array(samples[1])


@dataclass(frozen=True)
class Curve:
    """One line of a plot.

    Args:
        label: Entry in the legend.
        x: Where it is known.
        y: At each x; NaN where unknown.
        low: Lower end of its spread at each x.
        high: Upper end of its spread at each x.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Study:
    """A study's table, curves and conclusions.

    Args:
        title: Heading.
        header: Names of the columns.
        rows: Of the table; errors are fractions.
        says: Conclusions, a sentence each.
        curves: Lines of its plot.
        x_label: Label of the plot's x axis.
        y_label: Label of the plot's y axis.
        log_x: Whether the x axis is logarithmic.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    says: tuple[str, ...]
    curves: tuple[Curve, ...] = ()
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON: None stands for unknown values."""
        return {
            "title": self.title,
            "rows": [dict(zip(self.header, map(finite, row), strict=True)) for row in self.rows],
            "says": list(self.says),
            "curves": [
                {
                    "label": c.label,
                    **{name: [finite(v) for v in getattr(c, name)] for name in ("x", "y", "low", "high")},
                }
                for c in self.curves
            ],
        }

    def as_csv(self) -> str:
        """Return the table, one row per line."""
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([self.header, *self.rows])
        return file.getvalue()

    def save(self, folder: str | Path) -> list[Path]:
        """Write study.json, study.csv and, where there are curves, study.svg; their paths."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            written = [folder / "study.json", folder / "study.csv"]
            written[0].write_text(json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n")
            written[1].write_text(self.as_csv())
            if self.curves:
                written.append(folder / "study.svg")
                self._figure().savefig(written[-1], metadata={"Date": None})
        except OSError as error:
            raise InputError(f"cannot write the study to {folder}: {error}; choose another folder") from error
        return written

    def _figure(self) -> Any:
        from calib_serve.report import draw_curves  # noqa: PLC0415 - matplotlib is another extra

        axes = {"x_label": self.x_label, "y_label": self.y_label}
        return draw_curves(self.curves, title=self.title, log_x=self.log_x, **axes)


def in_a_sentence(names: Sequence[str]) -> str:
    """A list of names in a sentence.

    >>> in_a_sentence(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


class Fit(Protocol):
    """Methods by name, on one kind of inputs: ``calib_serve.fit.on_model.FitOnModel`` is one, too."""

    def fit(self, method: str, inputs: NDArray[Any], labels: ArrayLike) -> Artifact:
        """Fit a method; FitError where it has no optimum.

        Args:
            method: Its name.
            inputs: (n, ...).
            labels: Class ids (n,).
        """
        ...

    def probs(self, artifact: Artifact, inputs: NDArray[Any]) -> NDArray[np.float64]:
        """Return calibrated probabilities (n, K).

        Args:
            artifact: Result of ``fit``.
            inputs: (n, ...).
        """
        ...


@dataclass(frozen=True)
class OutputFit:
    """The output methods, on logits, or on inputs of which a function makes logits.

    Args:
        logits_of: Function from inputs to logits (n, K) or (n,).
        seed: Seed of methods that draw.

    >>> found = OutputFit()
    >>> found.probs(found.fit("none", np.zeros((2, 2)), [0, 1]), np.array([[0.0, 0.0]])).tolist()
    [[0.5, 0.5]]
    """

    logits_of: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    seed: int = 0

    def fit(self, method: str, inputs: NDArray[Any], labels: ArrayLike) -> Artifact:
        """Fit a method, as ``Fit`` says.

        Args:
            method: Its name.
            inputs: (n, ...).
            labels: Class ids (n,).

        Raises:
            InputError: For a method that needs the model.
        """
        if method not in (*CANDIDATES, *TWO_CLASSES):
            raise InputError(
                f"{method} is none of the output methods, {', '.join((*CANDIDATES, *TWO_CLASSES))}; a method "
                "inside the model needs the model itself: give --model and its inputs, or fit=FitOnModel(...)"
            )
        return fit_by_name(method, self._logits(inputs), labels, seed=self.seed)

    def probs(self, artifact: Artifact, inputs: NDArray[Any]) -> NDArray[np.float64]:
        """Calibrated probabilities (n, K), as ``Fit`` says.

        Args:
            artifact: Result of ``fit``.
            inputs: (n, ...).
        """
        return artifact.of_logits(self._logits(inputs))

    def _logits(self, inputs: NDArray[Any]) -> NDArray[Any]:
        return two_columns(inputs if self.logits_of is None else self.logits_of(inputs))
