"""The expected results of a fused graph: the raw graph's outputs, calibrated in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import ProbTable
from calib_serve.errors import FuseError, InputError
from calib_serve.fuse.onnx.plan import Plan
from calib_serve.metrics import log_probs, log_softmax, softmax

__all__ = ["Expected", "expect", "prepare"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Expected:
    """Probabilities (n, K) as the output means them, logits (n, K) or None where the steps leave none.

    ``scale`` is the size of the logits; ``sure`` (n,) is False where a probability lies within
    ``near`` of a table's edge, so that either bin is right.
    """

    probs: Floats
    logits: Floats | None
    scale: float
    sure: NDArray[np.bool_]


def prepare(feeds: Mapping[str, NDArray[Any]], plan: Plan) -> dict[str, NDArray[Any]]:
    """The raw graph's inputs: normalised and shifted in numpy."""
    ready = dict(feeds)
    if plan.shifted is None:
        return ready
    if plan.shifted not in ready:
        raise InputError(f"the inputs lack {plan.shifted!r}; they are {sorted(ready)}")
    x = ready[plan.shifted]
    dtype = x.dtype
    if plan.normalization is not None:
        mean, std = plan.normalization.shaped(x.ndim)
        x = (x.astype(np.float64) - mean) / std
    step = plan.artifact.input_shift
    ready[plan.shifted] = (x if step is None else step(x)).astype(dtype)
    return ready


def expect(raw: Floats, plan: Plan, near: float) -> Expected:
    """The calibrated results of the raw graph's values at ``plan.source``, (n, d) or (n, K)."""
    artifact, logits = plan.artifact, _logits(raw, plan)
    mapped = logits
    for step in artifact.logit_maps:
        mapped = step(mapped)
    scale = max(1.0, float(np.abs(mapped).max(initial=1.0)))
    everyone = np.ones(len(mapped), np.bool_)
    if plan.outputs == "sigmoid":
        pair = raw.shape[1] == 1  # one logit z stands for the two logits (0, z)
        return Expected(_sigmoid(mapped[:, 1:] - mapped[:, :1] if pair else mapped), None, scale, everyone)
    probs = softmax(mapped) if artifact.mixture is None else artifact.mixture(mapped)
    if artifact.table is not None:
        sure = _sure(probs, artifact.table, near * scale)
        return Expected(artifact.table(probs), None, scale, sure)
    if artifact.mixture is not None:
        return Expected(probs, None, scale, everyone)
    return Expected(probs, log_softmax(mapped) if plan.outputs == "log_probs" else mapped, scale, everyone)


def _logits(raw: Floats, plan: Plan) -> Floats:
    if plan.artifact.head is not None:
        return np.asarray(plan.artifact.head(raw), np.float64)
    _check_outputs(raw, plan)
    if plan.opened:
        return np.asarray(log_probs(raw))
    if plan.outputs == "sigmoid" and raw.shape[1] == 1:
        return np.concatenate([np.zeros_like(raw), raw], axis=1)
    return raw


def _check_outputs(raw: Floats, plan: Plan) -> None:
    """Check the declared ``outputs`` against the values, where no activation shows them."""
    # One row may be near 1 by chance; several are not.
    near = _SUM if len(raw) > 1 or plan.opened else _SUM / 100
    distributed = bool((raw >= 0).all()) and np.allclose(raw.sum(axis=1), 1, atol=near)
    if plan.opened and not distributed:
        raise FuseError(f"{plan.source!r} does not hold probabilities that sum to 1; say outputs='logits'")
    if plan.outputs == "logits" and distributed:
        raise FuseError(
            f"{plan.source!r} holds probabilities, but no Softmax makes them; say outputs='probabilities'"
        )


_SUM = 1e-2  # how far probabilities of a narrow type may be from 1 together


def _sure(probs: Floats, table: ProbTable, near: float) -> NDArray[np.bool_]:
    if len(table.edges) > 1:
        close = (np.abs(probs[:, :, None] - table.edges[None]) <= near).any(axis=(1, 2))
        return np.logical_not(close)
    ordered = np.sort(probs, axis=1)
    tied = ordered[:, -1] - ordered[:, -2] <= near
    close = (np.abs(ordered[:, -1:] - table.edges) <= near).any(axis=1)
    return np.logical_not(tied | close)


def _sigmoid(z: Floats) -> Floats:
    return 0.5 * (1 + np.tanh(0.5 * z))
