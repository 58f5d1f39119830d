"""Calibrations of tokens (n, T, K) and pixels (n, K, H, W): applied, fused, decided, receipted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import scripted
import torch
from deciding import choosing
from fuse_graphs import run
from fuse_texts import graph as text_graph
from onnx import TensorProto as Type
from onnx import helper, numpy_helper
from prometheus_client import CollectorRegistry as Registry
from torch import nn

from calib_serve import Artifact, Keyring, Reporter, calibrate
from calib_serve.artifact import Abstain, InputShift, PredictionSets
from calib_serve.core.errors import FuseError, InputError, ModelError, ShapeError
from calib_serve.fuse import calibrated, fuse_onnx, fuse_torch, fuse_triton
from calib_serve.scores import Outputs, log_softmax, softmax
from calib_serve.torchserve import pack

K, D = 5, 6
METHODS = ("temperature", "matrix", "isotonic", "structured-vector")
MADE: dict[str | None, Outputs] = {None: "logits", "Softmax": "probabilities", "LogSoftmax": "log_probs"}
each_axis = pytest.mark.parametrize("axis", [-1, 1])


def fitted(axis: int, method: str = "matrix", kind: Outputs = "logits") -> Artifact:
    """A calibration of 60 sequences of nine tokens, or of 60 pictures of 3 x 3."""
    rng = np.random.default_rng(3)
    z = 3 * rng.normal(size=(60, 9, K))
    labels = (softmax((z / 2.3).reshape(-1, K)).cumsum(axis=1) > rng.random((540, 1))).argmax(axis=1)
    rows = z.reshape(-1, K)
    shown = {"logits": rows, "probabilities": softmax(rows), "log_probs": log_softmax(rows)}[kind]
    if axis == -1:
        return calibrate(shown.reshape(z.shape), labels.reshape(60, 9), method=method, outputs=kind)
    pixels = np.moveaxis(shown.reshape(60, 3, 3, K), -1, 1)
    return calibrate(pixels, labels.reshape(60, 3, 3), method=method, outputs=kind)


def rows_of(values: np.ndarray, axis: int) -> np.ndarray:
    return np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])


def graph(path: Path, axis: int, activation: str | None = None) -> Path:
    """Scores of a MatMul or a Conv, with labels and the largest probability beside them."""
    rng = np.random.default_rng(4)
    shape, op = ((D, K), "MatMul") if axis == -1 else ((K, D, 1, 1), "Conv")
    weight = numpy_helper.from_array(rng.normal(size=shape).astype("f4"), "w")
    places = ["t"] if axis == -1 else ["h", "w"]
    wide = lambda size: ["n", *places, size] if axis == -1 else ["n", size, *places]  # noqa: E731
    nodes = [helper.make_node(op, ["x", "w"], ["z"])]
    name = "z"
    if activation is not None:
        nodes.append(helper.make_node(activation, ["z"], ["p"], axis=axis))
        name = "p"
    nodes += [
        helper.make_node("ArgMax", [name], ["label"], axis=axis, keepdims=0),
        helper.make_node("ReduceMax", [name], ["top"], axes=[axis], keepdims=0),
    ]
    outputs = [
        helper.make_tensor_value_info(name, Type.FLOAT, wide(K)),
        helper.make_tensor_value_info("label", Type.INT64, ["n", *places]),
        helper.make_tensor_value_info("top", Type.FLOAT, ["n", *places]),
    ]
    entries = [helper.make_tensor_value_info("x", Type.FLOAT, wide(D))]
    made = helper.make_graph(nodes, "g", entries, outputs, [weight])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def inputs(axis: int) -> np.ndarray:
    """Of other sizes than those of the fit and of the inputs that are made up."""
    return np.random.default_rng(5).normal(size=(3, 4, D) if axis == -1 else (3, D, 4, 2)).astype("f4")


# --- in numpy --------------------------------------------------------------------------------------------


@each_axis
@pytest.mark.parametrize("method", METHODS)
def test_a_place_gets_what_its_row_gets(axis: int, method: str, tmp_path: Path) -> None:
    artifact = fitted(axis, method)
    assert Artifact.load(artifact.save(tmp_path / "a")).model.class_axis == axis
    z = np.random.default_rng(6).normal(size=(4, 7, K) if axis == -1 else (4, K, 6, 2))
    probs = artifact.probs(z)
    assert probs.shape == z.shape
    np.testing.assert_array_equal(rows_of(probs, axis), artifact.probs(rows_of(z, axis)))
    np.testing.assert_array_equal(artifact.probs(torch.from_numpy(z)), probs)
    other = np.moveaxis(z, axis, 1 if axis == -1 else -1)
    with pytest.raises(ShapeError, match=f"classes on axis {axis}.*class_axis="):
        artifact.probs(other)
    said = artifact.probs(other, class_axis=1 if axis == -1 else -1)
    np.testing.assert_array_equal(rows_of(said, 1 if axis == -1 else -1), rows_of(probs, axis))


def test_an_axis_that_nothing_says_is_not_guessed() -> None:
    """Of an artifact that was fitted on rows: a picture of K columns, or a sequence of K tokens."""
    z = np.random.default_rng(7).normal(size=(40, K))
    artifact = calibrate(z, np.arange(40) % K, method="temperature", outputs="logits")
    assert artifact.model.class_axis is None
    assert artifact.probs(np.zeros((2, 3, K))).shape == (2, 3, K)
    with pytest.raises(ShapeError, match="do not say whether axis 1 or the last"):
        artifact.probs(np.zeros((2, K, K)))
    assert artifact.probs(np.zeros((2, K, K)), class_axis=1).sum(axis=1) == pytest.approx(1)
    with pytest.raises(ShapeError, match="need 5 classes"):
        artifact.probs(np.zeros((2, 3, 4)))
    with pytest.raises(ShapeError, match="is 1 or -1"):
        artifact.probs(np.zeros((2, 3, K, K)), class_axis=2)


@each_axis
def test_each_place_is_decided(axis: int) -> None:
    artifact = fitted(axis)
    sets, abstain = PredictionSets(np.array(0.8), 0.9, "aps"), Abstain(0.5, 0.05)
    probs = artifact.probs(inputs(axis)[:, :K] if axis == 1 else inputs(axis)[..., :K])
    rows = rows_of(probs, axis)
    np.testing.assert_array_equal(rows_of(sets(probs, class_axis=axis), axis), sets(rows))
    np.testing.assert_array_equal(abstain(probs, class_axis=axis).ravel(), abstain(rows))
    for decide in (sets, abstain):
        with pytest.raises(ShapeError, match="class_axis=1"):
            decide(probs)


# --- receipts --------------------------------------------------------------------------------------------


def test_a_receipt_is_of_the_place_that_is_said() -> None:
    """Not of padding; of a sample without any place there is none."""
    artifact = fitted(-1)
    probs = artifact.probs(np.random.default_rng(9).normal(size=(4, 7, K)))
    among = np.ones((4, 7), bool)
    among[1, 3:] = among[2] = False
    rows, places = artifact.one_place(probs, "least", among=among)
    tops = np.where(among, probs.max(axis=-1), np.inf)
    assert places.tolist() == [*tops[:2].argmin(axis=1), -1, tops[3].argmin()]
    np.testing.assert_array_equal(rows[[0, 1, 3]], probs[[0, 1, 3], places[[0, 1, 3]]])
    with Reporter(artifact, model="m", version="1", keyring=Keyring.new(), registry=Registry()) as reporter:
        assert [one is None for one in reporter.served(rows)] == [False, False, True, False]
        with pytest.raises(ShapeError, match=r"artifact.one_place\(probs, 'least'\)"):
            reporter.served(probs)
    with pytest.raises(InputError, match="least or drawn"):
        artifact.one_place(probs, "mean")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="among="):
        artifact.one_place(probs, "least", among=among[:, :3])


def test_a_drawn_place_is_any_of_those_that_take_part_and_keeps_calibration() -> None:
    rng = np.random.default_rng(10)
    artifact = fitted(1, "temperature")
    probs = artifact.probs(3 * rng.normal(size=(4000, K, 2, 3)))
    among = rng.random((4000, 2, 3)) < 0.5
    among[:, 0, 0] = True
    rows, places = artifact.one_place(probs, "drawn", among=among, rng=rng)
    assert among.reshape(4000, -1)[np.arange(4000), places].all()
    assert set(places.tolist()) == set(range(6))
    right = rng.random(4000) < rows.max(axis=1)  # of calibrated places
    assert abs(rows.max(axis=1).mean() - right.mean()) < 4 * 0.5 / 4000**0.5


def test_what_answers_with_one_prediction_a_sample_refuses_places(tmp_path: Path) -> None:
    model = graph(tmp_path / "m.onnx", -1)
    with pytest.raises(FuseError, match="--no-receipts"):
        fuse_triton(model, fitted(-1), tmp_path / "repository", name="tokens", output_name="z", unproven=True)
    with pytest.raises(ModelError, match="tokens or pixels"):
        pack(model, fitted(-1), tmp_path, name="tokens", input_shape=(4, D), unproven=True)
    done = fuse_triton(
        model,
        fitted(-1),
        tmp_path / "repository",
        name="tokens",
        receipts=False,
        device="cpu",
        unproven=True,
    )
    assert "probabilities" in done.outputs


# --- in graphs -------------------------------------------------------------------------------------------


@each_axis
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("activation", MADE)
def test_a_graph_gives_each_place_what_numpy_gives_and_its_readers_follow(
    activation: str | None, method: str, axis: int, tmp_path: Path
) -> None:
    model = graph(tmp_path / "m.onnx", axis, activation)
    artifact, x = fitted(axis, method, MADE[activation]), inputs(axis)
    name = "z" if activation is None else "p"
    raw = run(str(model), {"x": x})
    wanted = artifact.probs(raw[name])
    for returns in ("same", "probabilities", "all"):
        report = fuse_onnx(model, artifact, tmp_path / "out.onnx", returns=returns, unproven=True)
        found = run(str(tmp_path / "out.onnx"), {"x": x})
        shown = found[name if returns == "same" else "probabilities"].astype(float)
        if returns == "same" and activation != "Softmax":
            shown = np.moveaxis(softmax(rows_of(shown, axis)).reshape(*raw["label"].shape, K), -1, axis)
        np.testing.assert_allclose(shown, wanted, atol=2e-6)
        np.testing.assert_array_equal(found["label"], wanted.argmax(axis=axis))
        if activation == "Softmax":
            np.testing.assert_allclose(found["top"], wanted.max(axis=axis), atol=2e-6)
        assert {s.status for s in report.statuses if s.name in ("label", "top")} == {"follows"}
        if returns == "all":
            assert found["confidence"].shape == found["predicted"].shape == raw["label"].shape
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "out.onnx"]


def test_a_graph_of_rows_is_calibrated_as_one_of_places_is(tmp_path: Path) -> None:
    onnx.save(text_graph("y = Softmax(x)", f"float[n, {K}] x", f"float[n, {K}] y"), tmp_path / "m.onnx")
    artifact, z = fitted(-1), np.random.default_rng(1).normal(size=(20, K)).astype("f4")
    fuse_onnx(tmp_path / "m.onnx", artifact, tmp_path / "out.onnx", unproven=True)
    found = run(str(tmp_path / "out.onnx"), {"x": z})["y"]
    np.testing.assert_allclose(found, artifact.probs(z[:, None])[:, 0], atol=2e-6)


@each_axis
def test_a_graph_decides_each_place(axis: int, tmp_path: Path) -> None:
    model, x = graph(tmp_path / "m.onnx", axis, "Softmax"), inputs(axis)
    sets, abstain = PredictionSets(np.array(0.8), 0.9, "aps"), Abstain(0.5, 0.05)
    choice = choosing(K)
    artifact = replace(fitted(axis, "matrix", "probabilities"), sets=sets, abstain=abstain, choice=choice)
    fuse_onnx(model, artifact, tmp_path / "out.onnx", unproven=True)
    raw, found = run(str(model), {"x": x}), run(str(tmp_path / "out.onnx"), {"x": x})
    wanted = artifact.probs(raw["p"])
    np.testing.assert_array_equal(found["set"], sets(wanted, class_axis=axis))
    np.testing.assert_array_equal(found["abstain"], abstain(wanted, class_axis=axis))
    np.testing.assert_array_equal(found["decision"], choice(wanted, class_axis=axis))
    outputs = onnx.load(tmp_path / "out.onnx").graph.output
    sizes = {o.name: [d.dim_param or d.dim_value for d in o.type.tensor_type.shape.dim] for o in outputs}
    assert sizes["p"] == (["n", "t", K] if axis == -1 else ["n", K, "h", "w"])


def test_graphs_of_other_classes_other_axes_and_several_scores_are_refused(tmp_path: Path) -> None:
    tokens, pixels = graph(tmp_path / "t.onnx", -1), graph(tmp_path / "p.onnx", 1)
    out = tmp_path / "out.onnx"
    four = replace(fitted(-1, "temperature"), classes=4, reference_classes=(), examples=None)
    with pytest.raises(FuseError, match=r"4 classes on axis -1.*no output"):
        fuse_onnx(tokens, four, out, unproven=True)
    with pytest.raises(FuseError, match="5 classes on axis -1"):
        fuse_onnx(pixels, fitted(-1), out, unproven=True)
    model = onnx.load(tokens)
    model.graph.node.append(helper.make_node("Exp", ["z"], ["e"]))
    model.graph.output.append(helper.make_tensor_value_info("e", Type.FLOAT, ["n", "t", K]))
    onnx.save(model, tokens)
    with pytest.raises(FuseError, match=r"several outputs.*--output-name"):
        fuse_onnx(tokens, fitted(-1), out, unproven=True)
    fuse_onnx(tokens, fitted(-1), out, output_name="z", unproven=True)
    shifted = replace(fitted(-1), steps=(InputShift(np.zeros((4, D))), *fitted(-1).steps), examples=None)
    with pytest.raises(FuseError, match="changes the model itself"):
        fuse_onnx(tokens, shifted, out, output_name="z", unproven=True)


# --- in torch --------------------------------------------------------------------------------------------


class Pixels(nn.Module):
    """A segmentation of pictures of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(D, K, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 4 * self.layer(x)


class Tokens(nn.Module):
    """Logits of each token in a mapping, as Hugging Face's are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(D, K)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": x.mean(), "logits": 4 * self.layer(x)}


@each_axis
@pytest.mark.parametrize("method", METHODS)
def test_a_module_gives_each_place_what_numpy_gives(axis: int, method: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = (Pixels() if axis == 1 else Tokens()).eval()
    artifact, x = fitted(axis, method), torch.from_numpy(inputs(axis))
    with torch.no_grad():
        scores = model(x)
    raw = scores.numpy() if axis == 1 else scores["logits"].numpy()
    wanted = artifact.probs(raw)
    example = (x[:2].repeat(2, *[1] * (x.dim() - 1)),)
    module = calibrated(model, artifact, example=example)
    np.testing.assert_allclose(module(x).detach().numpy(), wanted, atol=2e-6)
    every = calibrated(model, artifact, example=example, returns="all")(x)
    assert every["logits"].shape == raw.shape
    np.testing.assert_array_equal(every["predicted"].numpy(), wanted.argmax(axis=axis))
    decided = replace(artifact, sets=PredictionSets(np.array(0.8), 0.9), abstain=Abstain(0.5, 0.05))
    found = calibrated(model, decided, example=example, returns="all")(x)
    np.testing.assert_array_equal(found["set"].numpy(), decided.sets(wanted, class_axis=axis))
    assert found["abstain"].shape == wanted.argmax(axis=axis).shape
    if axis == 1:
        np.testing.assert_allclose(scripted.script(module)(x).detach().numpy(), wanted, atol=2e-6)


@pytest.mark.parametrize("kind", ["script", "exported"])
def test_a_file_gives_each_place_what_numpy_gives_at_other_sizes(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, artifact = Pixels().eval(), torch.from_numpy(inputs(1)), fitted(1)
    path, out = tmp_path / "m.pt2", tmp_path / "out.pt2"
    if kind == "script":
        scripted.save(scripted.script(model), path)
    else:
        free = {0: torch.export.Dim("n"), 2: torch.export.Dim("h"), 3: torch.export.Dim("w")}
        torch.export.save(torch.export.export(model, (x,), dynamic_shapes={"x": free}), path)
    with scripted.told(kind == "script"):
        fuse_torch(path, artifact, out, inputs={"x": inputs(1)}, unproven=True)
    loaded = scripted.load(out) if kind == "script" else torch.export.load(out).module()
    larger = torch.from_numpy(np.random.default_rng(1).normal(size=(5, D, 7, 3)).astype("f4"))
    with torch.no_grad():
        wanted = artifact.probs(model(larger).numpy())
        np.testing.assert_allclose(loaded(larger).numpy(), wanted, atol=2e-6)
