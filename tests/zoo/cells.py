"""One cell of the zoo's table: a graph, fused with an artifact, against numpy in every runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from deciding import SCORES, deciding
from fuse_artifacts import artifact, head, output_steps
from onnx_runtimes import RUNTIMES, CannotRun
from specimens import Specimen

from calib_serve import Artifact
from calib_serve.artifact import InputShift, LogitMap, ModelFacts, ProbTable
from calib_serve.core.errors import FuseError, InputError, ModelError
from calib_serve.fuse import fuse_onnx
from calib_serve.fuse._decision_parity import check_decisions
from calib_serve.scores import log_probs, softmax

ERRORS = (FuseError, InputError, ModelError)


@dataclass(frozen=True)
class Outcome:
    """What came of a cell in one runtime: the largest difference of probabilities, or why there is none.

    ``kind``: "equal"; "refused" by ``fuse_onnx``; "raw" where the runtime cannot run the raw graph; "wrong".
    """

    kind: str
    difference: float = float("nan")
    why: str = ""


class Cage:
    """A specimen's raw file, with the tensor a head reads among its outputs, and what runtimes make of it."""

    def __init__(self, specimen: Specimen, folder: Path) -> None:
        self.specimen, self.folder = specimen, folder
        self.path = folder / "raw.onnx"
        self.feeds = specimen.make(self.path)
        model = onnx.load(self.path, load_external_data=False)
        self.features, self.width = _features(model) if specimen.head else ("", 0)
        self.shown = folder / "raw.shown.onnx" if specimen.head else self.path
        if specimen.head:
            model.graph.output.append(onnx.ValueInfoProto(name=self.features))
            _save(model, self.shown)
        self._raw: dict[tuple[str, bool], Mapping[str, Any] | CannotRun] = {}

    def artifact(self, kind: str) -> Artifact:
        """The artifact of a kind, fitted, as it says, on scores like this graph's."""
        rng, classes = np.random.default_rng(1), self.specimen.classes
        steps: tuple[Any, ...]
        if kind == "head":
            steps = (head(self.width, classes, 2, rng), LogitMap.temperature(1.5))
        elif kind == "shift":
            shape = self.feeds[str(self.specimen.image)].shape[1:]
            steps = (InputShift(0.1 * rng.normal(size=shape)), LogitMap.temperature(1.5))
        else:
            steps = output_steps(kind, classes, rng)
        fitted = artifact(*steps, classes=classes, model=ModelFacts(outputs=self.specimen.means))
        place = self.specimen.kinds.index(kind)
        return fitted if place % 3 == 0 else deciding(fitted, SCORES[place % len(SCORES)])

    def raw(self, runtime: str, fitted: Artifact) -> Mapping[str, Any]:
        """The raw graph's outputs on the inputs, shifted where the artifact does; raises CannotRun."""
        if runtime in self.specimen.wrong:
            raise CannotRun(self.specimen.wrong[runtime])
        shift = fitted.input_shift
        key = runtime, shift is not None
        if key not in self._raw:
            feeds = dict(self.feeds)
            if shift is not None:
                image = str(self.specimen.image)
                feeds[image] = shift(feeds[image])
            try:
                self._raw[key] = RUNTIMES[runtime](self.shown, feeds)
            except CannotRun as error:
                self._raw[key] = error
        found = self._raw[key]
        if isinstance(found, CannotRun):
            raise found
        return found

    def fuse(self, kind: str) -> dict[str, Outcome]:
        """The cell's outcome by runtime."""
        fitted, out = self.artifact(kind), self.folder / f"{kind}.onnx"
        try:
            fuse_onnx(self.path, fitted, out, inputs=self.feeds, **self.specimen.options, unproven=True)
        except ERRORS as error:
            assert not out.exists()
            return dict.fromkeys(RUNTIMES, Outcome("refused", why=str(error)))
        outcomes = {runtime: self._compared(runtime, fitted, out) for runtime in RUNTIMES}
        out.unlink()
        return outcomes

    def _compared(self, runtime: str, fitted: Artifact, out: Path) -> Outcome:
        try:
            raw = self.raw(runtime, fitted)
        except CannotRun as error:
            return Outcome("raw", why=" ".join(str(error).split()))
        try:
            got = RUNTIMES[runtime](out, self.feeds)
        except CannotRun as error:
            return Outcome("wrong", why=f"runs the raw graph, not the fused one: {error}")
        scores = _scores(self.path, self.specimen)
        expected, sure = self._expected(raw[scores], raw.get(self.features), fitted)
        actual = _rows(got[scores])
        if actual.shape != expected.shape:
            return Outcome("wrong", why=f"gives {actual.shape}, not {expected.shape}")
        probs = actual if self.specimen.means == "probabilities" else softmax(actual)
        difference = float(np.abs(probs - expected)[sure].max(initial=0.0))
        good = sure.any() and difference <= self.specimen.tolerance
        try:
            check_decisions(
                fitted, expected, got, tolerance=self.specimen.tolerance, rows=sure, report=runtime
            )
        except FuseError as error:
            return Outcome("wrong", why=str(error))
        return Outcome("equal" if good else "wrong", difference)

    def _expected(self, raw: Any, features: Any, fitted: Artifact) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities in numpy, and the rows that are clear of the edges of a table and of ties."""
        z = _rows(raw)
        z = log_probs(z) if self.specimen.means == "probabilities" else z
        z = z if fitted.head is None else fitted.head(_rows(features))
        expected = fitted.of_logits(z)
        table = fitted.table
        if table is None:
            return expected, np.ones(len(z), bool)
        before = artifact(*(s for s in fitted.steps if s is not table), classes=fitted.classes).of_logits(z)
        return expected, _sure(before, table, self.specimen.tolerance)


def _sure(probs: np.ndarray, table: ProbTable, near: float) -> np.ndarray:
    ordered = np.sort(probs, axis=1)
    top = len(table.edges) == 1
    values = ordered[:, -1:] if top else probs
    clear = (np.abs(values[:, :, None] - table.edges[None]) > near).all(axis=(1, 2))
    # Where two classes are exactly alike every runtime takes the first.
    return clear & ((ordered[:, -1] - ordered[:, -2] > near) | (not top))


def _features(model: onnx.ModelProto) -> tuple[str, int]:
    """What the last linear layer reads, and its width."""
    constants = {i.name: i.dims for i in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = node.attribute[0].t.dims
        elif (
            node.op_type in ("DequantizeLinear", "Cast", "Identity", "Transpose")
            and node.input[0] in constants
        ):
            constants[node.output[0]] = constants[node.input[0]]
    last = [n for n in model.graph.node if n.op_type in ("Gemm", "MatMul", "FusedGemm", "FusedMatMul")][-1]
    weight = constants[last.input[1]]
    transposed = any(a.name == "transB" and a.i for a in last.attribute)
    return last.input[0], weight[1 if transposed else 0]


def _scores(path: Path, specimen: Specimen) -> str:
    names = [o.name for o in onnx.load(path, load_external_data=False).graph.output]
    return str(specimen.options.get("output_name", names[-1]))


def _rows(found: Any) -> np.ndarray:
    if isinstance(found, list):  # a mapping a row, of ZipMap
        found = [list(row.values()) for row in found]
    array = np.asarray(found).astype("f8")
    return array.reshape(len(array), -1)


def _save(model: onnx.ModelProto, path: Path) -> None:
    inferred = onnx.shape_inference.infer_shapes(model)
    last = inferred.graph.output[-1]
    known = [v for v in inferred.graph.value_info if v.name == last.name]
    if known:
        last.CopyFrom(known[0])
    onnx.save(inferred, path)
