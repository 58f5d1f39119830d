"""An ONNX graph's own word on its scores: the output that holds them, what makes them, and class names.

Types, operators and names decide, never numbers. A graph is read as onnx loads it, a ``ModelProto``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calib_serve.core.errors import ModelError
from calib_serve.scores.kinds import MADE, MadeBy
from calib_serve.scores.table import few

_PASS = frozenset(
    {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Dropout", "ZipMap"}
    | {"QuantizeLinear", "DequantizeLinear"}
)
"""Operators whose first input is handed on, score by score."""
_PARTS = frozenset({"Slice", "Split", "Gather", "ArrayFeatureExtractor"})
_LAYERS = frozenset(
    {"Gemm", "MatMul", "Conv", "Einsum", "FusedMatMul", "MatMulNBits"}
    | {"MatMulInteger", "QLinearMatMul", "QLinearConv", "ConvInteger", "QGemm"}
)
_LINEAR = frozenset({"Add", "Sub", "Mul", "Div", "Sum", "GlobalAveragePool", "AveragePool", "ReduceMean"})
"""Operators that leave what linear layers make what it is: biases, scales and pooling."""
_CLASSIFIERS = frozenset({"LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier", "ZipMap"})
_NAMES = ("classlabels_strings", "classlabels_int64s", "classlabels_ints")
_METADATA = ("names", "class_names", "classes", "labels", "id2label")
"""Keys under which exporters write class names beside the graph; ultralytics writes ``names``."""
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_WHOLE = {6: "<i4", 7: "<i8"}
"""Types of onnx's whole numbers, and numpy's."""
_FLOATS = ("tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)")

SAME_LOGITS = 1e-4
"""How far scores may be from the same sums in another order, relative to the largest."""


@dataclass(frozen=True)
class GraphOutput:
    """An output as a runtime declares it.

    Args:
        name: Its name.
        type: Its type, such as "tensor(float)".
        shape: Its sizes; None or a name where they are free.
    """

    name: str
    type: str
    shape: Sequence[int | str | None] = ()

    @property
    def may_hold_scores(self) -> bool:
        """Whether it may hold a row of scores a sample: floats (n, K), (n,), (n, K, 1), or maps."""
        if self.type.startswith("seq(map(") and self.type.endswith("tensor(float)))"):
            return True
        return self.type in _FLOATS and len(self._sizes) <= 1

    @property
    def _sizes(self) -> list[int | str | None]:
        return [size for size in self.shape[1:] if size != 1]

    def fits(self, classes: int, *, column: bool) -> bool:
        """Whether its declared sizes leave room for scores of so many classes; of two, for one column.

        Args:
            classes: Number of classes, K.
            column: Whether one column was fitted: of a vector (n,) alone nothing says which class it is of.
        """
        stated = [size for size in self._sizes or [1] if isinstance(size, int)]
        one = stated == [1] and classes == 2 and (column or len(self.shape) > 1)
        return not stated or stated == [classes] or one or self.type.startswith("seq(")

    def __str__(self) -> str:
        return f"{self.name!r} {self.type} {list(self.shape)}"


class GraphReader:
    """The nodes and constants of a graph, by the tensors that they make.

    Args:
        model: The file, as onnx loads it.
    """

    def __init__(self, model: Any) -> None:
        self.model, graph = model, model.graph
        self._makers = {name: node for node in graph.node for name in node.output if name}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                self._constants[node.output[0]] = _attribute(node, "value")

    def choose(self, outputs: Sequence[GraphOutput], said: str | None = None) -> tuple[str, str]:
        """Name the output that holds the scores, as ``said``, else the only one that may, and its tensor.

        A label is none, whatever its place.

        Args:
            outputs: The graph's outputs.
            said: Name of an output, or of a tensor inside.

        Raises:
            ModelError: Where several outputs may hold scores, or none; it names them.
        """
        made = {name: node.op_type for name, node in self._makers.items()}
        whole = {self._root(one.name, _PASS | _PARTS) for one in outputs if one.may_hold_scores}
        hint = f"; all are of {whole.pop()!r} inside" if len(whole) == 1 else ""
        name = choose_scores(outputs, said, made, hint=hint)
        return name, self._numbers(name)

    def made_by(self, tensor: str) -> MadeBy:
        """What makes the scores in ``tensor``, as far as the graph's operators prove it."""
        node = self._makers.get(self._root(tensor, _PASS))
        if node is not None and node.domain == "" and node.op_type in MADE:
            return node.op_type  # type: ignore[no-any-return]
        ends, seen, todo = set[str](), set(self._constants), [tensor]
        while todo:
            name = self._root(todo.pop(), _PASS)
            node = self._makers.get(name)
            if name in seen:
                continue
            seen.add(name)
            if node is not None and node.domain == "" and node.op_type in _LINEAR:
                todo += node.input
            else:
                ends.add("layer" if node is not None and node.op_type in _LAYERS else "")
        return "layer" if ends == {"layer"} else ""

    def class_names(self, tensor: str, classes: int) -> tuple[str, ...]:
        """The classes' own names in the order of the scores in ``tensor``; () where the graph has none.

        They are those of a ZipMap, of a classifier's operator, of strings that a label is taken from, or of
        the metadata. Numbers 0 to K - 1 are places, and no names.

        Args:
            tensor: Name of the scores.
            classes: Number of classes, K.
        """
        scores = set(self._chain(tensor))
        found = [(names, chain) for names, chain in self._all_names() if len(names) == classes]
        # A graph of two heads has a label of each: it is of the scores that it is chosen by.
        own = {names for names, chain in found if scores & chain} or {names for names, _ in found}
        own = own or {names for names in self._metadata() if len(names) == classes}
        if len(own) > 1:
            raise ModelError(
                f"the graph names its classes in several orders: {' and '.join(map(few, sorted(own)))}; "
                "export it with one of them"
            )
        names = own.pop() if own else ()
        return () if names == tuple(map(str, range(classes))) else names

    def varying(self, tensor: str) -> list[str]:
        """Describe the nodes before ``tensor`` that draw by chance, or are in training mode."""
        draws = {("", kind) for kind in _RANDOM}
        nodes = self._before(tensor)
        return [_described(n) for n in nodes if (n.domain, n.op_type) in draws or self._drops(n)]

    def of_batch(self, tensor: str) -> list[str]:
        """Describe the nodes before ``tensor`` that normalise by the batch, as in training."""
        return [_described(node) for node in self._before(tensor) if _attribute(node, "training_mode")]

    def _numbers(self, name: str) -> str:
        """The tensor of an output, which is the one before a ZipMap for maps."""
        node = self._makers.get(name)
        return str(node.input[0]) if node is not None and node.op_type == "ZipMap" else name

    def _root(self, name: str, through: frozenset[str]) -> str:
        """Go back from a tensor through operators that hand numbers on."""
        while (node := self._makers.get(name)) is not None and node.op_type in through and node.input:
            name = node.input[0]
        return name

    def _chain(self, name: str) -> Iterator[str]:
        """Yield the tensors before ``name``, up to what makes the scores of features."""
        through = _PASS | {*MADE, "Normalizer", "Div", "Concat", "Exp"}
        while True:
            yield name
            node = self._makers.get(name)
            if node is None:
                return
            yield from node.output
            if node.op_type not in through or not node.input:
                return
            name = node.input[0]

    def _all_names(self) -> Iterator[tuple[tuple[str, ...], set[str]]]:
        """Yield the class names of each output that has some, with the tensors that they belong to."""
        for output in self.model.graph.output:
            # Before the ZipMap there may be another node that names the classes.
            name = self._root(output.name, _PASS - {"ZipMap"})
            node = self._makers.get(name)
            if node is None:
                continue
            if node.op_type in _CLASSIFIERS:
                names = next((tuple(map(_text, v)) for one in _NAMES if (v := _attribute(node, one))), ())
                yield names, {*node.output, *self._chain(node.input[0])}
            elif node.op_type in ("ArrayFeatureExtractor", "Gather"):
                if chosen := self._chosen_by(node.input[1]):
                    yield self._texts(node.input[0]), set(self._chain(chosen))
            elif node.op_type == "LabelEncoder" and (chosen := self._chosen_by(node.input[0])):
                keys, values = _attribute(node, "keys_int64s"), _attribute(node, "values_strings")
                named = dict(zip(keys or (), values or (), strict=False))
                if sorted(named) == list(range(len(named))):
                    yield tuple(_text(named[key]) for key in sorted(named)), set(self._chain(chosen))

    def _chosen_by(self, index: str) -> str | None:
        """The scores whose largest an index is; None where it is another index."""
        node = self._makers.get(self._root(index, _PASS | {"Gather", "Slice"}))
        return node.input[0] if node is not None and node.op_type in ("ArgMax", "TopK") else None

    def _texts(self, name: str) -> tuple[str, ...]:
        """The texts or whole numbers of a constant; () for another."""
        tensor = self._constants.get(self._root(name, _PASS))
        if tensor is None:
            return ()
        if tensor.string_data:
            return tuple(map(_text, tensor.string_data))
        held = np.frombuffer(tensor.raw_data, _WHOLE[tensor.data_type]) if tensor.data_type in _WHOLE else ()
        return tuple(map(str, [*held, *tensor.int64_data, *tensor.int32_data]))

    def _metadata(self) -> Iterator[tuple[str, ...]]:
        """Yield lists of class names in the file's metadata."""
        for entry in self.model.metadata_props:
            if entry.key in _METADATA:
                try:
                    held = ast.literal_eval(entry.value)
                except (ValueError, SyntaxError, MemoryError, RecursionError):
                    held = None
                if isinstance(held, dict) and sorted(map(str, held)) == sorted(map(str, range(len(held)))):
                    held = [held.get(k, held.get(str(k))) for k in range(len(held))]
                if isinstance(held, (list, tuple)):
                    yield tuple(map(str, held))

    def _before(self, tensor: str) -> Iterator[Any]:
        """Yield the nodes that a tensor is computed by, each once."""
        seen, todo = set[str](), [tensor]
        while todo:
            name = todo.pop()
            node = self._makers.get(name)
            if node is None or name in seen:
                continue
            seen.update(node.output)
            yield node
            todo += node.input
            for one in node.attribute:
                # A branch reads tensors of the graph around it.
                yield from one.g.node
                todo += [name for inner in one.g.node for name in inner.input]

    def _drops(self, node: Any) -> bool:
        """Whether a Dropout's third input says that it is in training."""
        if node.op_type != "Dropout" or len(node.input) < 3:
            return False
        tensor = self._constants.get(node.input[2])
        return tensor is None or any(tensor.raw_data) or any(tensor.int32_data)


def choose_scores(
    outputs: Sequence[GraphOutput],
    said: str | None,
    made: Mapping[str, str],
    *,
    classes: int | None = None,
    column: bool = False,
    hint: str = "",
) -> str:
    """Name the output that holds the scores: as ``said``, else the only one that may.

    A label is none, and neither are the largest scores of a TopK, whatever its place.

    Args:
        outputs: The graph's outputs.
        said: Name of an output, or of a tensor inside.
        made: The operator of each tensor, by name.
        classes: Number of classes, where it is known.
        column: Whether one column of two classes was fitted.
        hint: What several outputs have in common, for the message.

    Raises:
        ModelError: Where several outputs may hold scores, or none; it names them.
    """
    if said is not None:
        if said not in made:
            raise ModelError(
                f"the graph has no tensor {said!r}; --output-name (output_name=) is one of "
                f"{[one.name for one in outputs]}, or a tensor inside"
            )
        if made[said] == "TopK":
            raise ModelError(
                f"{said!r} holds the largest scores, sorted, and not each class's; name the tensor that they "
                "are taken from, --output-name (output_name=)"
            )
        return said
    found = [one for one in outputs if one.may_hold_scores and made.get(one.name) != "TopK"]
    if classes is not None:
        # A sigmoid of one number a sample is of class 1.
        ones = {one.name for one in found if column or made.get(one.name) == "Sigmoid"}
        found = [one for one in found if one.fits(classes, column=one.name in ones)]
    if len(found) == 1:
        return found[0].name
    if not found:
        wide = "K" if classes is None else classes
        raise ModelError(
            f"no output is declared as scores (n, {wide}) of floating-point numbers: {_listed(outputs)}; "
            "name the tensor inside that holds them: --output-name (output_name=)"
        )
    raise ModelError(
        f"several outputs may hold the scores: {_listed(found)}{hint}; name one: --output-name (output_name=)"
    )


def refuse_varying(runs: Sequence[Any], by_chance: Sequence[str], of_batch: Sequence[str] = ()) -> None:
    """Raise ModelError where a graph answers the same inputs in two ways, or by their batch.

    Args:
        runs: Scores of two runs on the same inputs.
        by_chance: Nodes that ``varying`` described.
        of_batch: Nodes that ``of_batch`` described.
    """
    first, again = (np.asarray(one, np.float64) for one in runs)
    scale = float(np.abs(first[np.isfinite(first)]).max(initial=0.0))
    if not np.allclose(first, again, rtol=SAME_LOGITS, atol=SAME_LOGITS * scale, equal_nan=True):
        nodes = ", ".join([*by_chance, *of_batch]) or "a node that the graph does not tell"
        raise ModelError(
            f"the graph answers the same inputs differently from run to run, by {nodes}: there is no one "
            "confidence to calibrate; export the model in evaluation mode (model.eval())"
        )
    if of_batch:
        raise ModelError(
            f"{', '.join(of_batch)} normalises by the batch, as in training: a sample's answer depends on "
            "those beside it; export the model in evaluation mode (model.eval())"
        )


def _described(node: Any) -> str:
    return f"{node.op_type} {(node.name or node.output[0])!r}"


def _attribute(node: Any, name: str) -> Any:
    """An attribute's value; None where it is not there."""
    for one in node.attribute:
        if one.name == name:
            return one.t if one.HasField("t") else list(one.strings) or list(one.ints) or one.i
    return None


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def _listed(outputs: Sequence[GraphOutput]) -> str:
    return ", ".join(map(str, outputs))
