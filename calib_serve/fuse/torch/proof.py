"""The check of a fusion: what the calibrated module returns, against the model calibrated in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calib_serve.artifact import Artifact
from calib_serve.errors import FuseError
from calib_serve.fuse.checks import far_from_edges, size_of
from calib_serve.fuse.decisions import check_decisions
from calib_serve.scores import Outputs, to_probs

__all__ = ["Expected", "Parity", "check_examples", "compare", "expect", "numbers"]

Floats = NDArray[np.floating[Any]]

TOLERANCE = 1e-5
"""Largest difference of probabilities in float32 for logits of size 1; rounding grows with their size."""
TOLERANCE_OF_HALF = 2e-3
"""The same of float16 and bfloat16, whose probabilities are rounded once, at the end."""
_TOLERANCE_OF_DOUBLE = 1e-9


@dataclass(frozen=True)
class Parity:
    """``max_abs_diff`` of probabilities over ``samples`` inputs, with what rounding allows.

    ``near_edge`` samples had a probability within rounding of a table's edge, where either bin is right;
    they are left out. So are ``near_threshold`` decisions, a class in a set or an abstention, that rounding
    may turn. ``engine`` is what ran the model.
    """

    max_abs_diff: float
    tolerance: float
    samples: int
    near_edge: int
    near_threshold: int
    engine: str


@dataclass(frozen=True, eq=False)
class Expected:
    """Probabilities (n, K); ``sure`` (n,) is False within rounding of a table's edge.

    ``near`` is what rounding allows before the result is rounded to the model's own type.
    """

    probs: NDArray[np.float64]
    sure: NDArray[np.bool_]
    tolerance: float
    near: float


def expect(logits: Floats, artifact: Artifact, dtype: torch.dtype, *, relayered: bool) -> Expected:
    """What logits (n, K), as the output steps take them, must become; ``relayered``: weights were changed."""
    mapped = logits
    for step in artifact.logit_maps:
        mapped = step(mapped)
    size = size_of(mapped, labels=artifact.is_multilabel)
    near = size * (_TOLERANCE_OF_DOUBLE if dtype == torch.float64 else TOLERANCE)
    tolerance = near
    if dtype in (torch.float16, torch.bfloat16):
        tolerance += TOLERANCE_OF_HALF * (size if relayered else 1)
    if relayered:  # its rounding comes before the table, not after it
        near = tolerance
    sure = np.ones(len(mapped), np.bool_)
    if artifact.table is not None:
        before = Artifact(
            tuple(step for step in artifact.output_steps if step is not artifact.table),
            method="before the table",
            classes=artifact.classes,
            model=artifact.model,
        )
        sure = far_from_edges(before.of_logits(logits), artifact.table, near)
    return Expected(artifact.of_logits(logits), sure, tolerance, near)


def compare(
    returned: Tensor,
    expected: Expected,
    outputs: Outputs | None,
    engine: str,
    decisions: tuple[Artifact, Mapping[str, NDArray[np.bool_]]],
) -> Parity:
    """Probabilities, or scores of the kind ``outputs``; FuseError where they differ by more than rounding.

    ``decisions`` are an artifact and what it is to have decided, by name.
    """
    shown = numbers(returned)
    probs = shown if outputs is None else to_probs(shown, outputs)
    if probs.shape != expected.probs.shape:
        raise FuseError(f"the calibrated model gives {probs.shape}, not {expected.probs.shape}; {_REPORT}")
    worst = float(np.abs(probs - expected.probs)[expected.sure].max(initial=0.0))
    if not worst <= expected.tolerance:  # also true for NaN
        raise FuseError(
            f"probabilities differ by {worst:.3g}, rounding allows {expected.tolerance:.3g}; {_REPORT}"
        )
    artifact, found = decisions
    close = check_decisions(
        artifact,
        expected.probs,
        found,
        tolerance=expected.near,
        rows=expected.sure,
        report=_REPORT,
        shown=expected.tolerance,
    )
    return Parity(worst, expected.tolerance, len(probs), int((~expected.sure).sum()), close, engine)


_REPORT = (
    "the calibrated model is not used: is the model in evaluation mode? "
    "Give typical inputs with --inputs (inputs= or example=), or report this model"
)


def check_examples(tail: nn.Module, artifact: Artifact, device: torch.device) -> int:
    """The fit's own scores must come out of ``tail``'s steps as the fit's own probabilities; how many did."""
    examples = artifact.examples
    if examples is None:
        return 0
    expected = expect(np.asarray(examples.logits, np.float64), artifact, torch.float32, relayered=False)
    wide = torch.float64 if tail.wide else torch.float32
    z = torch.tensor(examples.logits, dtype=wide, device=device)
    with torch.no_grad():
        probs = numbers(tail.probabilities(tail.maps(z)))  # type: ignore[operator]
    worst = float(np.abs(probs - examples.probs)[expected.sure].max(initial=0.0))
    if not worst <= expected.tolerance:
        raise FuseError(
            f"the scores that the artifact was fitted on get probabilities that differ by {worst:.3g} from "
            "the fit's own; the artifact is damaged, or of another version: fit it again"
        )
    return len(examples.logits)


def numbers(tensor: Tensor) -> Floats:
    """As an array, at least float32."""
    exact = tensor.detach() if tensor.dtype == torch.float64 else tensor.detach().float()
    return exact.cpu().numpy()
