"""The declaration of a handler's final scores, and of the request that each row is of.

Two lines in a handler say what no trial can prove: several rows of one picture, windows that are averaged, a
cascade, a state over frames::

    from calib_serve.torchserve import calibrated

    scores = calibrated(scores, rows=[0, 0, 1])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Called in place of a function, with it and its arguments; what it returns is the function's result."""

DECLARED = "calibrated"
"""The place of scores that a handler calibrates itself, by ``calibrated``."""

_around: list[Around] = []  # one model a worker, so one calibration a process


def calibrated(scores: Any, rows: Sequence[int | None] | None = None) -> Any:
    """Calibrate the final scores of a batch, in the same form; without a calibration they stay as they are.

    Args:
        scores: One row a prediction, (n, K), as a tensor, an array or lists; what a reply is made of.
        rows: Of each row, the position in the batch of the request that it is of; None: of nobody. By
            default row i is of request i.
    """
    if not _around:
        return scores
    return _around[-1](lambda found, **_: found, (scores,), {"rows": rows})


def calibrate_with(around: Around) -> None:
    """Let ``calibrated`` go through ``around`` from now on."""
    _around.append(around)
