"""What parity is measured on, the engines that run the graphs, and what they give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact, head
from fuse_texts import TWO, graph
from numpy.typing import NDArray
from test_onnx_parity import HALVES, INPUTS, X, measured, planned

from calib_serve.artifact import Examples
from calib_serve.errors import FuseError, ModelError
from calib_serve.fuse.onnx import parity
from calib_serve.fuse.onnx.parity import generate, run_raw
from calib_serve.metrics import softmax

K = 3


def inputs_of(inputs: str, **options: Any) -> dict[str, NDArray[Any]]:
    """What is generated for a graph of these inputs."""
    model = graph("y = Identity(c)", f"{inputs}, float c", "float y")
    made = generate(ir.from_proto(model).graph, **options)
    made.pop("c")
    return made


# --- generated inputs -------------------------------------------------------------------------------


def test_generated_inputs_are_of_their_types_and_the_same_each_time() -> None:
    made = inputs_of("float[n, 2] x, int64[n, 3] m, bool[n] b, float16[4] h", samples=5)
    rng = np.random.default_rng(0)
    x, m = rng.standard_normal((5, 2)).astype("f4"), rng.integers(0, 2, (5, 3))
    want = {"x": x, "m": m, "b": np.ones(5, bool), "h": rng.standard_normal(4).astype("f2")}
    assert made.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(made[name], array, strict=True)
    assert not np.array_equal(inputs_of("float[n, 2] x", samples=5, seed=1)["x"], x)


def test_sizes_that_are_free_are_as_told_the_batch_first_and_8_where_nobody_tells() -> None:
    inputs = "float[n, a, b] x, float[n, a, 7] z, int32[2, a] m, float s, float[n, c] w"
    made = inputs_of(inputs, samples=3, shapes={"x": (5, 6), "w": (4,)})
    shapes = {name: array.shape for name, array in made.items()}
    assert shapes == {"x": (3, 5, 6), "z": (3, 8, 7), "m": (2, 8), "s": (), "w": (3, 4)}


# --- engines ----------------------------------------------------------------------------------------

ONLY_BY_ONNX = "b = Cast <to: int = 16> (x) c = Neg(b) d = Neg(c) z = Cast <to: int = 1> (d)"


@pytest.mark.parametrize(
    ("raw", "body", "engines"),
    [
        ("z = Identity(x)", HALVES + "y = Mul(x, h)", "onnxruntime"),
        ("z = Identity(x)", ONLY_BY_ONNX + HALVES + " y = Mul(z, h)", "onnxruntime, onnx.reference"),
        (ONLY_BY_ONNX, HALVES + "y = Mul(x, h)", "onnx.reference, onnxruntime"),
        (ONLY_BY_ONNX, ONLY_BY_ONNX + HALVES + " y = Mul(z, h)", "onnx.reference"),
    ],
)
def test_what_onnxruntime_cannot_run_onnx_itself_does_and_the_report_says_so(
    raw: str, body: str, engines: str, tmp_path: Path
) -> None:
    found = measured(body, tmp_path, planned(), raw=raw)
    assert (found.engine, found.max_abs_diff) == (engines, 0.0)


def test_graphs_are_run_as_they_are_written_on_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []

    def noted(model: Any, **options: Any) -> Any:
        opened.append(options)
        return open_session(model, **options)

    open_session = parity.open_session
    monkeypatch.setattr(parity, "open_session", noted)
    z = np.eye(K)
    remembering = artifact(TWO, classes=K, examples=Examples(z, softmax(z / 2)))
    measured(HALVES + "y = Mul(x, h)", tmp_path, planned(remembering))
    raw = {"device": "cpu", "threads": 1, "optimize": False, "options": None}
    assert opened == [raw, raw, {"optimize": False}]


@pytest.mark.parametrize(
    ("device", "options"),
    [("cuda", {"use_tf32": 0}), ("cuda:1", {"use_tf32": 0}), ("tensorrt", None), ("tensorrt:1", None)],
)
def test_on_another_device_numbers_are_not_shortened_and_no_other_engine_helps_out(
    device: str, options: dict[str, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, Any]] = []

    def missing(model: Any, *, device: str, options: Any, **_: Any) -> Any:
        opened.append((device, options))
        raise ModelError("there is none")

    monkeypatch.setattr(parity, "open_session", missing)
    with pytest.raises(ModelError, match=r"^there is none$"):
        measured("y = Identity(x)", tmp_path, planned(), device=device)
    assert opened == [(device, options)]


def test_what_neither_engine_can_load_is_refused_with_both_reasons(tmp_path: Path) -> None:
    path = tmp_path / "raw.onnx"
    onnx.save(graph("y = of.ours.Odd(x)"), path)
    with pytest.raises(FuseError) as error:
        run_raw(path, {"x": X}, ["y"])
    first, second, last = str(error.value).split("; ", 2)
    assert first.startswith(f"parity cannot be measured: onnxruntime cannot load {path}: ")
    assert second.startswith("onnx.reference: ")
    assert "Odd" in second
    assert last == INPUTS


def test_a_graph_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parity.PATIENCE == 120
    monkeypatch.setattr(parity, "PATIENCE", 0.01)
    body = (
        "n = Constant <value = int64 {1000000000000}> () t = Constant <value = bool {1}> () "
        "y = Loop (n, t, x) <body = b (int64 i, bool go, float[n, 3] u) => (bool still, float[n, 3] v) "
        "{ still = Identity(go) v = Neg(u) }>"
    )
    onnx.save(graph(body), tmp_path / "raw.onnx")
    with pytest.raises(FuseError, match="cannot run the model to measure parity: "):
        run_raw(tmp_path / "raw.onnx", {"x": X}, ["y"])


# --- what the graphs give ---------------------------------------------------------------------------


def test_maps_of_class_names_and_further_sizes_of_1_are_rows_of_scores(tmp_path: Path) -> None:
    zip_map = "y = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [7, 8, 9]> (p)"
    body = HALVES + "z = Mul(x, h) p = Softmax(z) " + zip_map
    plan = planned(outputs="probabilities", activation="Softmax")
    assert measured(body, tmp_path, plan, outputs="seq(map(int64, float)) y").max_abs_diff < 1e-6
    body = HALVES + "s = Constant <value = int64[4] {4, 3, 1, 1}> () z = Mul(x, h) y = Reshape(z, s)"
    assert measured(body, tmp_path, planned(), outputs="float[n, 3, 1, 1] y").max_abs_diff == 0.0


@pytest.mark.parametrize(
    ("classes", "width", "wanted"),
    [(3, 2, 3), (3, 1, 3), (3, 4, 3), (2, 3, 2), (1, 2, 1)],
)
def test_scores_of_another_width_than_the_artifact_are_refused(
    classes: int, width: int, wanted: int, tmp_path: Path
) -> None:
    kind: Any = "label_logits" if classes == 1 else "logits"
    plan = planned(artifact(TWO, classes=classes, outputs=kind), outputs=kind)
    with pytest.raises(FuseError) as error:
        measured("y = Identity(x)", tmp_path, plan, x=np.ones((5, width), "f4"))
    assert str(error.value) == (
        f"the artifact needs 'z' as (n, {wanted}), but it gives (5, {width}); fit one for this model, or "
        "name another tensor: --output-name (output_name=)"
    )


@pytest.mark.parametrize("layers", [1, 2])
def test_features_of_another_width_than_the_head_are_refused(layers: int, tmp_path: Path) -> None:
    plan = planned(artifact(head(6, K, layers, np.random.default_rng(0)), classes=K))
    with pytest.raises(FuseError) as error:
        measured("y = Identity(x)", tmp_path, plan, x=np.ones((6, 7), "f4"))
    assert str(error.value) == (
        "the artifact needs 'z' as (n, 6), but it gives (6, 7); fit one for this model, or name another "
        "tensor: --features (features=)"
    )


def test_one_score_that_is_nan_is_refused(tmp_path: Path) -> None:
    x = X.copy()
    x[1, 1] = np.nan
    with pytest.raises(FuseError) as error:
        measured("y = Identity(x)", tmp_path, planned(), x=x)
    assert str(error.value) == f"'z' is NaN on the inputs that parity is measured on; {INPUTS}"
