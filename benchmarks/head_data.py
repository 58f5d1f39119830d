"""Trained networks with the features that a new head needs: ResNet-20, and small ones on MNIST and digits.

The small networks are trained here, to the end, on few images: 1,000 of MNIST, 100 of scikit-learn's digits.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from cifar import data_dir
from torch import nn

from calib_serve.artifact import Head
from calib_serve.fit.losses import cross_entropy, mixup
from calib_serve.models import from_module

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import digits

NETWORKS = ("resnet20", "mnist", "digits")


@dataclass(frozen=True, eq=False)
class HeadData:
    """Features (n, d) and labels of the images trained on, of those to calibrate on, and of the test images.

    ``head`` is the deployed one; ``module`` the network, with its ``images`` of the last two parts, for
    the small ones.
    """

    name: str
    train: tuple[np.ndarray, np.ndarray]
    cal: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    head: Head
    module: nn.Module | None = None
    images: tuple[np.ndarray, np.ndarray] | None = None


class MnistNet(nn.Module):
    """Two convolutions and two linear layers: logits (n, 10) of images (n, 1, 28, 28) in [0, 1]."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.hidden, self.linear = nn.Linear(32 * 7 * 7, 64), nn.Linear(64, 10)

    def forward(self, images):
        x = self.pool(torch.relu(self.conv1(images)))
        x = self.pool(torch.relu(self.conv2(x)))
        return self.linear(torch.relu(self.hidden(x.flatten(1))))


def head_data(name, split, *, alpha=0.0, loss=cross_entropy):
    """The network called ``name`` and a random split of what it was not trained on.

    ``loss`` and ``alpha`` (of mixup, 0 for none) are of the training of a small network.
    """
    if name == "resnet20":
        return _resnet20(split)
    if name == "mnist":
        return _mnist(split, loss, alpha)
    return _digits(split, loss, alpha)


def _resnet20(split):
    with np.load(data_dir() / "features" / "akamaster_resnet20_cifar10.npz") as archive:
        data = dict(archive)
    order = np.random.default_rng(split).permutation(10_000)
    x, y = data["test"], data["test_labels"].astype(np.intp)
    cal, test = np.sort(order[:5000]), np.sort(order[5000:])
    train = data["train"].astype(np.float32), data["train_labels"].astype(np.intp)
    head = Head((data["head_weight"],), (data["head_bias"],))
    return HeadData("resnet20", train, (x[cal], y[cal]), (x[test], y[test]), head)


def _mnist(split, loss, alpha):
    parts = []
    for file in ("mnist_train_first10k", "mnist_t10k"):
        with np.load(data_dir() / "images" / f"{file}.npz") as archive:
            parts.append(((archive["x"][:, None] / np.float32(255)), archive["y"].astype(np.intp)))
    (x, y), (rest, rest_labels) = parts
    rows = np.random.default_rng(split).permutation(len(y))[:1000]
    torch.manual_seed(split)
    net = trained(MnistNet(), x[rows], y[rows], epochs=40, batch=50, rate=2e-3, loss=loss, alpha=alpha)
    order = np.random.default_rng(split).permutation(len(rest_labels))
    cal, test = np.sort(order[:5000]), np.sort(order[5000:])
    return _of_module(
        "mnist", net, (x[rows], y[rows]), *((rest[part], rest_labels[part]) for part in (cal, test))
    )


def _digits(split, loss, alpha):
    found = digits.load_splits(seed=split, sizes=(100, 800, 0))
    parts = [(p.images, p.labels.astype(np.intp)) for p in (found.train, found.calibration, found.test)]
    torch.manual_seed(split)
    net = digits.DigitsNet(mean=float(parts[0][0].mean()), std=float(parts[0][0].std()))
    net = trained(net, *parts[0], epochs=200, batch=50, rate=5e-3, loss=loss, alpha=alpha)
    return _of_module("digits", net, *parts)


def trained(net, images, labels, *, epochs, batch, rate, loss=cross_entropy, alpha=0.0):
    """Adam; with ``alpha`` each batch is mixed with itself, in shares from Beta(alpha, alpha)."""
    x, y = torch.from_numpy(images), torch.from_numpy(np.asarray(labels, np.int64))
    rng, optimizer = np.random.default_rng(0), torch.optim.Adam(net.parameters(), lr=rate)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(y)), batch):
            optimizer.zero_grad()
            if alpha:
                share, other = float(rng.beta(alpha, alpha)), rows[torch.randperm(len(rows))]
                z = net(share * x[rows] + (1 - share) * x[other])
                mixup(loss, z, y[rows], y[other], share).backward()
            else:
                loss(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return net.eval()


def _of_module(name, net, train, cal, test):
    model = from_module(net, input_shape=train[0].shape[1:], device="cpu")
    parts = [(model.features(x), y) for x, y in (train, cal, test)]
    return HeadData(name, *parts, model.head, net, (cal[0], test[0]))
