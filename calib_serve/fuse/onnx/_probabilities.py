"""Probabilities, decisions and requested outputs from calibrated logits, in standard operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import Artifact, Mixture, PredictionSets, ProbTable
from calib_serve.core.errors import FuseError
from calib_serve.fuse._decisions import (
    NAMES,
    abstain_least,
    act_least,
    decision_names,
    inner_edges,
    lac_least,
    rank_offsets,
    rounded_down,
)
from calib_serve.fuse.onnx._graph import Editor, dtype_of, users, work_type
from calib_serve.fuse.onnx._tail import DECISIONS, Tail, class_axis, ignores_shift
from calib_serve.scores import LABELS, LEAST, PROBABILITIES


def cast(editor: Editor, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Cast ``value`` to ``dtype``, unless it has it."""
    if value.dtype == dtype:
        return value
    return editor.node("Cast", [value], {"to": dtype.value})


def _softmax(editor: Editor, logits: ir.Value) -> ir.Value:
    """Make probabilities of logits."""
    return editor.node("Softmax", [logits], {"axis": -1})


def clamped_log(editor: Editor, probs: ir.Value) -> ir.Value:
    """Make log-probabilities, finite where a probability is 0."""
    dtype = dtype_of(probs)
    work = work_type(dtype)  # in half precision, LEAST would be 0
    least = editor.number(LEAST, work, "least")
    return cast(editor, editor.node("Log", [editor.node("Max", [cast(editor, probs, work), least])]), dtype)


def log_odds(editor: Editor, probs: ir.Value) -> ir.Value:
    """Make log p - log(1 - p) of each probability on its own, finite."""
    one = editor.number(1.0, dtype_of(probs), "number")
    rest = clamped_log(editor, editor.node("Sub", [one, probs]))
    return editor.node("Sub", [clamped_log(editor, probs), rest])


def mix(editor: Editor, logits: ir.Value, step: Mixture, classes: int) -> ir.Value:
    """Mix probabilities of logits, both (n, K): one softmax over (n, M, K), and a weighted sum."""
    dtype = dtype_of(logits)
    scales = editor.number(step.scales[:, None], dtype, "scales")
    # All temperatures in one softmax: the graph does not grow with their number.
    parts = _softmax(editor, editor.node("Mul", [widen(editor, logits, 1), scales]))
    weights = editor.number(step.weights[None, :-1], dtype, "weights")
    mixed = editor.node("MatMul", [weights, parts])
    summed = editor.node("Squeeze", [mixed, _axes(editor, 1)])
    uniform = float(step.weights[-1]) / classes
    return editor.node("Add", [summed, editor.number(uniform, dtype, "uniform")])


def look_up(editor: Editor, probs: ir.Value, step: ProbTable, classes: int) -> ir.Value:
    """Map probabilities by the table, both (n, K)."""
    if len(step.edges) > 1:
        # Uniform where every class falls into a bin of value 0, as the sum is of values of at least LEAST.
        looked_up = of_each(editor, probs, step.edges, np.maximum(step.values, LEAST))
        total = reduce(editor, "ReduceSum", looked_up, keepdims=1)
        return editor.node("Div", [looked_up, total])
    dtype = dtype_of(probs)
    top = editor.node("ArgMax", [probs], {"axis": 1, "keepdims": 1})
    ids = editor.number(np.arange(classes)[None], ir.DataType.INT64, "ids")
    is_top = editor.node("Equal", [ids, top])
    old = reduce(editor, "ReduceMax", probs, keepdims=1)
    new = _gather(editor, step.values[0], count_below(editor, old, step.edges, keepdims=1), dtype)
    # At least LEAST: then the sum is never 0, and no runtime divides by a number too small for it.
    least = editor.node("Max", [probs, editor.number(LEAST, dtype, "least")])
    others = editor.node("Where", [is_top, editor.number(0, dtype, "zero"), least])
    # Summing the others is exact where 1 - old is rounded.
    rest = reduce(editor, "ReduceSum", others, keepdims=1)
    factor = editor.node("Div", [editor.node("Sub", [editor.number(1, dtype, "one"), new]), rest])
    scaled = editor.node("Mul", [others, factor])
    return editor.node("Where", [is_top, new, scaled])


def of_each(editor: Editor, probs: ir.Value, edges: Any, values: Any) -> ir.Value:
    """Look each column of (n, R) up in its own row: ``edges`` (R, B - 1), ``values`` (R, B)."""
    rows, bins = values.shape
    # Every probability lies above an edge of -1, which counts for the bins of the rows before.
    edges = np.concatenate([np.full((rows, 1), -1.0), edges], axis=1)
    counts = np.ones((rows, bins), np.int32)
    counts[:, 0] = np.arange(rows) * bins
    index = count_below(editor, widen(editor, probs, 1), edges.T[None], counts.T[None], keepdims=0)
    return _gather(editor, values.reshape(-1), index, dtype_of(probs))


def count_below(editor: Editor, value: ir.Value, edges: Any, counts: Any = 1, *, keepdims: int) -> ir.Value:
    """Count the edges below each value, along axis 1: its bin, for bins (lo, hi].

    ``counts``, of the edges' shape and any integer type, are what each edge counts for: an Add behind the sum
    would do it too, but OpenVINO fuses the two, and adds wrongly to integers.
    """
    dtype, counts = dtype_of(value), np.asarray(counts)
    inner = np.asarray(edges) if dtype == ir.DataType.DOUBLE else rounded_down(np.asarray(edges))
    below = editor.node("Greater", [value, editor.number(inner, dtype, "edges")])
    count = ir.DataType.from_numpy(counts.dtype)
    numbers = [editor.number(n, count, "counts") for n in (counts, 0)]
    counted = editor.node("Where", [below, *numbers])
    return reduce(editor, "ReduceSum", counted, keepdims=keepdims)


def reduce(editor: Editor, op: str, value: ir.Value, *, keepdims: int) -> ir.Value:
    """Reduce over the classes; opset 18 moved the axes of ReduceMax from an attribute to an input."""
    if op != "ReduceSum" and editor.opset < 18:
        return editor.node(op, [value], {"axes": [1], "keepdims": keepdims})
    return editor.node(op, [value, _axes(editor, 1)], {"keepdims": keepdims})


def _gather(editor: Editor, table: Any, index: ir.Value, dtype: ir.DataType) -> ir.Value:
    return editor.node("Gather", [editor.number(table, dtype, "values"), index])


def widen(editor: Editor, value: ir.Value, axis: int) -> ir.Value:
    """Add one more axis, of size 1."""
    return editor.node("Unsqueeze", [value, _axes(editor, axis)])


def _axes(editor: Editor, axis: int) -> ir.Value:
    return editor.number([axis], ir.DataType.INT64, "axis")


# --- Scores of other shapes -------------------------------------------------------------------------


def is_flat(value: ir.Value) -> bool:
    """Whether a value is known to be (n, K)."""
    return value.shape is not None and len(value.shape) == 2


def flat(editor: Editor, value: ir.Value) -> ir.Value:
    """Flatten a value (n, K, 1, ...), (n, 1, K) or (n,) to (n, K) or (n, 1)."""
    return value if is_flat(value) else editor.node("Flatten", [value], {"axis": 1})


def unflat(editor: Editor, value: ir.Value, shape: ir.Shape | None) -> ir.Value:
    """Restore the ``shape`` that ``flat`` flattened to (n, K); unchanged where it is not known."""
    if shape is None or len(shape) == 2:
        return value
    extra = [axis for axis in range(1, len(shape)) if axis != class_axis(shape)] or [1]
    axes = editor.number(extra, ir.DataType.INT64, "axes")
    return editor.node("Squeeze" if len(shape) == 1 else "Unsqueeze", [value, axes])


def flatten_scores(editor: Editor, tail: Tail) -> tuple[Tail, str]:
    """Put a Flatten before the activation and an Unsqueeze after it: other readers see the same values."""
    wide, shape, head, followers = tail.logits, tail.logits.shape, tail.activation, tail.followers
    reading = [n for n in users(wide) if n in followers]
    narrow = flat(editor, wide)
    old, scores = wide, narrow
    if head is not None:
        head.replace_input_with(0, narrow)
        head.attributes.pop("axis", None)  # the last one, by default
        old = scores = head.outputs[0]
        scores.shape = narrow.shape
    readers = tail.readers(old)
    back = unflat(editor, scores, shape)
    node = back.producer()
    assert node is not None
    if head is not None and reading:
        shown = unflat(editor, narrow, shape)
        editor.move(wide, shown, reading)
        followers |= {n for n in (shown.producer(),) if n is not None}
    rest = tuple(n for n in tail.path if n is not head)
    path = (*(() if head is None else (head,)), node, *rest)
    output = tail.output
    editor.move(old, back, readers)
    if old.is_graph_output():
        (shown,) = editor.replace_output(old, [back], [str(old.name)])
        output = shown if old is output else output
    tail = replace(tail, logits=narrow, output=output, path=path, followers=followers)
    return tail, f"scores of another shape than (n, K) flattened (Flatten, {node.op_type} added)"


def widen_column(editor: Editor, tail: Tail) -> tuple[Tail, str]:
    """Turn a binary model's one score into two logits and a softmax; the output keeps its one column.

    A Sigmoid becomes the Softmax of (0, z), of which class 1 is shown; a bare logit the difference of two
    log-probabilities; a bare probability goes through its logarithm.
    """
    old, followers = tail.logits, tail.followers
    bare = tail.activation is None
    logits = _two_columns(editor, old, probability=bare and tail.outputs == "probability")
    if tail.outputs == "probability":
        scores = _softmax(editor, logits)
        column = editor.number([1], ir.DataType.INT64, "column")
        one = editor.node("Gather", [scores, column], {"axis": 1})
    else:
        scores, one = _odds(editor, logits)
    reading = [n for n in users(old) if n in followers]
    if not bare and reading:
        shown, odds = _odds(editor, logits)
        editor.move(old, odds, reading)
        followers |= {n for n in (shown.producer(),) if n is not None}
    # A Sigmoid goes with the column: the softmax of (0, z) is the same number.
    replaced = old if tail.activation is None else tail.activation.outputs[0]
    rest = tuple(node for node in tail.path if node is not tail.activation)
    tail = tail.replace_scores(editor, replaced, one)
    editor.remove_unused(replaced)
    nodes = tuple(node for value in (scores, one) if (node := value.producer()) is not None)
    tail = Tail(logits, tail.output, (*nodes, *rest), nodes[0], tail.outputs, followers)
    return tail, "one score a sample made two, as the calibration acts on both classes"


def _odds(editor: Editor, logits: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Make log-probabilities of two logits, and their difference: the one logit (n, 1)."""
    scores = editor.node("LogSoftmax", [logits], {"axis": 1})
    difference = editor.number(np.array([[-1.0], [1.0]]), dtype_of(logits), "odds")
    return scores, editor.node("MatMul", [scores, difference])


def _two_columns(editor: Editor, one: ir.Value, *, probability: bool) -> ir.Value:
    """Make (0, z) from a logit z (n, 1), or log(1 - p), log p from a probability."""
    dtype = dtype_of(one)
    if probability:
        rest = editor.node("Sub", [editor.number(1.0, dtype, "number"), one])
        return clamped_log(editor, editor.node("Concat", [rest, one], {"axis": 1}))
    pads = editor.number([0, 1, 0, 0], ir.DataType.INT64, "pads")
    return editor.node("Pad", [one, pads])


# --- Prediction sets, abstention and acts -----------------------------------------------------------


_INT = ir.DataType.INT64


def show_decisions(editor: Editor, probs: ir.Value, artifact: Artifact, own: ir.DataType) -> str:
    """Add an output for each decision of the artifact on ``probs``, float32 or float64; name them.

    ``own``: the type that confidences are returned in, by which is acted.
    """
    sets = artifact.sets
    of = _by_probability if sets is not None and sets.score == "lac" else _by_sum
    made = (
        None if sets is None else of(editor, probs, sets, artifact.classes),
        None if artifact.abstain is None else _abstain(editor, probs, artifact),
        _act(editor, probs, artifact, own) if "act" in decision_names(artifact) else None,
    )
    for name, value in zip(NAMES, made, strict=True):
        if value is not None:
            editor.add_output(value, name)
    return f"outputs {', '.join(decision_names(artifact))} by the calibrated probabilities"


def _by_probability(editor: Editor, probs: ir.Value, sets: PredictionSets, classes: int) -> ir.Value:
    dtype = dtype_of(probs)
    least = editor.number(lac_least(sets.threshold, dtype.numpy()), dtype, "least_of_set")
    likely = editor.node("GreaterOrEqual", [probs, least])
    top = editor.node("ArgMax", [probs], {"axis": 1, "keepdims": 1})
    ids = editor.number(np.arange(classes)[None], _INT, "ids")
    is_top = editor.node("Equal", [ids, top])
    return editor.node("Or", [likely, is_top])


def _by_sum(editor: Editor, probs: ir.Value, sets: PredictionSets, classes: int) -> ir.Value:
    """Mark classes (n, K) whose score, the probabilities summed above them, is within the threshold."""
    dtype = dtype_of(probs)
    size, axis = editor.number([classes], _INT, "classes"), editor.number(1, _INT, "axis")
    ranked, order = editor.nodes("TopK", [probs, size], {"axis": 1}, 2)
    order = _first_of_equals(editor, ranked, order, size=size, axis=axis, classes=classes)
    # Without its own probability: a class is in the set if those above it do not reach the threshold.
    summed = editor.node("CumSum", [ranked, axis], {"exclusive": 1})
    offsets = editor.number(rank_offsets(sets, classes)[None], dtype, "offsets_of_ranks")
    scores = editor.node("Add", [summed, offsets])
    placed = editor.node("ScatterElements", [probs, order, scores], {"axis": 1})
    exact = dtype == ir.DataType.DOUBLE
    most = editor.number(sets.threshold if exact else rounded_down(sets.threshold), dtype, "most_of_set")
    return editor.node("LessOrEqual", [placed, most])


def _first_of_equals(
    editor: Editor, ranked: ir.Value, order: ir.Value, *, size: ir.Value, axis: ir.Value, classes: int
) -> ir.Value:
    """Make ``order`` put the first class first where values of ``ranked`` (n, K) are equal.

    ONNX says so of TopK, but not every runtime does it. The values are numbered, equal ones alike; number and
    class make a key, no two of which are equal.
    """
    zero = editor.number(0, _INT, "zero")
    earlier = editor.number(np.maximum(np.arange(classes) - 1, 0), _INT, "earlier")
    before = editor.node("Gather", [ranked, earlier], {"axis": 1})
    falls = editor.node("Less", [ranked, before])
    steps = editor.node("Where", [falls, size, zero])
    keys = editor.node("Add", [editor.node("CumSum", [steps, axis]), order])
    keys, _ = editor.nodes("TopK", [keys, size], {"axis": 1, "largest": 0}, 2)
    return editor.node("Mod", [keys, size])


def _abstain(editor: Editor, probs: ir.Value, artifact: Artifact) -> ir.Value:
    dtype = dtype_of(probs)
    top = reduce(editor, "ReduceMax", probs, keepdims=0)
    least = editor.number(abstain_least(artifact, dtype.numpy()), dtype, "least_answered")
    answered = editor.node("GreaterOrEqual", [top, least])
    return editor.node("Not", [answered])  # also of NaN


def _act(editor: Editor, probs: ir.Value, artifact: Artifact, own: ir.DataType) -> ir.Value:
    """Act by the returned confidence, which receipts carry and the watch counts."""
    dtype = dtype_of(probs)
    shown = cast(editor, cast(editor, probs, own), dtype)
    top = reduce(editor, "ReduceMax", shown, keepdims=0)
    least = editor.number(act_least(artifact, dtype.numpy()), dtype, "least_acted_on")
    if least.shape:
        predicted = editor.node("ArgMax", [shown], {"axis": 1, "keepdims": 0})
        least = editor.node("Gather", [least, predicted])
    return editor.node("GreaterOrEqual", [top, least])


# --- The graph's outputs ----------------------------------------------------------------------------


Returns = Literal["same", "probabilities", "all"]
ALL = ("logits", "probabilities", "confidence", "predicted", "bin")


def keep_raw_scores(editor: Editor, tail: Tail, artifact: Artifact) -> str:
    """Add an output of the raw scores, "raw_" and the name of the calibrated one; describe the edit.

    The passes then leave the logits as they are. Raises FuseError where the name is taken, or an input shift
    leaves no raw scores in the graph.
    """
    if artifact.input_shift is not None and not artifact.input_shift.is_nothing:
        raise FuseError(
            "the input shift acts before the whole model, so there are no raw scores to keep with --keep-raw "
            "(keep_raw=True); run the raw model beside the calibrated one"
        )
    name, value = f"raw_{tail.output.name}", tail.logits
    types = editor.model.meta["types"]
    if str(tail.output.name) in types:  # not of a tensor inside
        types[name] = types[str(tail.output.name)]
    for node in tail.path:
        value = editor.copy(node, [value, *(v for v in node.inputs[1:] if v is not None)])
    if not tail.path:
        value = editor.node("Identity", [value])
    editor.add_output(value, name)
    return f"the raw scores are output {name!r}"


def open_scores(editor: Editor, tail: Tail) -> tuple[Tail, str]:
    """Add an activation to scores that the graph does not normalise, so that steps can act before it.

    Probabilities become their logarithm and a Softmax of it, those of labels their log-odds and a Sigmoid;
    log-probabilities get a LogSoftmax. None of it changes them.
    """
    old, name = tail.logits, tail.logits.name
    if tail.outputs == "probabilities":
        logits = clamped_log(editor, old)
        scores = _softmax(editor, logits)
        what = f"{name!r} holds probabilities: their logarithm is calibrated (Max, Log, Softmax added)"
    elif tail.outputs == "label_probabilities":
        logits = log_odds(editor, old)
        scores = editor.node("Sigmoid", [logits])
        what = f"{name!r} holds probabilities of labels: their log-odds are calibrated (Sigmoid added)"
    else:
        logits, scores = old, editor.node("LogSoftmax", [old], {"axis": -1})
        what = f"{name!r} holds log-probabilities: normalised again after calibration (LogSoftmax added)"
    tail = tail.replace_scores(editor, old, scores)
    activation = scores.producer()
    path = tail.path if activation is None else (activation, *tail.path)
    return Tail(logits, tail.output, path, activation, tail.outputs, tail.followers), what


def finish(editor: Editor, tail: Tail, artifact: Artifact, returns: Returns) -> tuple[Tail, str]:
    """Add the steps on probabilities, and the requested outputs.

    Nothing acts on the logits afterwards.
    """
    steps = [s for s in (artifact.mixture, artifact.table) if s is not None]
    if returns == "same" and not steps and not decision_names(artifact):
        return tail, ""
    own = dtype_of(tail.logits)
    probs = _probabilities(editor, tail, artifact)
    done = [f"{s.kind.replace('_', ' ')} put in as standard operators" for s in steps]
    if steps:
        _show_followers(editor, tail, probs)
        tail = _same(editor, tail, probs)
    if returns == "probabilities":
        tail = _show(editor, tail, [cast(editor, probs, own)], ["probabilities"])
        done.append("output 'probabilities'")
    elif returns == "all":
        logits = cast(editor, _unbounded(editor, probs, tail), own) if steps else tail.logits
        shown = cast(editor, probs, own)
        every = _all_of_labels if tail.outputs in LABELS else _all
        tail = _show(editor, tail, [logits, shown, *every(editor, shown, inner_edges(artifact))], list(ALL))
        done.append(f"outputs {', '.join(ALL)}")
    if decision_names(artifact):
        done.append(show_decisions(editor, probs, artifact, own))
    return tail, "; ".join(done)


def _probabilities(editor: Editor, tail: Tail, artifact: Artifact) -> ir.Value:
    dtype, activation, table = work_type(tail.logits.dtype), tail.activation, artifact.table
    if artifact.is_multilabel:
        if activation is not None and tail.logits.dtype == dtype:
            probs = activation.outputs[0]
        else:
            probs = editor.node("Sigmoid", [cast(editor, tail.logits, dtype)])
        return probs if table is None else of_each(editor, probs, table.edges, table.values)
    if artifact.mixture is not None:
        probs = mix(editor, cast(editor, tail.logits, dtype), artifact.mixture, artifact.classes)
    elif (
        activation is not None
        and activation.op_type == "Softmax"
        and is_flat(tail.logits)
        and tail.logits.dtype == dtype
    ):
        probs = activation.outputs[0]
    else:
        logits = flat(editor, cast(editor, tail.logits, dtype))
        probs = _softmax(
            editor, _two_columns(editor, logits, probability=False) if tail.one_column else logits
        )
    return probs if table is None else look_up(editor, probs, table, artifact.classes)


def _unbounded(editor: Editor, probs: ir.Value, tail: Tail) -> ir.Value:
    """Make unbounded scores from ``probs``: their logarithm, or the log-odds of labels."""
    return log_odds(editor, probs) if tail.outputs in LABELS else clamped_log(editor, probs)


def _same(editor: Editor, tail: Tail, probs: ir.Value) -> Tail:
    """Put ``probs`` in the place of the chosen output, with its name, type and meaning."""
    scores = tail.logits if tail.activation is None else tail.activation.outputs[0]
    shown = probs if tail.outputs in PROBABILITIES else _unbounded(editor, probs, tail)
    shown = cast(editor, shown, dtype_of(scores))
    tail = tail.replace_scores(editor, scores, shown)
    editor.remove_unused(scores)
    return tail


def _show_followers(editor: Editor, tail: Tail, probs: ir.Value) -> None:
    """Connect readers of the logits to the steps' result: decisions to probabilities, others to their log."""
    bridges = [n.outputs[0] for n in tail.followers & editor.made]
    for value in (tail.logits, *bridges):
        for node in (n for n in tail.readers(value) if n.op_type in DECISIONS and ignores_shift(n)):
            one = cast(editor, probs, dtype_of(value)) if node.op_type == "Hardmax" else probs
            editor.move(value, unflat(editor, one, value.shape), [node])
    others = [n for n in tail.readers(tail.logits) if n not in tail.path]
    if others:
        shown = cast(editor, _unbounded(editor, probs, tail), dtype_of(tail.logits))
        editor.move(tail.logits, shown, others)


def _show(editor: Editor, tail: Tail, values: list[ir.Value], names: list[str]) -> Tail:
    shown = editor.replace_output(tail.output, values, names)
    editor.remove_unused(tail.output)
    return replace(tail, output=shown[0])


def _all(editor: Editor, probs: ir.Value, edges: Any) -> list[ir.Value]:
    """Make confidence, predicted class and bin, (n,)."""
    confidence = reduce(editor, "ReduceMax", probs, keepdims=0)
    predicted = editor.node("ArgMax", [probs], {"axis": 1, "keepdims": 0})
    exact = cast(editor, reduce(editor, "ReduceMax", probs, keepdims=1), work_type(probs.dtype))
    number = count_below(editor, exact, edges[None], keepdims=0)
    return [confidence, predicted, number]


def _all_of_labels(editor: Editor, probs: ir.Value, edges: Any) -> list[ir.Value]:
    """Make confidence, decision (p above a half) and bin of each label, (n, L)."""
    dtype = dtype_of(probs)
    one, half = (editor.number(v, dtype, "number") for v in (1.0, 0.5))
    confidence = editor.node("Max", [probs, editor.node("Sub", [one, probs])])
    true = editor.node("Greater", [probs, half])
    predicted = cast(editor, true, ir.DataType.INT64)
    exact = widen(editor, cast(editor, confidence, work_type(dtype)), 1)
    number = count_below(editor, exact, edges[None, :, None], keepdims=0)
    return [confidence, predicted, number]
