"""Agreement of a graph's outputs with its scores, as runs show it.

A walk through the graph does not see that two computations give the same: a network that is traced twice, two
bodies of an If. The numbers do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import FuseError
from calib_serve.fuse.onnx._follow import OutputStatus, keeps_order, reads
from calib_serve.fuse.onnx._graph import FLOATS, constant
from calib_serve.fuse.onnx._parity import REPORT, equal, run_raw
from calib_serve.fuse.onnx._plan import Plan
from calib_serve.fuse.onnx._raw_scores import class_logits, prepare
from calib_serve.scores import sigmoid, softmax

_ANEW = "by a computation of its own"


def possible_twins(graph: ir.Graph, plan: Plan) -> dict[str, ir.Value]:
    """The tensors, by name, of the scores' shape that are on no way to or from the scores."""
    like = plan.tail.logits
    known = {like, *plan.sources.before}
    for node in graph:
        if any(v in known for v in reads(node)):
            known |= set(node.outputs)
    sizes = None if like.shape is None else list(like.shape)[1:]
    made = [v for node in graph for v in node.outputs if v.dtype in FLOATS and constant(v) is None]
    alike = [v for v in made if v.shape is not None and list(v.shape)[1:] == sizes]
    return {str(v.name): v for v in alike if v not in known}


@dataclass(frozen=True, eq=False)
class RawRun:
    """Results of the raw graph by name, and its scores as logits (n, K)."""

    plan: Plan
    results: Mapping[str, Any]
    logits: AnyFloats

    @classmethod
    def of(cls, plan: Plan, probe: Path, feeds: Mapping[str, NDArray[Any]]) -> RawRun:
        """Run the raw graph, ``probe``, which shows the scores."""
        # Of bfloat16, onnxruntime gives numpy nothing.
        if plan.dtype == ir.DataType.BFLOAT16:
            return cls(plan, {}, np.empty((0, 1)))
        names = [v.name for v in onnx.load(probe, load_external_data=False).graph.output]
        results = dict(zip(names, run_raw(probe, prepare(feeds, plan), names, plan.custom_ops), strict=True))
        scores = np.asarray(results[plan.scores], np.float64)
        return cls(plan, results, class_logits(scores.reshape(len(scores), -1), plan))

    def judge(self, status: OutputStatus) -> OutputStatus:
        """Judge an output that no way leads to: independent, unless its numbers are those of the scores."""
        found = self.results.get(status.name)
        if status.status != "independent" or found is None:
            return status
        if self.shows_scores(found):
            return replace(status, status="left raw", reason=f"on every input it equals the scores, {_ANEW}")
        known, reason = self._labels(found), "on every input it names the class of the scores"
        if known is None:
            return status
        if keeps_order(self.plan.artifact):
            return replace(status, status="follows", reason=f"{reason}, which the calibration keeps")
        typical = (
            "" if len(known) > 1 else "; they are all of one class: give typical ones, --inputs (inputs=)"
        )
        return replace(status, status="left raw", reason=f"{reason}, {_ANEW}{typical}")

    def check(self, fused: Mapping[str, Any], probs: AnyFloats, proved: Collection[str]) -> list[str]:
        """Warn of labels that named the class of the raw scores, and do not name that of the calibrated ones.

        ``fused`` are results of the fused graph, ``probs`` (n, K) its probabilities. FuseError unless a label
        is ``proved`` to be what the graph decides by calibrated scores.
        """
        wrong = {name: n for name, found in fused.items() if (n := self._contradicted(name, found, probs))}
        for name in wrong.keys() - set(proved):
            raise FuseError(f"the output {name!r} contradicts the calibrated scores; {REPORT}")
        return [
            f"warning: the output {name!r} is decided by more than the most likely class: it named that of "
            f"the raw scores, and on {n} of {len(probs)} inputs not that of the calibrated ones"
            for name, n in wrong.items()
        ]

    def shows_scores(self, found: Any) -> bool:
        """Whether a result equals the scores, or the largest of them, as logits or as probabilities."""
        array = np.asarray(found)
        if array.dtype.kind != "f" or array.shape[:1] != (len(self.logits),):
            return False
        shown, near = array.reshape(len(array), -1).astype(np.float64), 10 * self.plan.near
        each = self.plan.artifact.is_multilabel or self.plan.tail.one_column
        squash = sigmoid if each else softmax
        probs = softmax(self.logits)[:, 1:] if self.plan.tail.one_column else squash(self.logits)
        if shown.shape == probs.shape:
            return any(equal(probs, one, near) for one in (shown, squash(shown)))
        tops = (one.max(axis=1, keepdims=True) for one in (probs, self.logits))
        return shown.shape[1] == 1 and not each and any(equal(top, shown, near) for top in tops)

    def _labels(self, found: Any) -> dict[int, Any] | None:
        """Map each class of the rows to its label in a result; None where that names no classes."""
        label, classes = _column(found, len(self.logits)), self.logits.argmax(axis=1)
        if label is None or self.plan.artifact.is_multilabel:
            return None
        pairs = Counter(zip(classes.tolist(), label, strict=True))
        known: dict[int, Any] = {}
        for k, one in sorted(pairs, key=pairs.__getitem__, reverse=True):
            known.setdefault(k, one)
        others = sum(n for (k, one), n in pairs.items() if known[k] != one)
        plain = all(one == k for k, one in known.items())
        # Of rows that are each of another class, any labels are those of their classes.
        repeated = len(label) >= len(known) + 3 and len(set(known.values())) == len(known)
        # Of ties, a runtime may take another class: one row in a hundred.
        return known if 100 * others <= len(label) and (plain or repeated) else None

    def _contradicted(self, name: str, found: Any, probs: AnyFloats) -> int:
        """Count the rows whose label in the fused graph is not that of a most likely class."""
        known, label = self._labels(self.results[name]), _column(found, len(probs))
        if known is None or label is None or len(known) < 2:
            return 0
        # Of equally likely classes rounding chooses one; the label of a class that no row had is not known.
        least = probs.max(axis=1, keepdims=True) - 10 * self.plan.near
        best = [set(np.flatnonzero(row).tolist()) for row in probs >= least]
        return sum(
            known.keys() >= classes and one not in {known[k] for k in classes}
            for classes, one in zip(best, label, strict=True)
        )


def _column(found: Any, n: int) -> list[Any] | None:
    """The labels of ``n`` rows, one each; None where a result holds none."""
    array = np.asarray(found)
    ours = array.dtype.kind in "biufOUS" and array.size == n and array.shape[:1] == (n,)
    return array.reshape(n).tolist() if ours else None
