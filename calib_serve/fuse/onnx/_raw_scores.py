"""What the numbers of the raw graph mean: its scores as the logits that the artifact acts on, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import InputError
from calib_serve.fuse._kinds import NORMALISED, check_numbers
from calib_serve.fuse.onnx._plan import Plan, reads_least
from calib_serve.scores import LEAST, log_softmax, to_logits


def prepare(feeds: Mapping[str, NDArray[Any]], plan: Plan, *, shift: bool = True) -> dict[str, NDArray[Any]]:
    """Shift the raw graph's inputs in numpy."""
    ready = {name: array for name, array in feeds.items() if name != plan.by}
    if plan.shifted is None:
        return ready
    if plan.shifted not in ready:
        raise InputError(f"--inputs (inputs=) lack {plan.shifted!r}; they are {sorted(ready)}")
    x, step = ready[plan.shifted], plan.artifact.input_shift if shift else None
    ready[plan.shifted] = (x if step is None else step(x)).astype(x.dtype)
    return ready


def logits_of(raw: AnyFloats, plan: Plan) -> AnyFloats:
    """Convert the graph's own scores (n, d) to the logits that the artifact's output steps act on."""
    artifact = plan.artifact
    if artifact.head is not None:
        return np.asarray(artifact.head(raw), np.float64)
    # An activation of the graph proves the kind of its output.
    if plan.activation is None:
        check_numbers(raw, plan.outputs, repr(plan.source), told=plan.told)
    z = class_logits(raw, plan)
    if plan.activation in ("Softmax", "LogSoftmax") and reads_least(artifact):
        return np.maximum(log_softmax(z), np.log(LEAST))
    normal = artifact.depends_on_kind and artifact.model.outputs in NORMALISED
    return log_softmax(z) if normal else z


def class_logits(raw: AnyFloats, plan: Plan) -> AnyFloats:
    """Scores (n, K) or (n, 1) of the raw graph, before any activation, as logits (n, K)."""
    kind = plan.outputs
    if plan.activation is not None:
        kind = "label_logits" if kind == "label_probabilities" else "logits"
    return np.asarray(to_logits(raw, kind), np.float64)
