"""Networks of torchvision, timm and transformers with random weights, by both of torch's exporters."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from libraries import library, torchvision_here
from specimens import ROWS, Feeds, Specimen, quiet
from torch import nn

Maker = Callable[[], nn.Module]


def export(make: Maker, inputs: dict[str, np.ndarray], path: Path, *, dynamo: bool, opset: int) -> Feeds:
    """Write a network with a free batch size; returns the inputs."""
    torch.manual_seed(0)
    with quiet(), contextlib.redirect_stdout(io.StringIO()):
        net = make().eval().requires_grad_(False)
        _spread(net, {name: torch.from_numpy(array) for name, array in inputs.items()})
        examples = {name: torch.from_numpy(array[:2]) for name, array in inputs.items()}
        free: dict[str, Any] = (
            {"dynamic_shapes": {name: {0: torch.export.Dim("n")} for name in inputs}, "verbose": False}
            if dynamo
            else {"dynamic_axes": {name: {0: "n"} for name in inputs}}
        )
        torch.onnx.export(
            net,
            (),
            path,
            kwargs=examples,
            input_names=list(inputs),
            opset_version=opset,
            dynamo=dynamo,
            **free,
        )
    return inputs


def _spread(net: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    """Scale the last layer, so that scores differ: with random weights all samples' are nearly alike."""
    last = [layer for layer in net.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))][-1]
    seen: list[torch.Tensor] = []
    hook = last.register_forward_hook(lambda layer, given, z: seen.append(z))
    net(**inputs)
    hook.remove()
    z = seen[0].flatten(2).mean(2) if seen[0].ndim == 4 else seen[0]
    # What all samples share is rounded like the rest, so it must not become large.
    scale = torch.minimum(2 / z.std(dim=0).mean(), 20 / z.abs().max())
    last.weight *= scale
    if last.bias is not None:
        last.bias += scale * (last.bias - 0.9 * z.mean(dim=0)) - last.bias


def pictures(size: int, name: str) -> Feeds:
    """Noise, each of its own colour and contrast."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(ROWS, 3, size, size)) + rng.normal(size=(ROWS, 3, 1, 1))
    return {name: (rng.uniform(0.2, 2, (ROWS, 1, 1, 1)) * noise).astype("f4")}


def texts() -> Feeds:
    rng = np.random.default_rng(0)
    ids = rng.integers(2, 50, (ROWS, 9))
    return {"input_ids": ids, "attention_mask": (rng.random((ROWS, 9)) < 0.8).astype("i8")}


def _torchvision(name: str) -> nn.Module:
    return torchvision_here().models.get_model(name, weights=None, num_classes=7)


def _timm(name: str) -> nn.Module:
    torchvision_here()  # which timm imports
    return library("timm").create_model(name, pretrained=False, num_classes=7)


_SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "num_labels": 5,
}
_WORDS = {"vocab_size": 50, "max_position_embeddings": 40}
_DISTIL = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "num_labels": 5, **_WORDS}
_CONVNEXT = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_labels": 5}
_VIT = {**_SMALL, "image_size": 16, "patch_size": 4}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("Sequence", {**_SMALL, **_WORDS}),
    "DistilBert": ("Sequence", _DISTIL),
    "Roberta": ("Sequence", {**_SMALL, **_WORDS}),
    "Electra": ("Sequence", {**_SMALL, **_WORDS, "embedding_size": 16}),
    "Albert": ("Sequence", {**_SMALL, **_WORDS, "embedding_size": 16}),
    "ViT": ("Image", _VIT),
    "ConvNext": ("Image", _CONVNEXT),
}


def _transformer(name: str) -> nn.Module:
    torchvision_here()
    transformers = library("transformers")
    kind, settings = TRANSFORMERS[name]
    config = getattr(transformers, f"{name}Config")(**settings)
    return getattr(transformers, f"{name}For{kind}Classification")(config)


def _network(
    family: str, maker: Callable[[str], nn.Module], name: str, dynamo: bool, opset: int, size: int
) -> Specimen:
    words = family == "transformers" and TRANSFORMERS[name][0] == "Sequence"
    image = None if words else "pixel_values" if family == "transformers" else "x"
    inputs = texts() if image is None else pictures(size, image)
    exporter = "torch.export" if dynamo else "torch.jit"
    return Specimen(
        f"{family} {name} by {exporter}, opset {opset}",
        partial(export, partial(maker, name), inputs, dynamo=dynamo, opset=opset),
        5 if family == "transformers" else 7,
        image=image,
        head=name != "squeezenet1_1",  # which ends in a convolution
        refusals={"head": "features"} if opset == 13 and not dynamo else {},  # shapes are not known there
    )


SMALL = [
    _network("transformers", _transformer, "Bert", False, 14, 16),
    _network("timm", _timm, "test_convnext", False, 17, 64),
]
LARGE = [
    *(
        _network("torchvision", _torchvision, name, dynamo, opset, 64)
        for name, dynamo, opset in [
            ("shufflenet_v2_x0_5", False, 13),
            ("mobilenet_v3_small", False, 13),
            ("squeezenet1_1", True, 18),
            ("mnasnet0_5", True, 20),
            ("regnet_y_400mf", False, 15),
            ("resnet18", True, 22),
            ("efficientnet_b0", False, 17),
            ("densenet121", False, 16),
        ]
    ),
    *(
        _network("timm", _timm, name, dynamo, opset, 160 if "vit" in name else 64)
        for name, dynamo, opset in [
            ("resnet10t", False, 14),
            ("test_vit", True, 21),
            ("test_efficientnet", True, 18),
            ("test_byobnet", False, 18),
            ("test_mambaout", False, 19),
            ("mobilenetv3_small_050", False, 20),
            ("ghostnet_050", False, 13),
            ("edgenext_xx_small", False, 16),
            ("repvgg_a0", True, 23),
        ]
    ),
    *(
        _network("transformers", _transformer, name, dynamo, opset, 32 if name == "ConvNext" else 16)
        for name, dynamo, opset in [
            ("Bert", True, 20),
            ("DistilBert", False, 17),
            ("DistilBert", True, 18),
            ("Roberta", False, 16),
            ("Electra", True, 22),
            ("Albert", False, 14),
            ("ViT", False, 18),
            ("ViT", True, 18),
            ("ConvNext", True, 18),
            ("ConvNext", False, 15),
        ]
    ),
]
