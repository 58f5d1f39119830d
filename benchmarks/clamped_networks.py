"""The networks that Neural Clamping is measured on, and a split of each one's images.

Two small networks are trained here, in seconds: one on 100 of scikit-learn's digits, one on 1,000 pictures of
MNIST; a split has a training of its own. The residual networks of CIFAR-10 come as they are.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cifar import cifar10_test, data_dir
from torch import nn

from calib_serve.models import from_module, load_model

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import digits

__all__ = ["NAMES", "SIZES", "Given", "given", "network"]

NAMES = ("digits", "mnist", "resnet20", "resnet56")
SIZES = {"digits": (500, 1197), "mnist": (1000, 5000), "resnet20": (5000, 5000), "resnet56": (5000, 5000)}
"""Images to calibrate on and to test, at full size."""
TRAINED_ON, EPOCHS = 1000, 60


@dataclass(frozen=True)
class Given:
    """A classifier, the normalisation (mean, std) that it begins with, and two disjoint sets of images."""

    model: Any
    normalisation: tuple[Any, Any]
    cal: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


class MnistNet(nn.Module):
    """Normalisation, two strided convolutions and a linear layer."""

    def __init__(self, mean, std):
        super().__init__()
        self.mean, self.std = mean, std
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.linear = nn.Linear(16 * 7 * 7, 10)

    def forward(self, x):
        return self.linear(self.body((x - self.mean) / self.std))


def given(name, split, *, images=None, tested=None, device="cpu"):
    """One split of a network; fewer ``images`` to calibrate on and to test where asked for."""
    most, most_tested = SIZES[name]
    make = {"digits": _digits, "mnist": _mnist}.get(name, _cifar)
    model, normalisation, cal, test = make(name, split, device)
    n, m = min(images or most, most), min(tested or most_tested, most_tested)
    return Given(model, normalisation, tuple(part[:n] for part in cal), tuple(part[:m] for part in test))


def network(name, device="cpu"):
    """A residual network of CIFAR-10."""
    weights = data_dir() / "models" / f"akamaster_{name}_c10.safetensors"
    return load_model(
        f"{data_file()}:{name}",
        weights=weights,
        input_shape=(3, 32, 32),
        batch_size=64 if device == "cpu" else 512,
        device=device,
    )


def data_file():
    import cifar

    return cifar.__file__


def _cifar(name, split, device):
    x, y = cifar10_test(data_dir())
    order = np.random.default_rng(split).permutation(10_000)
    cal, test = order[:5000], order[5000:]
    normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return network(name, device), normalisation, (x[cal], y[cal]), (x[test], y[test])


def _digits(name, split, device):
    data = digits.load_splits(seed=split)
    net = digits.train(data.train, seed=split)
    model = from_module(net.eval(), input_shape=(1, 8, 8), device=device)
    test = (
        np.concatenate([data.choice.images, data.test.images]),
        np.concatenate([data.choice.labels, data.test.labels]),
    )
    cal = data.calibration.images, data.calibration.labels
    return model, ((float(net.mean),), (float(net.std),)), cal, test


def _mnist(name, split, device):
    folder = data_dir() / "images"
    parts = [np.load(folder / f"mnist_{part}.npz") for part in ("train_first10k", "t10k")]
    (x, y), (rest, labels) = (
        (part["x"][:, None].astype(np.float32) / 255, part["y"].astype(np.int64)) for part in parts
    )
    rng = np.random.default_rng(split)
    few = rng.permutation(len(y))[:TRAINED_ON]
    model = from_module(trained(x[few], y[few], split).eval(), input_shape=(1, 28, 28), device=device)
    order = rng.permutation(len(labels))
    cal, test = order[:1000], order[1000:6000]
    scale = ((float(x[few].mean()),), (float(x[few].std()),))
    return model, scale, (rest[cal], labels[cal]), (rest[test], labels[test])


def trained(x, y, seed):
    """Fitted by cross-entropy and Adam until it knows its pictures by heart."""
    torch.manual_seed(seed)
    net = MnistNet(float(x.mean()), float(x.std()))
    images, labels = torch.from_numpy(x), torch.from_numpy(y)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(labels)), 100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[rows]), labels[rows]).backward()
            optimizer.step()
    return net
