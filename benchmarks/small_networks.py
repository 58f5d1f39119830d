"""The sets and the small networks that losses are compared on: CIFAR-10 images, MNIST, digits.

Each task draws its own training, calibration and test parts and first weights from a seed. All networks are
``nn.Sequential`` and end in their one linear layer of logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cifar
import numpy as np
import torch
from torch import nn

from calib_serve.models.dataset import load_data


@dataclass(frozen=True)
class Task:
    """``load`` gives all inputs and labels, ``optimiser`` the optimiser of a network and its schedule."""

    says: str
    load: Callable[[], tuple[np.ndarray, np.ndarray]]
    sizes: tuple[int, int]  # to train on, to calibrate on; the rest is the test set
    network: Callable[[int], nn.Sequential]
    optimiser: Callable
    epochs: int
    batch: int
    followed: bool = False  # measured on the way as well


def parts(task, seed):
    """Training, calibration and test parts (x, y), inputs standardised by the training part."""
    x, y = task.load()
    order = np.random.default_rng(seed).permutation(len(y))
    train, cal, test = np.split(order, np.cumsum(task.sizes))
    axes = (0, 2, 3) if x.ndim == 4 else None
    mean, spread = x[train].mean(axis=axes, keepdims=True), x[train].std(axis=axes, keepdims=True)
    x = (x - mean) / spread
    layout = torch.channels_last if x.ndim == 4 else torch.contiguous_format
    return [
        (torch.from_numpy(x[rows]).contiguous(memory_format=layout), torch.from_numpy(y[rows]))
        for rows in (train, cal, test)
    ]


def images():
    return cifar.cifar10_test(cifar.data_dir())


def mnist():
    found = load_data(cifar.data_dir() / "images" / "mnist_t10k.npz")
    return flat(found.inputs, found.labels)


def digits():
    from sklearn.datasets import load_digits

    return flat(*load_digits(return_X_y=True))


def flat(x, y):
    return x.reshape(len(y), -1).astype(np.float32), y.astype(np.int64)


def convolutional(seed, wide=32):
    """Three strided convolutions with batch normalisation; 120,000 weights."""
    torch.manual_seed(seed)

    def block(wide_in, wide_out, size):
        convolution = nn.Conv2d(wide_in, wide_out, size, 2, size // 2, bias=False)
        return convolution, nn.BatchNorm2d(wide_out), nn.ReLU()

    layers = (*block(3, wide, 5), *block(wide, 2 * wide, 3), *block(2 * wide, 4 * wide, 3))
    head = (nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16 * wide, 10))
    return nn.Sequential(*layers, *head).to(memory_format=torch.channels_last)


def connected(width):
    def network(seed):
        torch.manual_seed(seed)
        hidden = (nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        return nn.Sequential(*hidden, nn.Linear(256, 10))

    return network


def stepped(network, epochs):
    """SGD with momentum and weight decay, its rate divided by 10 after a half and three quarters."""
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
    milestones = [epochs // 2, 3 * epochs // 4]
    return optimiser, torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones)


def plain(network, epochs):
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    return optimiser, torch.optim.lr_scheduler.ConstantLR(optimiser, factor=1.0)


TASKS = {
    "images": Task(
        "CIFAR-10 images, a convolutional network", images, (5000, 2000), convolutional, stepped, 22, 64, True
    ),
    "mnist": Task("MNIST, fully connected", mnist, (1000, 2000), connected(784), plain, 60, 64),
    "digits": Task("digits, fully connected", digits, (300, 500), connected(64), plain, 100, 64),
}
