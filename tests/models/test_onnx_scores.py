"""An ONNX file's scores are taken by type, operator and name: never its label, never by how numbers look."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from libraries import library
from onnx import TensorProto, numpy_helper
from onnx.helper import (
    make_graph,
    make_map_type_proto,
    make_model,
    make_node,
    make_opsetid,
    make_sequence_type_proto,
    make_tensor_type_proto,
    make_tensor_value_info,
    make_value_info,
)

from calib_serve.core.errors import CalibServeError, FuseError, InputError, ModelError
from calib_serve.fit import calibrate_model
from calib_serve.fuse import fuse_onnx
from calib_serve.models import load_model
from calib_serve.scores import GraphOutput, refuse_varying, softmax

D, K = 6, 3
NAMES = ("dog", "cat", "bird")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, D)).astype("f4")
WEIGHTS, BIAS = RNG.normal(size=(D, K)).astype("f4"), RNG.normal(size=K).astype("f4")
Z = X.astype(float) @ WEIGHTS + BIAS
Y = (softmax(Z * [0.4, 1.0, 1.6]).cumsum(axis=1) > RNG.random((600, 1))).argmax(axis=1)

SOFTMAX = make_node("Softmax", ["z"], ["p"], axis=1)
CHOICE = make_node("ArgMax", ["z"], ["k"], axis=1, keepdims=0)
SCORES = {name: make_tensor_value_info(name, TensorProto.FLOAT, ["n", K]) for name in "zpd"}
LABEL = make_tensor_value_info("label", TensorProto.STRING, ["n"])
MAPS = make_value_info(
    "maps",
    make_sequence_type_proto(
        make_map_type_proto(TensorProto.STRING, make_tensor_type_proto(TensorProto.FLOAT, []))
    ),
)


def save(path: Path, nodes: list[Any], outputs: list[Any], /, *, names: str = "", **constants: Any) -> Path:
    """A linear model on ``x`` with ``nodes`` behind its logits ``z``."""
    held = {"w": WEIGHTS, "b": BIAS, **constants}
    graph = make_graph(
        [make_node("Gemm", ["x", "w", "b"], ["z"]), *nodes],
        "g",
        [make_tensor_value_info("x", TensorProto.FLOAT, ["n", D])],
        outputs,
        [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()],
    )
    opsets = [make_opsetid("", 17), make_opsetid("ai.onnx.ml", 3)]
    model = make_model(graph, opset_imports=opsets, ir_version=8)
    if names:
        entry = model.metadata_props.add()
        entry.key, entry.value = "names", names
    onnx.save(model, path)
    return path


def named(how: str, path: Path) -> Path:
    """A model that calls its classes dog, cat, bird in one of the ways of exporters."""
    texts = np.array(NAMES, object)
    if how == "metadata":
        return save(path, [SOFTMAX], [SCORES["p"]], names=str(dict(enumerate(NAMES))))
    if how == "maps":
        zipmap = make_node("ZipMap", ["p"], ["maps"], domain="ai.onnx.ml", classlabels_strings=NAMES)
        return save(path, [SOFTMAX, zipmap], [MAPS])
    if how == "encoder":
        label = make_node(
            "LabelEncoder", ["k"], ["label"], domain="ai.onnx.ml", keys_int64s=[2, 0, 1],
            values_strings=["bird", "dog", "cat"],
        )  # fmt: skip
        return save(path, [SOFTMAX, CHOICE, label], [LABEL, SCORES["p"]])
    gather = make_node("Gather", ["texts", "k"], ["label"])
    return save(path, [SOFTMAX, CHOICE, gather], [LABEL, SCORES["p"]], texts=texts)


@pytest.mark.parametrize("how", ["metadata", "maps", "encoder", "strings"])
def test_class_ids_of_the_data_follow_the_graph_s_own_names(how: str, tmp_path: Path) -> None:
    path = named(how, tmp_path / "m.onnx")
    own = calibrate_model(path, X, Y, "vector", cross_validate=False)
    assert own.class_names == NAMES
    other = np.array([NAMES.index(name) for name in sorted(NAMES)])
    ids = np.argsort(other)[Y]  # bird 0, cat 1, dog 2
    turned = calibrate_model(path, X, ids, "vector", class_names=tuple(sorted(NAMES)), cross_validate=False)
    assert turned.class_names == NAMES
    np.testing.assert_allclose(turned.of_logits(Z), own.of_logits(Z), atol=1e-12)
    with pytest.raises(InputError, match=r"'ant'.*'dog', 'cat', 'bird'"):
        calibrate_model(path, X, Y, "vector", class_names=("ant", "bee", "cow"))


@pytest.mark.parametrize("how", ["metadata", "maps", "encoder", "strings"])
def test_an_artifact_of_another_order_is_not_fused(how: str, tmp_path: Path) -> None:
    path = named(how, tmp_path / "m.onnx")
    plain = save(tmp_path / "plain.onnx", [SOFTMAX], [SCORES["p"]])
    turned = calibrate_model(plain, X, Y, "vector", class_names=tuple(sorted(NAMES)), cross_validate=False)
    with pytest.raises(FuseError, match=r"'dog', 'cat', 'bird'.*'bird', 'cat', 'dog'"):
        fuse_onnx(path, turned, tmp_path / "f.onnx", unproven=True)
    assert not (tmp_path / "f.onnx").exists()
    # One temperature treats all classes alike, whatever their order.
    alike = calibrate_model(
        plain, X, Y, "temperature", class_names=tuple(sorted(NAMES)), cross_validate=False
    )
    fuse_onnx(path, alike, tmp_path / "f.onnx", unproven=True)
    strange = calibrate_model(plain, X, Y, "vector", class_names=("ant", "bee", "cow"), cross_validate=False)
    with pytest.raises(FuseError, match="by other names"):
        fuse_onnx(path, strange, tmp_path / "g.onnx", unproven=True)


def test_numbers_that_are_names_of_classes_are_found_by_name(tmp_path: Path) -> None:
    gather = make_node("Gather", ["numbers", "k"], ["label"])
    label = make_tensor_value_info("label", TensorProto.INT64, ["n"])
    path = save(
        tmp_path / "m.onnx", [SOFTMAX, CHOICE, gather], [label, SCORES["p"]], numbers=np.array([3, 7, 9])
    )
    fitted = calibrate_model(path, X, np.array([3, 7, 9])[Y], "vector", cross_validate=False)
    assert fitted.class_names == ("3", "7", "9")
    with pytest.raises(InputError, match="none of the classes"):
        calibrate_model(path, X, Y, "vector")


def test_names_are_of_the_head_that_is_chosen_by_the_scores_or_the_only_ones(tmp_path: Path) -> None:
    texts, others = np.array(NAMES, object), np.array(NAMES[::-1], object)
    heads = [
        make_node("LogSoftmax", ["z"], ["l"]),
        make_node("Exp", ["l"], ["p"]),
        CHOICE,
        make_node("Gather", ["texts", "k"], ["label"]),
        make_node("Gemm", ["x", "w", "b"], ["of_two"]),
        make_node("ArgMax", ["of_two"], ["two"], axis=1, keepdims=0),
        make_node("Gather", ["others", "two"], ["other"]),
    ]
    other = make_tensor_value_info("other", TensorProto.STRING, ["n"])
    path = save(tmp_path / "m.onnx", heads, [SCORES["p"], LABEL, other], texts=texts, others=others)
    assert load_model(path).class_names == NAMES
    apart = [
        SOFTMAX,
        make_node("Mul", ["z", "two"], ["far"]),
        make_node("ArgMax", ["far"], ["k"], axis=1, keepdims=0),
        make_node("Gather", ["texts", "k"], ["label"]),
    ]
    path = save(tmp_path / "a.onnx", apart, [SCORES["p"], LABEL], texts=texts, two=np.float32(2))
    assert load_model(path).class_names == NAMES


def test_a_label_by_other_keys_names_no_class(tmp_path: Path) -> None:
    label = make_node(
        "LabelEncoder", ["f"], ["label"], domain="ai.onnx.ml", keys_floats=[0.0, 1.0, 2.0],
        values_strings=NAMES,
    )  # fmt: skip
    cast = make_node("Cast", ["k"], ["f"], to=TensorProto.FLOAT)
    path = save(tmp_path / "m.onnx", [SOFTMAX, CHOICE, cast, label], [LABEL, SCORES["p"]])
    assert load_model(path).class_names == ()


@pytest.mark.parametrize(
    ("shape", "classes", "fits"),
    [
        (["n", 3], 3, True), (["n", 3], 4, False), (["n", "k"], 3, True), (["n", 3, 1], 3, True),
        (["n", 1], 2, True), (["n", 1], 3, False), (["n"], 2, False),
    ],
)  # fmt: skip
def test_an_output_fits_by_its_declared_sizes(shape: list[int | str], classes: int, fits: bool) -> None:
    output = GraphOutput("p", "tensor(float)", shape)
    assert output.fits(classes, column=False) == fits
    assert str(output).endswith(str(shape))
    assert GraphOutput("p", "tensor(float)", ["n"]).fits(2, column=True)


def test_two_outputs_that_may_be_scores_are_asked_about(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [SOFTMAX], [SCORES["z"], SCORES["p"]])
    with pytest.raises(ModelError, match=r"'z'.*'p'.*--output-name"):
        load_model(path)
    assert load_model(path, output_name="p").outputs == "probabilities"
    assert load_model(path, output_name="z").outputs == "logits"
    with pytest.raises(ModelError, match="no tensor 'q'"):
        load_model(path, output_name="q")


def test_a_label_is_never_taken_for_scores(tmp_path: Path) -> None:
    chosen = make_tensor_value_info("k", TensorProto.INT64, ["n"])
    alone = save(tmp_path / "k.onnx", [CHOICE], [chosen])
    with pytest.raises(ModelError, match=r"no output is declared as scores \(n, K\).*'k' tensor\(int64\)"):
        load_model(alone)
    first = load_model(save(tmp_path / "m.onnx", [SOFTMAX, CHOICE], [chosen, SCORES["p"]]))
    np.testing.assert_allclose(softmax(first.logits(X)), softmax(Z), atol=1e-5)
    assert "the output 'p'" in first.remarks[0]


def test_one_output_a_class_names_the_tensor_that_holds_all(tmp_path: Path) -> None:
    skl2onnx = library("skl2onnx")
    from sklearn.linear_model import LogisticRegression

    made = LogisticRegression().fit(X, np.array(NAMES)[Y])
    exported = skl2onnx.to_onnx(made, X[:1], options={id(made): {"zipmap": "columns"}})
    onnx.save(exported, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="all are of 'probabilities' inside"):
        load_model(tmp_path / "m.onnx")
    model = load_model(tmp_path / "m.onnx", output_name="probabilities")
    np.testing.assert_allclose(softmax(model.logits(X)), made.predict_proba(X), atol=1e-5)


UNPROVED = {
    "a sigmoid a class": ([make_node("Sigmoid", ["z"], ["d"])], "label_probabilities"),
    "percent": ([SOFTMAX, make_node("Mul", ["p", "hundred"], ["d"])], "logits"),
    "margins": ([make_node("Relu", ["z"], ["d"])], "logits"),
}


@pytest.mark.parametrize("what", UNPROVED)
def test_a_kind_that_nothing_proves_is_asked_about(what: str, tmp_path: Path) -> None:
    nodes, outputs = UNPROVED[what]
    path = save(tmp_path / "m.onnx", nodes, [SCORES["d"]], hundred=np.float32(100))
    with pytest.raises(ModelError, match=f"--outputs .*{outputs}"):
        load_model(path)
    assert load_model(path, outputs=outputs).outputs == outputs


PROVED = {
    "logits": ([make_node("Mul", ["z", "half"], ["d"])], "logits"),
    "pooled logits": (
        [
            make_node("Sum", ["z", "z"], ["s"]),
            make_node("Unsqueeze", ["s", "two"], ["u"]),
            make_node("GlobalAveragePool", ["u"], ["g"]),
            make_node("ReduceMean", ["g"], ["d"], axes=[2], keepdims=0),
        ],
        "logits",
    ),
    "quantised logits": (
        [
            make_node("QuantizeLinear", ["x", "scale", "zero"], ["i"]),
            make_node("QuantizeLinear", ["w", "scale", "zero"], ["v"]),
            make_node("QLinearMatMul", ["i", "scale", "zero", "v", "scale", "zero", "scale", "zero"], ["q"]),
            make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        ],
        "logits",
    ),
    # Each number has four million paths to the layer.
    "doubled logits": (
        [
            make_node("Add", [name, name], [after])
            for name, after in pairwise(["z", *map(str, range(29)), "d"])
        ],
        "logits",
    ),
    "a softmax": ([make_node("Softmax", ["z"], ["d"])], "probabilities"),
    "a log-softmax in parts": (
        [make_node("ReduceLogSumExp", ["z"], ["l"], axes=[1]), make_node("Sub", ["z", "l"], ["d"])],
        "log_probs",
    ),
    "shares": (
        [
            make_node("Exp", ["z"], ["e"]),
            make_node("ReduceSum", ["e", "one"], ["s"]),
            make_node("Div", ["e", "s"], ["d"]),
        ],
        "probabilities",
    ),
}


@pytest.mark.parametrize("what", PROVED)
def test_a_kind_is_proved_by_an_operator_or_by_sums_of_1(what: str, tmp_path: Path) -> None:
    nodes, kind = PROVED[what]
    numbers = {"half": np.float32(0.5), "scale": np.float32(0.1), "zero": np.uint8(128)}
    path = save(tmp_path / "m.onnx", nodes, [SCORES["d"]], one=np.array([1]), two=np.array([2]), **numbers)
    assert load_model(path).outputs == kind


def test_what_is_said_against_the_graph_s_own_softmax_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [SOFTMAX], [SCORES["p"]])
    with pytest.raises(ModelError, match="made by a Softmax, not logits"):
        load_model(path, outputs="logits")


def test_sums_are_proved_over_all_inputs_and_not_the_first_alone(tmp_path: Path) -> None:
    nodes = [
        SOFTMAX,
        make_node("ReduceMax", ["x"], ["m"], axes=[1]),
        make_node("Max", ["m", "bound"], ["c"]),
        make_node("Div", ["c", "bound"], ["f"]),
        make_node("Mul", ["p", "f"], ["d"]),
    ]
    model = load_model(save(tmp_path / "m.onnx", nodes, [SCORES["d"]], bound=np.float32(9)))
    assert model.outputs == "probabilities"
    far = X.copy()
    far[17, 0] = 90.0
    with pytest.raises(ModelError, match=r"no probabilities: they .*beyond \[0, 1\]|not to 1"):
        model.logits(far)


VARYING = {
    "Dropout": make_node("Dropout", ["z", "share", "yes"], ["d"]),
    "BatchNormalization": make_node(
        "BatchNormalization", ["z", "ones", "zeros", "zeros", "ones"], ["d", "mean", "var"], training_mode=1
    ),
    "RandomNormalLike": make_node("RandomNormalLike", ["z"], ["d"]),
}
CONSTANTS = {
    "share": np.float32(0.3), "yes": np.array(True), "ones": np.ones(K, "f4"), "zeros": np.zeros(K, "f4"),
}  # fmt: skip


@pytest.mark.parametrize("op", VARYING)
def test_a_graph_whose_answers_vary_is_refused_by_its_node(op: str, tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [VARYING[op]], [SCORES["d"]], **CONSTANTS)
    with pytest.raises(ModelError, match=f"{op} 'd'"):
        load_model(path, outputs="logits")
    plain = save(tmp_path / "plain.onnx", [], [SCORES["z"]])
    fitted = calibrate_model(plain, X, Y, "temperature", cross_validate=False)
    with pytest.raises(CalibServeError, match=f"{op} 'd'"):
        fuse_onnx(path, fitted, tmp_path / "f.onnx", unproven=True, outputs="logits")
    assert not (tmp_path / "f.onnx").exists()


def test_answers_may_differ_by_the_rounding_of_their_largest_number() -> None:
    refuse_varying([[[1e4, 0.0]], [[1e4, 0.5]]], [])
    with pytest.raises(ModelError, match="from run to run"):
        refuse_varying([[[1e4, 0.0]], [[1e4, 1.5]]], [])


def test_a_dropout_between_layers_is_refused_though_the_optimiser_removes_it(tmp_path: Path) -> None:
    nodes = [
        make_node("Dropout", ["z", "share", "yes"], ["between"]),
        make_node("MatMul", ["between", "square"], ["d"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, [SCORES["d"]], square=np.eye(K, dtype="f4"), **CONSTANTS)
    with pytest.raises(ModelError, match="Dropout 'between'"):
        load_model(path)


def test_maps_whose_keys_are_not_sorted_are_fused_by_key(tmp_path: Path) -> None:
    path = named("maps", tmp_path / "m.onnx")
    fitted = calibrate_model(path, X, Y, "vector", cross_validate=False)
    assert fuse_onnx(path, fitted, tmp_path / "f.onnx", unproven=True).max_abs_diff < 1e-5


def test_probabilities_that_a_matrix_mixes_are_not_taken_for_its_logits(tmp_path: Path) -> None:
    noise = np.full((K, K), 0.1, "f4") + 0.7 * np.eye(K, dtype="f4")
    nodes = [SOFTMAX, make_node("MatMul", ["p", "noise"], ["d"])]
    path = save(tmp_path / "m.onnx", nodes, [SCORES["d"]], noise=noise)
    with pytest.raises(ModelError, match="each row sums to 1"):
        load_model(path)
    assert load_model(path, outputs="probabilities").outputs == "probabilities"
