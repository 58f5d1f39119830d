"""A classifier on onnxruntime: logits and features; an ONNX graph has no gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Head, InputShift, ModelFacts
from calib_serve.core.arrays import AnyFloats, rows_at_once
from calib_serve.core.errors import CalibServeError, MissingDependency, ModelError
from calib_serve.core.files import MOST_PROTOBUF, read_whole
from calib_serve.core.packages import operators_library
from calib_serve.models.classifier import (
    GIVE_SHAPE,
    NO_SHIFT,
    Loss,
    Progress,
    batches,
    check_sizes,
    finite_logits,
    kind_of_scores,
    width,
)
from calib_serve.models.sessions import open_session
from calib_serve.scores import SAME_LOGITS, GraphOutput, GraphReader, Outputs, refuse_varying

try:
    import onnx
    from onnx import ModelProto, numpy_helper
    from onnx.external_data_helper import (
        ExternalDataInfo,
        _get_all_tensors,
        load_external_data_for_model,
        uses_external_data,
    )
except ImportError as error:
    raise MissingDependency("onnx") from error

_NO_HEAD = "the model returns {}; a new head needs logits (n, K), without a softmax behind the layer"

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(uint8)": "uint8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}
"""Types of an input, and numpy's names of them."""

Opener = Callable[..., Any]
"""Opens a session of a graph, optimised or not."""


@dataclass(frozen=True, eq=False)
class OnnxClassifier:
    """A ``Classifier`` made by ``load_model``. ``body`` computes features, or says why it cannot."""

    session: Any
    body: Any | str
    last: Head | None
    input_shape: tuple[int, ...]
    input_dtype: str
    classes: int
    outputs: Outputs
    fingerprint: str
    source: str
    batch_size: int = 256
    class_names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def differentiable(self) -> bool:
        """Whether there are gradients: none by onnxruntime."""
        return False

    @property
    def head(self) -> Head:
        """The last linear layer."""
        if self.last is None:
            raise ModelError(str(self.body))
        return self.last

    def facts(self) -> ModelFacts:
        """Facts about the model for an artifact's manifest."""
        return ModelFacts(
            sha256=self.fingerprint,
            source=self.source,
            input_shape=self.input_shape,
            input_dtype=self.input_dtype,
            outputs=self.outputs,
        )

    def logits(
        self, inputs: AnyFloats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Logits (n, K); log-probabilities where the model ends in softmax."""
        raw = self._stream(self.session, inputs, shift, progress, width(self.classes, self.outputs))
        return finite_logits(raw, self.outputs, f"these {len(inputs)} inputs")

    def features(
        self, inputs: AnyFloats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Inputs (n, d) of the last linear layer."""
        return self._stream(self.body, inputs, shift, progress, self.head.weights[0].shape[1])

    def input_gradient(
        self,
        inputs: AnyFloats,
        loss: Loss,
        *,
        shift: InputShift | None = None,
        progress: Progress | None = None,
    ) -> NoReturn:
        """Raise ModelError: onnxruntime gives no gradients."""
        raise ModelError(
            f"{self.source} is an ONNX file, and onnxruntime gives no gradients; fit on the model it was "
            "exported from (.pt2 or module:factory) and fuse the artifact into the ONNX file"
        )

    def _stream(
        self, session: Any, inputs: AnyFloats, shift: InputShift | None, progress: Progress | None, width: int
    ) -> NDArray[np.float32]:
        if shift is not None and not self.input_dtype.startswith("float"):
            raise ModelError(NO_SHIFT)
        out = np.empty((len(inputs), width), np.float32)
        for rows, batch in batches(inputs, self.batch_size, self.input_shape, self.input_dtype):
            made = _run(session, batch if shift is None else shift(batch))
            out[rows] = np.reshape(made, (len(batch), -1))
            if progress:
                progress(rows.stop, len(inputs))
        return out


def load_onnx(
    path: Path,
    *,
    fingerprint: str,
    input_shape: tuple[int, ...] | None = None,
    last_linear: str | None = None,
    device: str | None = None,
    batch_size: int = 256,
    outputs: Outputs | None = None,
    output_name: str | None = None,
    custom_ops: str | Path | None = None,
) -> OnnxClassifier:
    """Make a classifier of an ONNX file that takes one tensor of numbers.

    ``last_linear`` names the weight's initializer, ``output_name`` the scores where several outputs may hold
    them. Raises ModelError for any other file, and for one whose answers vary.
    """
    try:
        graph = onnx.load_model_from_string(read_whole(Path(path), limit=MOST_PROTOBUF))
        load_external_data_for_model(graph, str(Path(path).parent))
        library = operators_library(custom_ops, (one.domain for one in graph.opset_import))
        opened = _opener(device, library)
        session = opened(graph)
    except CalibServeError:
        raise
    except Exception as error:  # protobuf and onnxruntime raise unrelated types
        raise ModelError(f"cannot load the ONNX file {path}: {error}") from error
    reader = GraphReader(graph)
    offered = [GraphOutput(one.name, one.type, one.shape) for one in session.get_outputs()]
    name, tensor = reader.choose(offered, output_name)
    if [tensor] != [one.name for one in offered]:
        session = opened(_cut(graph, tensor))
    dtype, sizes = _taken(session, path)
    if sizes:
        check_sizes(path, [None, *sizes[1:]], input_shape)  # a batch of one size is filled up
    probe = _random_inputs(input_shape or (sizes[1:] if sizes else None), dtype)
    if probe is None:
        raise ModelError(f"{path} leaves its input's shape open ({sizes}); give input_shape ({GIVE_SHAPE})")
    shape = probe.shape[1:]
    out = _run(session, probe)
    if out[0].size > max(out.shape[1:], default=1):
        raise ModelError(f"a classifier returns (n, K), or (n, 1) of one logit, {path} returns {out.shape}")
    if vary := reader.varying(tensor):
        # onnxruntime's optimiser may drop a Dropout that another runtime runs.
        session = opened(_cut(graph, tensor), optimize=False)
    refuse_varying([_run(session, probe) for _ in range(2)], vary, reader.of_batch(tensor))
    out = out.reshape(len(out), -1)
    kind, classes = kind_of_scores(out, outputs, reader.made_by(tensor))
    names = reader.class_names(tensor, classes)
    body, head = _NO_HEAD.format(kind), None
    if kind == "logits":
        body, head = _features(graph, probe, out, last_linear, opened)
    if last_linear is not None and head is None:
        raise ModelError(str(body))
    told = (
        [f"scores: the output {name!r} of {path.name}, {kind} of {classes} classes"]
        if len(offered) > 1
        else []
    )
    return OnnxClassifier(
        *(session, body, head, shape, dtype, classes, kind, fingerprint, path.name, batch_size),
        class_names=names,
        remarks=tuple(told),
    )


def weight_files(path: Path) -> set[str]:
    """The names of the files beside an ONNX file that hold its tensors; none where it cannot be read."""
    try:
        graph = onnx.load(path, load_external_data=False)
    except Exception:  # loading it says why
        return set()
    external = [tensor for tensor in _get_all_tensors(graph) if uses_external_data(tensor)]
    return {ExternalDataInfo(tensor).location for tensor in external}


def _random_inputs(shape: Sequence[int | None] | None, dtype: str) -> NDArray[Any] | None:
    """Eight inputs, the same ones every time, whole numbers 0 or 1; None where a size is not known."""
    if shape is None or not all(size is not None and size > 0 for size in shape):
        return None
    rng, sizes = np.random.default_rng(0), [size for size in shape if size]
    if not dtype.startswith("float"):
        return rng.integers(0, 2, (8, *sizes)).astype(dtype)
    return np.concatenate([rng.random((4, *sizes)), rng.standard_normal((4, *sizes))]).astype(dtype)


def _opener(device: str | None, custom_ops: str | None) -> Opener:
    """A function that opens graphs on a device: by default on a GPU, if there is one."""
    # A GPU that somebody named is no wish: on the CPU the same fit may take days.
    gpu = "cuda" if Path("/dev/nvidiactl").exists() else "cpu"

    def opened(graph: ModelProto, *, optimize: bool = True) -> Any:
        how: dict[str, Any] = {"allow_fallback": device is None, "custom_ops": custom_ops}
        return open_session(graph.SerializeToString(), device=device or gpu, optimize=optimize, **how)

    return opened


def _taken(session: Any, path: Path) -> tuple[str, list[int | None]]:
    """The type of the graph's one input and its sizes, with the batch; None is any size."""
    taken = session.get_inputs()
    if len(taken) != 1 or taken[0].type not in _DTYPES:
        kinds = ", ".join(f"{i.name}: {i.type}" for i in taken)
        raise ModelError(
            f"{path} must take one tensor of numbers, it takes {kinds}; run it yourself, and write its "
            "scores and labels into a file (calib-serve fit, calibrate)"
        )
    return _DTYPES[taken[0].type], [size if isinstance(size, int) else None for size in taken[0].shape]


def _run(session: Any, inputs: AnyFloats) -> AnyFloats:
    entry = session.get_inputs()[0]

    def run(batch: AnyFloats) -> AnyFloats:
        try:
            scores = np.asarray(session.run(None, {entry.name: batch})[0])
        except Exception as error:  # onnxruntime raises unrelated types
            raise ModelError(
                f"the model refuses inputs of shape {batch.shape}: {error}; check the input's shape, and "
                "export with a batch dimension of any size"
            ) from error
        if scores.shape[:1] != (len(batch),):
            raise ModelError(f"a classifier returns (n, K), of {len(batch)} inputs this one {scores.shape}")
        return scores

    return rows_at_once(run, inputs, entry.shape[0] if entry.shape else None)


def _features(
    graph: ModelProto, probe: AnyFloats, logits: AnyFloats, name: str | None, opened: Opener
) -> tuple[Any | str, Head | None]:
    """The session that stops before the last linear layer and that layer, verified on the probe.

    The input of a Gemm or MatMul is made the graph's output; the layer is the last one if its
    weight and bias, applied to that, give the logits.
    """
    constants = {t.name: numpy_helper.to_array(t) for t in graph.graph.initializer}
    for node in reversed(graph.graph.node):
        if node.op_type not in ("Gemm", "MatMul") or node.input[1] not in constants:
            continue
        if name is not None and name != node.input[1]:
            continue
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        weight = constants[node.input[1]]
        weight = weight if transposed else weight.T
        if weight.ndim != 2 or weight.shape[0] != logits.shape[1]:
            continue
        session = opened(_cut(graph, node.input[0]))
        features = _run(session, probe)
        for bias in _biases(node, constants, logits.shape[1]):
            again = features @ weight.T + bias
            if np.abs(again - logits).max() <= SAME_LOGITS * (1 + np.abs(logits).max()):
                return session, Head((weight,), (bias,))
    return "no Gemm or MatMul of the graph makes its logits; name its weight with last_linear", None


def _cut(graph: ModelProto, output: str) -> ModelProto:
    cut = copy.deepcopy(graph)
    # Nodes behind the new output are dropped by onnxruntime itself.
    del cut.graph.output[:]
    cut.graph.output.append(onnx.ValueInfoProto(name=output))  # its type is inferred
    return cut


def _biases(node: Any, constants: dict[str, NDArray[Any]], classes: int) -> list[NDArray[Any]]:
    """A Gemm's bias; for a MatMul every constant vector (K,) that an Add may use, or none."""
    none = np.zeros(classes, np.float32)
    if len(node.input) > 2:  # of a Gemm alone
        bias = constants.get(node.input[2])
        fits = bias is not None and bias.shape in ((), (1,), (classes,), (1, 1), (1, classes))
        return [none + bias.reshape(-1)] if bias is not None and fits else []
    vectors = [] if node.op_type == "Gemm" else [v for v in constants.values() if v.shape == (classes,)]
    return [*vectors, none]
