"""Architectures to measure fusion on; random weights, as only their cost matters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["CifarResNet", "ImageNetResNet18", "Transformer"]


class _Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut: without weights (He 2016, option A) or a 1 x 1 convolution."""

    def __init__(self, planes: int, out: int, stride: int, *, projected: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(planes, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.grow = (out - planes) // 2 if stride > 1 or out != planes else 0
        project = projected and self.grow
        self.project = (
            nn.Sequential(nn.Conv2d(planes, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if project
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if self.project is not None:
            x = self.project(x)
        elif self.grow:
            x = nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.grow, self.grow))
        return torch.relu(y + x)


def _stage(blocks: int, planes: int, out: int, stride: int, *, projected: bool) -> nn.Sequential:
    first = _Block(planes, out, stride, projected=projected)
    return nn.Sequential(first, *(_Block(out, out, 1, projected=projected) for _ in range(blocks - 1)))


class CifarResNet(nn.Module):
    """ResNet-20 (n = 3) or ResNet-56 (n = 9) of He 2016 for 32 x 32 images.

    ``normalized``: the graph starts with (x - mean) / std.
    """

    def __init__(self, n: int, *, classes: int = 10, normalized: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(n, 16, 16, 1, projected=False)
        self.layer2 = _stage(n, 16, 32, 2, projected=False)
        self.layer3 = _stage(n, 32, 64, 2, projected=False)
        self.linear = nn.Linear(64, classes)
        self.normalized = normalized
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) / self.std if self.normalized else x
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


class ImageNetResNet18(nn.Module):
    """ResNet-18 for 224 x 224 images and 1000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.stages = nn.Sequential(*(_stage(2, *w, projected=True) for w in widths))
        self.linear = nn.Linear(512, 1000)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.stages(self.stem((x - self.mean) / self.std)).mean((2, 3)))


class Transformer(nn.Module):
    """12 layers, width 384, 6 heads, 128 tokens of embeddings to 77 classes."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(384, 6, 1536, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.linear = nn.Linear(384, 77)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.encoder(x)[:, 0])
