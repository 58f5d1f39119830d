"""A fitted CalibratedClassifier as one ONNX file: skl2onnx converts it, the calibration is fused into it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FuseError, InputError, MissingDependency, ModelError, ShapeError
from calib_serve.fuse import open_session

try:
    import onnx
    import onnx_ir as ir
    import skl2onnx
    from onnx import helper, numpy_helper
    from onnx_ir.passes.common import RemoveUnusedNodesPass
    from skl2onnx._supported_operators import sklearn_operator_name_map as known_operators
    from skl2onnx.common import _container, data_types
    from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes

    from calib_serve.fuse import ROWS, FuseReport, fuse_onnx
except ImportError as error:
    raise MissingDependency(error.name or "skl2onnx", "sklearn") from error

TOLERANCE = 1e-4
"""How far the file's probabilities may be from ``predict_proba``, whose tails end somewhere."""

Array = NDArray[np.floating[Any]]
Feeds = dict[str, NDArray[Any]]

_OTHERWISE = (
    "skl2onnx may compute this classifier in another way or precision: try dtype='float64' or another "
    "response_method"
)

_BOOSTERS = {
    "LGBMClassifier": "onnxmltools.convert.lightgbm.operator_converters.LightGbm:convert_lightgbm",
    "XGBClassifier": "onnxmltools.convert.xgboost.operator_converters.XGBoost:convert_xgboost",
    "CatBoostClassifier": f"{__name__}:_catboost",
}
"""The function that converts each classifier of others."""

_OPSETS = {"": 18, "ai.onnx.ml": 3}
"""What every converter knows; onnxmltools' refuse newer ones."""


class FittedClassifier(Protocol):
    """The parts of a fitted CalibratedClassifier that are written."""

    artifact_: Artifact
    classes_: NDArray[Any]
    estimator_: Any
    response_method_: str

    def predict_proba(self, X: Any) -> Array:
        """Calibrated probabilities (n, K)."""
        ...


def write_onnx(
    model: FittedClassifier,
    path: str | Path,
    X: Any,
    *,
    returns: Literal["probabilities", "all"],
    dtype: Any,
) -> FuseReport:
    """Write the fitted ``model`` to ``path``, whole or not at all; see ``CalibratedClassifier.to_onnx``."""
    if returns not in ("probabilities", "all"):
        raise InputError(f"returns must be 'probabilities' or 'all', got {returns!r}")
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise InputError(f"dtype must be float32 or float64, got {dtype!r}")
    path, feeds = Path(path), _feeds(model.estimator_, X, np.dtype(dtype))
    raw, classes = model.response_method_ == "decision_function", len(model.classes_)
    graph = _converted(model.estimator_, feeds, raw=raw)
    graph = _logits(graph, feeds, classes) if raw else _without_noise(_shaped(graph, classes))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        source, fused = Path(folder, "raw.onnx"), Path(folder, "fused.onnx")
        onnx.save(graph, source)
        fitted = getattr(model.estimator_, model.response_method_)(X)
        outputs: Any = "logits" if raw else "probabilities"
        try:
            report = fuse_onnx(
                source, model.artifact_, fused, returns=returns, outputs=outputs, against=(feeds, fitted)
            )
        except FuseError as error:
            raise FuseError(f"{error}; {_OTHERWISE}") from error
        # In a file beside it first: a file at ``path`` has been proved.
        _check(fused, feeds, model.predict_proba(X))
        fused.replace(path)
    return report


def _feeds(estimator: Any, X: Any, dtype: np.dtype[Any]) -> Feeds:
    """The graph's inputs: a frame's columns by name where they are of several types, or chosen by name."""
    columns = list(getattr(X, "columns", ()))
    by_name = columns and (
        "ColumnTransformer" in str(estimator) or not all(kind.kind in "fiub" for kind in X.dtypes)
    )
    if by_name:
        arrays = {str(name): np.asarray(X[name]).reshape(-1, 1) for name in columns}
        found = {name: a.astype(dtype if a.dtype.kind in "fiub" else str) for name, a in arrays.items()}
    else:
        found = {"X": np.asarray(X).astype(dtype)}
    shapes = {array.shape[0] if array.ndim == 2 else 0 for array in found.values()}
    if min(shapes, default=0) < ROWS:
        raise ShapeError(f"X must be (n, d) with n at least {ROWS} to compare on, got {np.shape(X)}")
    return found


def _types(feeds: Feeds) -> list[tuple[str, Any]]:
    """The inputs' types, as skl2onnx has them."""
    kinds = {"U": data_types.StringTensorType, "f": data_types.FloatTensorType}
    kinds["d"] = data_types.DoubleTensorType
    return [
        (name, kinds["d" if a.dtype == np.float64 else a.dtype.kind]([None, a.shape[1]]))
        for name, a in feeds.items()
    ]


@contextmanager
def _whole_numbers() -> Iterator[None]:
    """Let skl2onnx write truth values as 0 and 1: it gives booleans, which protobuf 7 refuses as numbers."""
    make = _container.make_node

    def _make(*given: Any, **attributes: Any) -> Any:
        for name, value in attributes.items():
            if isinstance(value, list) and {bool, np.bool_} & {*map(type, value)}:
                attributes[name] = [int(one) for one in value]
        return make(*given, **attributes)

    _container.make_node = _make
    try:
        yield
    finally:
        _container.make_node = make


def _catboost(scope: Any, operator: Any, container: Any) -> None:
    """Convert by the trees of the graph that CatBoost writes itself."""
    trees = import_module("catboost.utils").convert_to_onnx_object(operator.raw_operator).graph.node[0]
    names = [output.full_name for output in operator.outputs]
    given = {a.name: helper.get_attribute_value(a) for a in trees.attribute}
    container.add_node(
        trees.op_type, operator.inputs[0].full_name, names, op_domain=trees.domain, op_version=3, **given
    )


def _label_and_scores(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """Declare a booster's outputs, as skl2onnx does for classes that derive from scikit-learn's alone."""
    one = scope.declare_local_operator(known_operators[type(model)], model)
    one.inputs = inputs
    for name, kind in (("label", data_types.Int64TensorType), ("scores", data_types.FloatTensorType)):
        one.outputs.append(scope.declare_local_variable(name, kind()))
    return one.outputs


def _register(last: Any) -> None:
    """Register a converter of LightGBM, XGBoost or CatBoost, where nobody has: skl2onnx has none."""
    name = type(last).__name__
    if name not in _BOOSTERS or type(last) in known_operators:
        return
    module, _, function = _BOOSTERS[name].partition(":")
    try:
        converter = getattr(import_module(module), function)
    except ImportError as error:
        raise FuseError(f"skl2onnx needs a converter of {name}: pip install 'onnxmltools>=1.16'") from error
    skl2onnx.update_registered_converter(
        type(last),
        f"CalibServe{name}",
        calculate_linear_classifier_output_shapes,
        converter,
        parser=_label_and_scores,
        options={"nocl": [True, False], "zipmap": [True, False, "columns"]},
    )


def _without_link(found: onnx.ModelProto) -> bool:
    """Let a booster's trees give their sums, as its decision function does; False where there are none."""
    links = [a for n in found.graph.node for a in n.attribute if a.name == "post_transform"]
    for link in links:
        link.s = b"NONE"
    return bool(links)


def _converted(estimator: Any, feeds: Feeds, *, raw: bool) -> onnx.ModelProto:
    """Convert the classifier to a graph of one output: its decision function if ``raw``, else probs."""
    estimator, last = _inner(estimator), _last(estimator)
    _register(last)
    scores = {"raw_scores": True} if raw else {}
    # Not every converter knows every option, and there is no public list of them.
    for options in ({**scores, "zipmap": False}, scores, {"zipmap": False}):
        try:
            with warnings.catch_warnings(), _whole_numbers():
                # skl2onnx reads attributes that scikit-learn is about to remove: no concern of the caller's.
                warnings.simplefilter("ignore", FutureWarning)
                found = skl2onnx.to_onnx(
                    estimator,
                    initial_types=_types(feeds),
                    options={id(last): options},
                    target_opset=_OPSETS,
                )
        except NameError:
            continue
        except Exception as error:  # skl2onnx raises a dozen unrelated types
            why = " ".join(str(error.__cause__ or error).split())
            if "_TemperatureScaling" in why:
                why = "it has no temperature; CalibratedClassifier(method='temperature') fits and writes one"
            texts = [name for name, array in feeds.items() if array.dtype.kind == "U"]
            if texts and type(last).__name__ in _BOOSTERS and estimator is last:
                why = f"encode texts before it: make_column_transformer((OneHotEncoder(), {texts}), ...)"
            raise FuseError(f"skl2onnx cannot convert this {type(last).__name__}: {_cut(why)}") from error
        if raw and "raw_scores" not in options and not _without_link(found):
            continue
        if len(found.graph.output) != 2:
            raise FuseError(f"the graph of {type(last).__name__} has not a label and scores")
        graph = ir.from_proto(found)
        del graph.graph.outputs[0]  # the label, which ignores the calibration
        RemoveUnusedNodesPass()(graph)
        changed: onnx.ModelProto = ir.to_proto(graph)
        return changed
    raise FuseError(
        f"skl2onnx gives no decision_function of {type(last).__name__}; where it has probabilities, fit with "
        "response_method='predict_proba'"
    )


def _cut(text: str) -> str:
    """The first sentences of a text, of some 600 characters."""
    return text if len(text) < 600 else text[: text.rfind(". ", 0, 600) + 1 or 600]


def _inner(estimator: Any) -> Any:
    """The classifier itself, where it was frozen or found by a search."""
    while hasattr(estimator, "best_estimator_") or type(estimator).__name__ == "FrozenEstimator":
        estimator = getattr(estimator, "best_estimator_", None) or estimator.estimator
    return estimator


def _last(estimator: Any) -> Any:
    estimator = _inner(estimator)
    return _last(estimator.steps[-1][1]) if hasattr(estimator, "steps") else estimator


def _logits(graph: onnx.ModelProto, feeds: Feeds, classes: int) -> onnx.ModelProto:
    """A decision function as logits (n, K); of two classes d (n, 1) or (-d, d) (n, 2) becomes (0, d).

    By a MatMul in any case: the calibration folds into it, and its output has a shape where scikit-learn's
    converters declare none, or a wrong one.
    """
    some = {name: array[:1] for name, array in feeds.items()}
    scores = _run(graph.SerializeToString(), some, graph.graph.output[0].name)
    if scores.shape[-1] not in (classes, 1 if classes == 2 else classes):
        raise FuseError(f"skl2onnx's scores are {scores.shape}, not (n, {classes})")
    weight = np.eye(classes, dtype=scores.dtype)[-scores.shape[-1] :]
    if classes == 2:
        weight[0, 0] = 0
    value = numpy_helper.from_array(weight, "of_scores")
    return _with(graph, "decision_logits", classes, [value], ("MatMul", "{scores}", "of_scores"))


def _shaped(graph: onnx.ModelProto, classes: int) -> onnx.ModelProto:
    """Declare the shape of the input of a Softmax: onnx infers none behind a Scaler."""
    known = {value.name for value in graph.graph.value_info}
    kind = graph.graph.output[0].type.tensor_type.elem_type
    for node in graph.graph.node:
        if node.op_type == "Softmax" and node.input[0] not in known:
            value = helper.make_tensor_value_info(node.input[0], kind, [None, classes])
            graph.graph.value_info.append(value)
    return graph


def _without_noise(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Probabilities of trees, with 0 in place of rounding noise below 2e-6, whose logarithm must not count.

    A forest's probabilities are means of shares of samples, so they are 0 or well above; in float32 their
    sum is off by some 1e-7, and one of two classes is 1 minus the other.
    """
    last = next(n for n in graph.graph.node if graph.graph.output[0].name in n.output)
    kinds = {a.name: a.s for a in last.attribute}
    if last.op_type != "TreeEnsembleClassifier" or kinds.get("post_transform", b"NONE") != b"NONE":
        return graph
    kind = graph.graph.output[0].type.tensor_type
    values = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("least", 2e-6), ("zero", 0))]
    kind.elem_type = onnx.TensorProto.FLOAT  # whatever the input's type
    noise = ("Less", "{scores}", "least")
    return _with(
        graph,
        "tree_shares",
        kind.shape.dim[1].dim_value,
        values,
        noise,
        ("Where", "{last}", "zero", "{scores}"),
    )


def _with(
    graph: onnx.ModelProto, name: str, classes: int, values: list[onnx.TensorProto], *nodes: tuple[str, ...]
) -> onnx.ModelProto:
    """Append ``nodes`` behind the scores.

    They give ``name`` (n, K), of the type of the last of ``values``.
    """
    scores = graph.graph.output[0].name
    graph.graph.initializer.extend(values)
    last = ""
    for i, (op, *inputs) in enumerate(nodes):
        given = [v.format(scores=scores, last=last) for v in inputs]
        last = name if i == len(nodes) - 1 else f"{name}.{i}"
        graph.graph.node.append(helper.make_node(op, given, [last]))
    del graph.graph.output[:]
    graph.graph.output.append(helper.make_tensor_value_info(name, values[-1].data_type, [None, classes]))
    return graph


def _run(source: Path | bytes, feeds: Feeds, output: str) -> Array:
    try:
        session = open_session(source)
    except ModelError as error:
        raise FuseError(f"skl2onnx's graph does not run; try another dtype: {error}") from error
    return np.asarray(session.run([output], feeds)[0])


def _check(fused: Path, feeds: Feeds, expected: Array) -> None:
    got = _run(fused, feeds, "probabilities")
    worst = float(np.abs(got - expected).max()) if got.shape == expected.shape else np.inf
    if not worst <= TOLERANCE:
        raise FuseError(
            f"the ONNX file's probabilities are {worst:.2g} from predict_proba, more than {TOLERANCE:g}: "
            f"a table of bins may have its edge where scores lie; {_OTHERWISE}, or a method without bins"
        )
