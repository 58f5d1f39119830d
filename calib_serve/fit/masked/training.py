"""Training a classifier's head under random masks: the second stage of MaC-Cal (Ni 2025, algorithm 1).

Each layer's weight W acts as M * W, with M drawn from Bernoulli(q) for every batch or every epoch; the
gradient is masked likewise (eq. 8 to 11). Features were computed once: only small matrices remain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calib_serve.artifact import Head
from calib_serve.errors import FitError, InputError
from calib_serve.fit.checkpoint import Checkpoints
from calib_serve.fit.facts import data_fingerprint
from calib_serve.fit.losses import cross_entropy
from calib_serve.model import Progress

Floats = NDArray[np.floating[Any]]
_UPDATES = 2_000
_ONE_THREAD = 1 << 23  # multiplications of a batch
Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits (b, K), class ids (b,)) -> the mean loss."""


@dataclass(frozen=True)
class Retention:
    """q starts at ``first`` and changes once per epoch, by a gap clipped to eta_t (eq. 12 and 13).

    ``adapt`` "held-out" moves q by accuracy minus confidence on held-out samples, which suits heads of
    expected weights; "training" by confidence minus ``gamma`` times accuracy on the training set, as in the
    paper; None keeps ``first``. ``eta`` are the first and the last bound, between which it falls
    exponentially; equal ones are the paper's static form. ``warm_up``: the share of the epochs before q first
    moves, as the gap of an untrained head says nothing about q, and ``bounds`` other than [0, 1] are ours.
    """

    first: float = 0.5
    adapt: Literal["held-out", "training"] | None = "held-out"
    gamma: float = 1.0
    eta: tuple[float, float] = (0.1, 0.001)
    bounds: tuple[float, float] = (0.05, 1.0)
    warm_up: float = 0.1

    def __post_init__(self) -> None:
        low, high = self.bounds
        if not (0 <= low <= self.first <= high <= 1 and self.first > 0):
            raise InputError(
                f"q must lie within its bounds in [0, 1], above 0, got {self.first} in {self.bounds}"
            )
        if not (self.eta[0] >= self.eta[1] > 0):
            raise InputError(f"eta must be positive and not rise, got {self.eta}")
        if not 0 <= self.warm_up <= 1:
            raise InputError(f"warm_up is a share of the epochs, in [0, 1], got {self.warm_up}")
        if self.adapt not in (None, "held-out", "training"):
            raise InputError(f"adapt must be 'held-out', 'training' or None, got {self.adapt!r}")

    def bound(self, epoch: int, epochs: int) -> float:
        """Eta of epoch 1..epochs (eq. 13).

        >>> round(Retention().bound(20, 40), 6)
        0.01
        """
        first, last = self.eta
        return first * math.exp(math.log(last / first) * epoch / epochs)

    def moved(self, q: float, *, confidence: float, accuracy: float, epoch: int, epochs: int) -> float:
        """The q that follows this epoch (eq. 12).

        >>> Retention(adapt="training").moved(0.5, confidence=0.95, accuracy=0.9, epoch=40, epochs=40)
        0.501
        >>> Retention(adapt="held-out").moved(0.5, confidence=0.95, accuracy=0.9, epoch=40, epochs=40)
        0.499
        """
        if self.adapt is None or epoch <= self.warm_up * epochs:
            return q
        # Expected weights and with them confidence grow with q, so the sign is reversed.
        gap = accuracy - confidence if self.adapt == "held-out" else confidence - self.gamma * accuracy
        bound = self.bound(epoch, epochs)
        return min(max(q + min(max(gap, -bound), bound), self.bounds[0]), self.bounds[1])


@dataclass(frozen=True)
class Masking:
    """What is trained and how; the defaults are the paper's (section 5.1) where it gives any.

    ``hidden`` is the bottleneck's width, None for a single linear layer. ``inference`` "expected" scales
    every masked weight by q in the finished head, "unmasked" leaves it, as in the paper.
    ``schedule`` "cosine" lets the learning rate fall to 0. ``scaled`` brings the features to a root mean
    square of 1 in training, so that one rate suits features of any size; the finished head undoes it.
    """

    hidden: int | None = 128
    retention: Retention = field(default_factory=Retention)
    inference: Literal["expected", "unmasked"] = "expected"
    draw: Literal["batch", "epoch"] = "batch"
    masked_gradient: bool = True
    loss: Loss = cross_entropy
    epochs: int = 40
    batch: int = 128
    rate: float = 0.1
    schedule: Literal["constant", "cosine"] = "cosine"
    momentum: float = 0.9
    decay: float = 5e-4
    scaled: bool = True

    def __post_init__(self) -> None:
        if self.hidden is not None and self.hidden < 1:
            raise InputError(f"hidden must be at least 1, or None for one layer, got {self.hidden}")
        if min(self.epochs, self.batch) < 1:
            raise InputError(f"epochs and batch must be at least 1, got {self.epochs} and {self.batch}")
        for name, allowed in (
            ("inference", ("expected", "unmasked")),
            ("draw", ("batch", "epoch")),
            ("schedule", ("constant", "cosine")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")

    def suited(self, n: int) -> Masking:
        """The same with more epochs and smaller batches where n samples are few: 2,000 updates at least.

        >>> Masking().suited(50_000) == Masking(epochs=40, batch=128)
        True
        >>> Masking().suited(160) == Masking(epochs=250, batch=20)
        True
        """
        batch = min(self.batch, max(16, n // 8))
        epochs = max(self.epochs, math.ceil(_UPDATES / math.ceil(n / batch)))
        return replace(self, epochs=epochs, batch=batch)


@dataclass(frozen=True)
class Epoch:
    """Settings and results of one epoch; accuracy and confidence are those that updated q."""

    q: float
    loss: float
    accuracy: float
    confidence: float


@dataclass(frozen=True, eq=False)
class Trained:
    """The finished head and how training went."""

    head: Head
    q: float
    epochs: tuple[Epoch, ...]


def train_masked(
    features: Floats,
    labels: NDArray[np.intp],
    classes: int,
    *,
    held_out: tuple[Floats, NDArray[np.intp]] | None = None,
    masking: Masking | None = None,
    seed: int = 0,
    device: str | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
) -> Trained:
    """A head for ``features`` (n, d), or (V, n, d) of which each epoch sees the next view.

    ``held_out`` (features, labels) update q if ``Retention.adapt`` is "held-out". With ``checkpoints`` a
    killed fit resumes after its last epoch, with the same result. Raises FitError when training diverges.
    """
    how = masking or Masking().suited(len(labels))
    views = features[None] if features.ndim == 2 else features
    unit = float(np.sqrt(np.mean(np.square(views, dtype=np.float64)))) or 1.0 if how.scaled else 1.0
    layers = _Layers.drawn(views.shape[2], classes, how, seed=seed, device=device)
    y = torch.from_numpy(np.ascontiguousarray(labels, np.int64)).to(layers.device)
    key = _key(views, labels, held_out, how, seed) if checkpoints else ""
    history = layers.resumed(checkpoints.load(key)) if checkpoints else []
    for epoch in range(len(history) + 1, how.epochs + 1):
        q = _next_q(history, how)
        view = views[(epoch - 1) % len(views)]
        x = torch.from_numpy(np.asarray(view, np.float32) / np.float32(unit)).to(layers.device)
        # One generator per epoch, so that a fit can resume after any of them.
        rng = np.random.default_rng((seed, epoch))
        with _threads_for(how, x.shape[1]):
            loss = layers.epoch(x, y, q, rate=_rate(epoch, how), how=how, rng=rng)
        if not math.isfinite(loss):
            raise FitError(f"training diverged in epoch {epoch}; lower rate (now {how.rate})")
        seen = held_out if how.retention.adapt == "held-out" and held_out else (view, labels)
        history.append(Epoch(q, loss, *_feedback(layers.head(q, unit, how), *seen)))
        if checkpoints:
            checkpoints.save(key, layers.state(history))
        if progress:
            progress(epoch, how.epochs)
    q = history[-1].q
    return Trained(layers.head(q, unit, how), q, tuple(history))


@contextmanager
def _threads_for(how: Masking, width: int) -> Iterator[None]:
    """One thread for small batches, where threads cost more than they save."""
    threads = torch.get_num_threads()
    if how.batch * width * (how.hidden or 1) < _ONE_THREAD:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _next_q(history: Sequence[Epoch], how: Masking) -> float:
    """The q that follows the epochs so far."""
    if not history:
        return how.retention.first
    last = history[-1]
    return how.retention.moved(
        last.q,
        confidence=last.confidence,
        accuracy=last.accuracy,
        epoch=len(history),
        epochs=how.epochs,
    )


def _rate(epoch: int, how: Masking) -> float:
    if how.schedule == "constant":
        return how.rate
    return how.rate * (1 + math.cos(math.pi * (epoch - 1) / how.epochs)) / 2


def _key(
    views: Floats,
    labels: NDArray[np.intp],
    held_out: tuple[Floats, NDArray[np.intp]] | None,
    how: Masking,
    seed: int,
) -> str:
    """All that the state after an epoch depends on."""
    data = data_fingerprint(views, labels, *(held_out or ()))
    settings = {**vars(how), "loss": getattr(how.loss, "__qualname__", repr(how.loss))}
    return f"masked head {data} {settings} {seed} {torch.__version__}"


@dataclass(eq=False)
class _Layers:
    """Weights, biases and their velocities, changed in place by ``epoch``."""

    weights: list[Tensor]
    biases: list[Tensor]
    velocities: list[Tensor]
    device: torch.device

    @classmethod
    def drawn(cls, width: int, classes: int, how: Masking, *, seed: int, device: str | None) -> _Layers:
        """Uniform in +-1/sqrt(fan in), like torch.nn.Linear."""
        generator = torch.Generator().manual_seed(seed)
        sizes = [width, *([] if how.hidden is None else [how.hidden]), classes]
        where = torch.device(device or "cpu")  # matrices this small gain nothing from a GPU
        weights, biases = [], []
        for fan_in, fan_out in itertools.pairwise(sizes):
            bound = 1 / math.sqrt(fan_in)
            drawn = torch.rand((fan_out, fan_in + 1), generator=generator) * 2 * bound - bound
            weights.append(drawn[:, :-1].contiguous().to(where))
            biases.append(drawn[:, -1].contiguous().to(where))
        return cls(weights, biases, [torch.zeros_like(p) for p in (*weights, *biases)], where)

    def state(self, history: Sequence[Epoch]) -> dict[str, NDArray[Any]]:
        """Everything that the next epoch needs."""
        tensors = [*self.weights, *self.biases, *self.velocities]
        saved = {f"tensor{i}": t.cpu().numpy() for i, t in enumerate(tensors)}
        rows = [(e.q, e.loss, e.accuracy, e.confidence) for e in history]
        return {**saved, "history": np.array(rows)}

    def resumed(self, state: Mapping[str, NDArray[Any]] | None) -> list[Epoch]:
        """Restore a saved state, if any; returns its epochs."""
        if state is None:
            return []
        for i, tensor in enumerate([*self.weights, *self.biases, *self.velocities]):
            tensor.copy_(torch.from_numpy(state[f"tensor{i}"]))
        return [Epoch(*row) for row in state["history"].tolist()]

    def epoch(
        self, x: Tensor, y: Tensor, q: float, *, rate: float, how: Masking, rng: np.random.Generator
    ) -> float:
        """One pass of masked stochastic gradient descent; returns the mean loss."""
        order = torch.from_numpy(rng.permutation(len(y))).to(self.device)
        total, masks = torch.zeros((), device=self.device), self._masks(q, rng)
        for rows in torch.split(order, how.batch):
            if how.draw == "batch":
                masks = self._masks(q, rng)
            loss, gradients = self._gradients(x[rows], y[rows], masks, how)
            total += loss * len(rows)
            parameters = [*self.weights, *self.biases]
            torch._foreach_add_(gradients, parameters, alpha=how.decay)
            torch._foreach_mul_(self.velocities, how.momentum)
            torch._foreach_add_(self.velocities, gradients)
            torch._foreach_add_(parameters, self.velocities, alpha=-rate)
        return float(total) / len(y)

    def head(self, q: float, unit: float, how: Masking) -> Head:
        """The deterministic head of these layers, for unscaled features."""
        scale = q if how.inference == "expected" else 1.0
        weights = [w * scale for w in self.weights]
        weights[0] = weights[0] / unit
        return Head(tuple(w.cpu().numpy() for w in weights), tuple(b.cpu().numpy() for b in self.biases))

    def _masks(self, q: float, rng: np.random.Generator) -> list[Tensor]:
        if q >= 1:
            return [torch.ones_like(w) for w in self.weights]
        # Drawn by numpy: several times faster than torch here, and the same on every device.
        drawn = [rng.random(w.shape, np.float32) < q for w in self.weights]
        return [torch.from_numpy(mask).to(self.device, torch.float32) for mask in drawn]

    def _gradients(
        self, x: Tensor, y: Tensor, masks: list[Tensor], how: Masking
    ) -> tuple[Tensor, list[Tensor]]:
        used = [(w * m).requires_grad_() for w, m in zip(self.weights, masks, strict=True)]
        biases = [b.detach().requires_grad_() for b in self.biases]
        hidden = x
        for i, (w, b) in enumerate(zip(used, biases, strict=True)):
            hidden = torch.nn.functional.linear(hidden.relu() if i else hidden, w, b)
        loss = how.loss(hidden, y)
        gradients = list(torch.autograd.grad(loss, [*used, *biases]))
        if how.masked_gradient:  # eq. 11
            gradients[: len(masks)] = [g * m for g, m in zip(gradients, masks, strict=False)]
        return loss.detach(), gradients


def _feedback(head: Head, features: Floats, labels: NDArray[np.intp]) -> tuple[float, float]:
    """Accuracy and mean confidence of the finished head."""
    with torch.no_grad():
        z = torch.from_numpy(head(np.asarray(features, np.float32))).softmax(dim=1)
    confidence, predicted = z.max(dim=1)
    return float((predicted.numpy() == labels).mean()), float(confidence.double().mean())
