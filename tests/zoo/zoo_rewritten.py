"""Graphs that a tool has rewritten (half precision, int8, optimised, converted), and control flow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import scripted
import torch
from fuse_graphs import NEWEST
from libraries import library
from onnx import version_converter
from specimens import ROWS, Feeds, Specimen, quiet
from torch import Tensor, nn
from zoo_networks import export, pictures

K = 6
Rewrite = Callable[[Path, Path, Feeds], None]


class Network(nn.Module):
    """Normalisation, two convolutions, a linear layer."""

    def __init__(self, final: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU()
        )
        self.linear = nn.Linear(16, K)
        self.final = nn.Identity() if final is None else final

    def forward(self, x: Tensor) -> Tensor:
        return self.final(self.linear(self.body((x - 0.5) / 0.25).mean((2, 3))))


class Branching(nn.Module):
    """One of two ways to the features, by the batch's mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.linear = nn.Linear(4, 8), nn.Linear(8, K)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if bool(y.mean() > 0):
            y = torch.relu(y)
        else:
            y = torch.tanh(y)
        return self.linear(y)


class BranchingAtLast(Branching):
    """One of two ways to the scores."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        if bool(y.mean() > 0):
            z = self.linear(y)
        else:
            z = self.linear(torch.relu(y))
        return z


class Looping(Branching):
    """As many rounds as columns."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        for _ in range(x.shape[1]):
            y = torch.tanh(y + 0.1)
        return self.linear(y)


def _scripted(kind: type[nn.Module], path: Path) -> Feeds:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("f4")
    with quiet():
        net = scripted.script(kind().eval())
        torch.onnx.export(
            net,
            (torch.from_numpy(x),),
            path,
            dynamo=False,
            input_names=["x"],
            dynamic_axes={"x": {0: "n"}},
            opset_version=17,
        )
    return {"x": x}


def _rewritten(
    rewrite: Rewrite, path: Path, *, dynamo: bool = False, opset: int = 17, final: Any = None
) -> Feeds:
    feeds = pictures(12, "x")
    source = path.with_name(f"source.{path.name}")
    export(partial(Network, final), feeds, source, dynamo=dynamo, opset=opset)
    with quiet():
        rewrite(source, path, feeds)
    return {name: array.astype(_types(path)[name]) for name, array in feeds.items()}


def _types(path: Path) -> dict[str, Any]:
    inputs = onnx.load(path, load_external_data=False).graph.input
    return {v.name: onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in inputs}


def as_it_is(source: Path, path: Path, feeds: Feeds) -> None:
    source.rename(path)


def half(source: Path, path: Path, feeds: Feeds, *, keep: bool) -> None:
    convert = library("onnxconverter_common.float16").convert_float_to_float16
    onnx.save(convert(onnx.load(source), keep_io_types=keep), path)


def converted(source: Path, path: Path, feeds: Feeds, *, opset: int) -> None:
    onnx.save(version_converter.convert_version(onnx.load(source), opset), path)


def external(source: Path, path: Path, feeds: Feeds) -> None:
    onnx.save(
        onnx.load(source),
        path,
        save_as_external_data=True,
        location=f"{path.stem}.weights",
        size_threshold=64,
    )


def optimised(source: Path, path: Path, feeds: Feeds, *, level: str) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def dynamic_int8(source: Path, path: Path, feeds: Feeds) -> None:
    library("onnxruntime.quantization").quantize_dynamic(source, path)


def static_int8(source: Path, path: Path, feeds: Feeds, *, style: str, per_channel: bool = False) -> None:
    tools = library("onnxruntime.quantization")

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.left = [feeds]

        def get_next(self) -> Feeds | None:
            return self.left.pop() if self.left else None

    tools.quantize_static(
        source, path, Reader(), quant_format=getattr(tools.QuantFormat, style), per_channel=per_channel
    )


def _specimen(name: str, rewrite: Rewrite, final: Any = None, **facts: Any) -> Specimen:
    more = {key: facts.pop(key) for key in ("dynamo", "opset") if key in facts}
    make = partial(_made, rewrite, more, final)
    return Specimen(name, make, K, **{"image": "x", "head": final is None, **facts})


def _made(rewrite: Rewrite, more: dict[str, Any], final: Any, path: Path) -> Feeds:
    return _rewritten(rewrite, path, final=None if final is None else final(dim=1), **more)


HALF = {"tolerance": 2e-3}
# Tensors of three dimensions behind an If are of unwritten memory in the first run, in graphs of any kind.
IF = {"wrong": {"OpenVINO": "the first run behind an If is wrong where the batch is free (2026.4)"}}
UNSHAPED = {"refusals": {"head": "features"}}
SMALL = [
    _specimen("half precision", partial(half, keep=False), **HALF),
    _specimen("int8, dynamic", dynamic_int8, head=False),
    _specimen("int8, QDQ", partial(static_int8, style="QDQ"), **UNSHAPED),
    _specimen("optimised by onnxruntime, all", partial(optimised, level="ALL"), **UNSHAPED),
    _specimen("external data", external, head=False),
    Specimen("If before the last layer", partial(_scripted, Branching), K, image="x", head=True, **IF),
    _specimen("Softmax at the end", as_it_is, nn.Softmax, means="probabilities"),
]
LARGE = [
    _specimen("half precision inside", partial(half, keep=True), **HALF),
    _specimen(
        "int8, QDQ, a scale a channel", partial(static_int8, style="QDQ", per_channel=True), **UNSHAPED
    ),
    _specimen("int8 operators", partial(static_int8, style="QOperator"), head=False),
    _specimen("optimised by onnxruntime, basic", partial(optimised, level="BASIC")),
    _specimen("optimised by onnxruntime, extended", partial(optimised, level="EXTENDED"), **UNSHAPED),
    _specimen("external data of torch.export", as_it_is, dynamo=True, opset=18, head=False),
    _specimen("LogSoftmax at the end", as_it_is, nn.LogSoftmax, means="log_probs"),
    Specimen("Loop before the last layer", partial(_scripted, Looping), K, image="x", head=True, **UNSHAPED),
    Specimen("If around the last layer", partial(_scripted, BranchingAtLast), K, image="x", **IF),
    *(_specimen(f"torch.jit, opset {opset}", as_it_is, opset=opset) for opset in (13, 15, 20)),
    *(
        _specimen(f"converted to opset {opset}", partial(converted, opset=opset))
        for opset in sorted({18, 19, 21, 23, NEWEST - 1, NEWEST})
    ),
]
