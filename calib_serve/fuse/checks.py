"""What every fusion checks: whose model it is, how large its logits are, what lies next to a bin's edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, made_up, response, same_response
from calib_serve.artifact.steps import Floats, ProbTable
from calib_serve.errors import FuseError

__all__ = ["UNKNOWN", "check_owner", "check_response", "far_from_edges", "rounded_down", "size_of"]


def rounded_down(edges: Floats) -> Floats:
    """The largest float32 not above each edge: c > edge then means the same for every float32 c.

    >>> float(rounded_down(np.array([0.1]))[0]) <= 0.1 < float(np.float32(0.1))
    True
    """
    with np.errstate(over="ignore"):  # beyond its range, the largest float is meant
        near = edges.astype(np.float32)
    return np.where(near > edges, np.nextafter(near, np.float32(-np.inf)), near)


def far_from_edges(probs: Floats, table: ProbTable, near: float) -> NDArray[np.bool_]:
    """Which rows (n,) of probabilities (n, K) ``near`` more or less puts into no other bin of the table."""
    if len(table.edges) == probs.shape[1]:
        return np.logical_not((np.abs(probs[:, :, None] - table.edges[None]) <= near).any(axis=(1, 2)))
    ordered = np.sort(probs, axis=1)
    tied = ordered[:, -1] - ordered[:, -2] <= near
    close = (np.abs(ordered[:, -1:] - table.edges) <= near).any(axis=1)
    return np.logical_not(tied | close)


_FAR = 1e3


def size_of(logits: NDArray[np.floating[Any]], *, labels: bool) -> float:
    """The largest logit (n, K) that a probability shows, and at least 1: what rounding grows with.

    One far below its row's largest, where masks put it (-1e9, -inf), is 0 as a probability, however rounded.
    ``labels``: each logit is one by itself.

    >>> size_of(np.array([[3.0, -7.0, -1e9]]), labels=False)
    7.0
    """
    with np.errstate(invalid="ignore"):  # of a row whose largest is infinite itself
        below = np.abs(logits) if labels else logits.max(axis=1, keepdims=True) - logits
    return float(np.abs(logits).max(initial=1.0, where=below <= _FAR))


UNKNOWN = (
    "the artifact does not say what its scores were, as where it was made by hand, "
    "and its scale for each class makes other probabilities of logits than of log-probabilities; say what "
    "they were with --option fitted_on=KIND (artifact.model.outputs)"
)


def check_owner(artifact: Artifact, sha256: str, source: Path, *, force: bool) -> NDArray[Any] | None:
    """Return inputs for ``check_response`` where ``source`` is no file that the artifact is known to fit.

    Raises FuseError where it can be no other export of the same model, as far as is known; unless ``force``.
    """
    fitted = artifact.model
    if force or fitted.fits(sha256):
        return None
    inputs = None if fitted.response is None else made_up(fitted.input_shape)
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
