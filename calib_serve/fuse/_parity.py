"""Parity: a fused model returns what the model calibrated in numpy does, as far as rounding allows.

ONNX graphs, torch modules and Triton repositories share this proof: each runs its model, and hands over the
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, ProbTable, random_inputs, response, same_response
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.data_files import read_npz
from calib_serve.core.errors import FuseError, InputError
from calib_serve.fuse._decision_parity import check_decisions


@dataclass(frozen=True)
class Parity:
    """How far a fused model is from the calibration in numpy, in probabilities; ``FuseReport`` says of what.

    ``near_edge`` inputs are left out, where either bin of a table is right, and ``near_threshold`` decisions
    (a class in a set, an abstention, an act), as rounding may turn them.
    """

    max_abs_diff: float
    tolerance: float
    samples: int
    near_edge: int
    near_threshold: int
    own_scores: int
    engine: str
    device: str

    def rows(self) -> list[tuple[str, str]]:
        """List headings, which may be empty, and texts, for display."""
        own = f" and {self.own_scores} of the fit's own scores" if self.own_scores else ""
        whole = (
            f"{self.max_abs_diff:.2g} at most on {self.samples} inputs{own}, {self.tolerance:.2g} allowed "
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

    ``scale`` is the size of the logits, but for masked ones. Rounding moves probabilities by ``near`` in the
    model, and by ``tolerance`` once they are returned in its own type. ``sure`` (n,) is False where a
    probability lies within ``near`` of a table's edge, so that either bin is right.
    """

    artifact: Artifact
    probs: NDArray[np.float64]
    logits: AnyFloats
    scale: float
    near: float
    tolerance: float
    sure: NDArray[np.bool_]

    def compare(self, found: AnyFloats, decisions: Mapping[str, Any], report: str) -> tuple[float, int]:
        """Compare probabilities (n, K) and decisions by name with what is expected.

        Returns the largest difference of probabilities, and how many decisions lie so close to their
        threshold that rounding may turn them. FuseError, ending in ``report``, where more than rounding
        differs.
        """
        if found.shape != self.probs.shape:
            raise FuseError(f"the fused model gives {found.shape}, not {self.probs.shape}; {report}")
        worst = float(np.abs(found - self.probs)[self.sure].max(initial=0.0))
        if not worst <= self.tolerance:  # also true for NaN
            raise FuseError(
                f"probabilities differ by {worst:.3g}, rounding allows {self.tolerance:.3g}; {report}"
            )
        close = check_decisions(
            self.artifact,
            self.probs,
            decisions,
            tolerance=self.near,
            rows=self.sure,
            report=report,
            shown=self.tolerance,
        )
        return worst, close

    def prove(
        self,
        found: AnyFloats,
        decisions: Mapping[str, Any],
        report: str,
        *,
        own: tuple[int, float],
        engine: str,
        device: str,
    ) -> Parity:
        """Compare with what is expected, and report; ``own`` is the result of ``prove_own_scores``."""
        worst, close = self.compare(found, decisions, report)
        return Parity(
            max(worst, own[1]),
            self.tolerance,
            len(found),
            int((~self.sure).sum()),
            close,
            own_scores=own[0],
            engine=engine,
            device=device,
        )


def expect(
    artifact: Artifact,
    logits: AnyFloats,
    ratio: float,
    *,
    rounding: float = 0.0,
    probs: AnyFloats | None = None,
) -> Expected:
    """Calibrate logits (n, K), as the output steps take them.

    ``ratio``: what rounding allows for logits of size 1; it grows with their size. ``rounding``: what the
    type that is returned adds. ``probs``: what the fit made of these logits, where it is known.
    """
    mapped = logits
    for step in artifact.logit_maps:
        mapped = step(mapped)
    scale = size_of(mapped, labels=artifact.is_multilabel)
    # AnyFloats round by a share of their size: logits of 20 are 20 times as far apart as those of 1.
    near, sure = ratio * scale, np.ones(len(mapped), np.bool_)
    if artifact.table is not None:
        before = replace(artifact, steps=artifact.output_steps[:-1]).of_logits(logits)
        sure = far_from_edges(before, artifact.table, near)
    made = artifact.of_logits(logits) if probs is None else np.asarray(probs, np.float64)
    return Expected(artifact, made, mapped, scale, near, near + rounding, sure)


def prove_own_scores(
    artifact: Artifact,
    ratio: float,
    run: Callable[[NDArray[np.float64]], tuple[AnyFloats, Mapping[str, Any]]],
    report: str,
) -> tuple[int, float]:
    """Compare probabilities and decisions of the fit's own scores in a fused model with those of the fit.

    ``run`` gives probabilities and decisions of logits (m, K). Returns how many there are, and the largest
    difference; FuseError beyond rounding.
    """
    examples = artifact.examples
    if examples is None:
        return 0, 0.0
    # In float64, whatever the fit kept: the numbers that are compared come from the fit alone.
    logits = np.asarray(examples.logits, np.float64)
    expected = expect(artifact, logits, ratio, probs=examples.probs)
    try:
        return len(logits), expected.compare(*run(logits), report)[0]
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
    return float(np.abs(logits).max(initial=1.0, where=below <= 1e3))


def check_owner(artifact: Artifact, sha256: str, source: Path, *, force: bool) -> NDArray[Any] | None:
    """Made-up inputs for ``check_response`` where the bytes of ``source`` are not the fitted model's.

    Raises FuseError where it can be no other export of the same model, as far as is known; unless ``force``.
    """
    fitted = artifact.model
    if force or fitted.fits(sha256):
        return None
    # Exported again, a model has other bytes and the same scores: its scores for made-up inputs identify
    # it.
    inputs = None if fitted.response is None else random_inputs(fitted.input_shape)
    if inputs is None:
        raise FuseError(f"{_other(artifact, source)}, and does not say what would tell another export of it")
    return inputs


def check_response(artifact: Artifact, logits: NDArray[Any] | None, source: Path) -> None:
    """Raise FuseError unless these logits of ``check_owner``'s inputs are those of the fitted model.

    None where ``source`` does not take the inputs.
    """
    found = None if logits is None else response(logits, labels=artifact.is_multilabel)
    if not same_response(artifact.model.response or (), found):
        what = "does not take its inputs" if logits is None else "gives other scores for the same inputs"
        raise FuseError(f"{_other(artifact, source)}: {source} {what}")


def _other(artifact: Artifact, source: Path) -> str:
    fitted = artifact.model
    return (
        f"the artifact was fitted for {fitted.source or str(fitted.sha256)[:12]}, and {source} is another "
        "file; fit it for this model, or, where you know it for an export of the same one, say so with "
        "--force (force=)"
    )
