"""Parity: a fused model returns what the model calibrated in numpy does, as far as rounding allows.

ONNX graphs, torch modules and Triton repositories share this proof: each runs its model, and hands over the
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, InputShift, ProbTable
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.data_files import read_npz
from calib_serve.core.errors import FuseError, InputError
from calib_serve.fuse._decision_parity import check_decisions
from calib_serve.scores import ONE_COLUMN, Outputs, few, log_softmax

CLOSE = 1e-3
"""Largest difference of a probability that any proof allows: what a reader would call the same."""

ROUNDING = {"bfloat16": 5e-2, "float16": 1e-2, "float32": 1e-5, "float64": 1e-9}
"""Largest difference of a probability for logits of size 1, by their type; it grows with their size."""


@dataclass(frozen=True)
class Parity:
    """How far a fused model is from the calibration in numpy, in probabilities; ``FuseReport`` says of what.

    ``near_edge`` inputs are left out, where either bin of a table is right, and ``near_threshold`` decisions
    (a class in a set, an abstention, an act, an action), as rounding may turn them.
    """

    max_abs_diff: float
    tolerance: float
    samples: int
    near_edge: int
    near_threshold: int
    engine: str
    device: str

    def rows(self) -> list[tuple[str, str]]:
        """List headings, which may be empty, and texts, for display."""
        whole = (
            f"{self.max_abs_diff:.2g} at most on {self.samples} inputs, {self.tolerance:.2g} allowed "
            f"({self.engine}, {self.device})"
        )
        left = (
            (self.near_edge, "inputs near a table's edge left out"),
            (self.near_threshold, "decisions near their threshold left out"),
        )
        return [("parity", whole), *(("", f"{number} {what}") for number, what in left if number)]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Expected:
    """Calibrated ``probs`` (n, K) and ``logits`` (n, K) after the logit maps of ``artifact``, in numpy.

    ``scale`` is the size of the logits, but for masked ones; rounding may move them by ``rounding``. ``sure``
    (n,) is False where a probability lies so close to a table's edge that either bin is right.
    """

    artifact: Artifact
    probs: NDArray[np.float64]
    logits: AnyFloats
    scale: float
    rounding: float
    sure: NDArray[np.bool_]

    @property
    def tolerance(self) -> float:
        """The difference of a probability that is allowed."""
        return min(self.rounding, CLOSE)

    def prove(
        self, found: AnyFloats, decisions: Mapping[str, Any], report: str, *, engine: str, device: str
    ) -> Parity:
        """Compare probabilities (n, K) and decisions by name with what is expected.

        FuseError, ending in ``report``, where more than rounding differs.
        """
        if found.shape != self.probs.shape:
            raise FuseError(f"the fused model gives {found.shape}, not {self.probs.shape}; {report}")
        if not self.sure.any():
            raise FuseError(
                f"all {len(found)} inputs lie at an edge of the table, which proves nothing; {report}"
            )
        worst = float(np.abs(found - self.probs)[self.sure].max(initial=0.0))
        if not worst <= self.tolerance:  # also true for NaN
            raise FuseError(
                f"probabilities differ by {worst:.3g}, rounding allows {self.tolerance:.3g}; {report}"
            )
        close = check_decisions(
            self.artifact, self.probs, decisions, tolerance=self.tolerance, rows=self.sure, report=report
        )
        left = int((~self.sure).sum())
        return Parity(worst, self.tolerance, len(found), left, close, engine=engine, device=device)

    def prove_logits(
        self, found: AnyFloats, kind: Outputs, report: str, allowed: NDArray[np.bool_] | None = None
    ) -> None:
        """Compare logits (n, K), or (n, 1) of a ``kind`` of one column, which a mask has ``allowed`` (n, K).

        Probabilities do not reveal a constant added to all logits of a row. FuseError, ending in ``report``,
        where more than rounding differs.
        """
        logits, allowed = self.logits, np.ones_like(self.probs, np.bool_) if allowed is None else allowed
        if kind == "log_probs":
            logits = log_softmax(np.where(allowed, logits, -np.inf))
        elif kind in ONE_COLUMN:
            logits, allowed = logits[:, 1:] - logits[:, :1], allowed[:, 1:]
        # Of masked logits, beyond the scale, relative to their size.
        with np.errstate(invalid="ignore"):  # of two that are infinite, which are the same
            shares = np.abs(found - logits) / np.maximum(np.abs(logits) / self.scale, 1.0)
        apart = float(np.where((found == logits) | ~allowed, 0.0, shares).max())
        if not apart <= self.rounding:
            raise FuseError(f"logits differ by {apart:.3g}, rounding allows {self.rounding:.3g}; {report}")


def expect(
    artifact: Artifact, logits: AnyFloats, ratio: float, sources: Sequence[str] | None = None
) -> Expected:
    """Calibrate logits (n, K), as the output steps take them, each row as of its source, where there are any.

    ``ratio``: what rounding allows for logits of size 1, see ``ROUNDING``.
    """
    mapped = logits
    for step in artifact.maps:
        mapped = step(mapped, sources)
    scale = size_of(mapped, labels=artifact.is_multilabel)
    # AnyFloats round by a share of their size: logits of 20 are 20 times as far apart as those of 1.
    rounding, sure = ratio * scale, np.ones(len(mapped), np.bool_)
    if artifact.table is not None:
        before, _ = replace(artifact, steps=artifact.output_steps[:-1]).of_segments(logits, sources)
        sure = far_from_edges(before, artifact.table, min(rounding, CLOSE))
    return Expected(artifact, artifact.of_segments(logits, sources)[0], mapped, scale, rounding, sure)


def check_examples(artifact: Artifact) -> None:
    """Raise FuseError where the fit's own scores get other probabilities than in the fit."""
    examples = artifact.examples
    if examples is None:
        return
    logits, alone = np.asarray(examples.logits, np.float64), replace(artifact, sets=None, abstain=None)
    alone = replace(alone, contract=None, choice=None)
    expected = expect(alone, logits, ROUNDING["float32"], artifact.rounds(len(logits))[0])
    try:
        expected.prove(examples.probs, {}, "fit it again", engine="numpy", device="cpu")
    except FuseError as error:
        raise FuseError(f"the fit's own scores do not get its own probabilities: {error}") from error


def read_inputs(inputs: Mapping[str, NDArray[Any]] | str | Path | None) -> dict[str, Any]:
    """Inputs by name; a number becomes an array of no dimension, as onnxruntime wants."""
    if not isinstance(inputs, (str, Path)):
        return {k: np.asarray(v) if isinstance(v, np.generic) else v for k, v in (inputs or {}).items()}
    try:
        return read_npz(Path(inputs))[0]
    except ValueError as error:
        raise InputError(
            f"{inputs} is not an npz of inputs by name, as --inputs (inputs=) takes it: {error}"
        ) from error


def far_from_edges(probs: AnyFloats, table: ProbTable, near: float) -> NDArray[np.bool_]:
    """The rows (n,) of probabilities (n, K) that stay in their bins of the table if moved by ``near``."""
    if len(table.edges) == probs.shape[1]:
        return np.logical_not((np.abs(probs[:, :, None] - table.edges[None]) <= near).any(axis=(1, 2)))
    # Of one row of edges the likeliest class is looked up: where two tie, rounding chooses.
    ordered = np.sort(probs, axis=1)
    tied = ordered[:, -1] - ordered[:, -2] <= near
    close = (np.abs(ordered[:, -1:] - table.edges) <= near).any(axis=1)
    return np.logical_not(tied | close)


def size_of(logits: NDArray[np.floating[Any]], *, labels: bool) -> float:
    """The largest logit (n, K) that a probability shows, and at least 1: rounding grows with it.

    One far below its row's largest, where masks put it (-1e9, -inf), is 0 as a probability, however rounded.
    ``labels``: each logit is one by itself.

    >>> size_of(np.array([[3.0, -7.0, -1e9]]), labels=False)
    7.0
    """
    with np.errstate(invalid="ignore"):  # of a row whose largest is infinite itself
        below = np.abs(logits) if labels else logits.max(axis=1, keepdims=True) - logits
    # e^-100 is 0 beside any other probability of the row.
    return float(np.abs(logits).max(initial=1.0, where=below <= 100.0))


def check_class_order(artifact: Artifact, names: Sequence[str], source: Path, *, proven: bool) -> None:
    """Raise FuseError where a model names other classes than the artifact, or in another order.

    Args:
        artifact: The calibration; where all classes are treated alike, any order is right.
        names: The model's own names; empty: it has none.
        source: Its file.
        proven: Whether its scores are known to be the fitted ones: then other names will do.
    """
    own = artifact.class_names
    numbers = [all(name.isdecimal() for name in one) for one in (own, names)]
    if not own or not names or own == tuple(names) or numbers[0] != numbers[1]:
        return
    alike = all(isinstance(step, InputShift) or getattr(step, "is_scalar", False) for step in artifact.steps)
    moved = set(own) == set(names)
    alike = alike and artifact.sets is None and artifact.contract is None and artifact.choice is None
    if (moved and alike) or (proven and not moved):
        return
    what = "in another order, and each has a scale of its own" if moved else "by other names"
    raise FuseError(
        f"{source} has the artifact's classes {what}: the graph's are {few(names)}, its own {few(own)}; "
        "fit it on scores whose columns are the graph's (calib-serve fit --model, --columns)"
        + ("" if moved else ", or prove that it gives the scores that were fitted, --against (against=)")
    )
