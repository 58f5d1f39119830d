"""Studies: their samples, and their results as a table, curves and sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from numpy.typing import NDArray

from calib_serve.core.arrays import finite, repeated
from calib_serve.core.errors import InputError
from calib_serve.scores import Scores

Samples = Union[Scores, tuple[Any, Any]]
"""A model's scores and labels, logits, or ``Scores``."""

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""
Cell = str | int | float | None


def in_logits(samples: Samples) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scores and labels as logits (n, K) and class ids (n,); weighted rows are repeated."""
    given = samples if isinstance(samples, Scores) else Scores.of(*samples, expected="logits")
    given = given if given.weights is None else given.take(repeated(given.weights))
    return given.logits, given.labelled()


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

    def save(self, folder: str | Path) -> list[Path]:
        """Write study.json and, where there are curves, study.svg; their paths."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            written = [folder / "study.json"]
            written[0].write_text(json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n")
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
