"""The CIFAR-10 residual networks of He 2016 and the images, as the benchmarks and tests here need them.

The folder of real data is named by CALIB_SERVE_DATA. The networks take pixels in [0, 1].
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

TILE, ACROSS = 32, 100
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Block(nn.Module):
    def __init__(self, wide_in, wide, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(wide_in, wide, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(wide)
        self.stride, self.more = stride, wide - wide_in

    def forward(self, x):
        h = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        # Option A: every other pixel, and zeros for the channels that are new.
        same = functional.pad(
            x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more // 2)
        )
        return (h + same).relu()


class ResNet(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1), persistent=False)
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*[Block(16, 16, 1) for _ in range(blocks)])
        self.layer2 = nn.Sequential(
            *[Block(16 if i == 0 else 32, 32, 2 if i == 0 else 1) for i in range(blocks)]
        )
        self.layer3 = nn.Sequential(
            *[Block(32 if i == 0 else 64, 64, 2 if i == 0 else 1) for i in range(blocks)]
        )
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        h = self.bn1(self.conv1((x - self.mean) / self.std)).relu()
        h = self.layer3(self.layer2(self.layer1(h)))
        return self.linear(h.mean(dim=(2, 3)))


def resnet20():
    return ResNet(3)


def resnet56():
    return ResNet(9)


def data_dir():
    folder = os.environ.get("CALIB_SERVE_DATA")
    if not folder:
        sys.exit("CALIB_SERVE_DATA is not set: it names the folder of real models and images")
    return Path(folder)


def sheet(path):
    """Tiles (n, 3, 32, 32) uint8 of a picture of them, row by row."""
    pixels = np.asarray(Image.open(path).convert("RGB"))
    rows = pixels.shape[0] // TILE
    tiles = pixels.reshape(rows, TILE, ACROSS, TILE, 3).transpose(0, 2, 4, 1, 3)
    return tiles.reshape(-1, 3, TILE, TILE)


def cifar10_test(folder):
    """The 10,000 test images in [0, 1], float32, and their labels."""
    parts = ("cifar10_test_0_4999", "cifar10_test_5000_9999")
    images = np.concatenate([sheet(folder / "images" / f"{part}.webp") for part in parts])
    labels = np.concatenate([_labels(folder / "images" / f"{part}_labels.npz") for part in parts])
    return images.astype(np.float32) / 255, labels


def _labels(path):
    with np.load(path) as archive:
        name = "labels" if "labels" in archive else archive.files[0]
        return archive[name].astype(np.int64)
