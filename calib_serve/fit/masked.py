"""MaC-Cal, the masked head: a new bottleneck head, trained under random masks on frozen features (Ni 2025).

    model = load_model("model.pt2")
    artifact = fit_masked_head(
        model.features(train_images), train_labels, model.features(held_images), held_labels
    )

Each layer's weight W acts as M * W, with M drawn from Bernoulli(q) for every batch; the gradient is masked
likewise (algorithm 1, eq. 8 to 11). Features were computed once: only small matrices remain.

The paper infers with the unmasked weights and steers q by the training set. On features of images that the
network was trained on this makes calibration worse, so it is not the default: the default infers with the
expected weights (each masked weight times q) and steers q by accuracy minus confidence on held-out samples,
which measured better. ``PAPER`` holds the paper's settings, ``UNMASKED`` those of a head that is trained
without any mask.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from calib_serve.artifact import Artifact, Head, ModelFacts
from calib_serve.core.arrays import AnyFloats, as_array
from calib_serve.core.errors import FitError, InputError, ShapeError
from calib_serve.fit.facts import complete, data_fingerprint, remarked
from calib_serve.fit.losses import cross_entropy
from calib_serve.fit.output.candidates import fit_by_name, options_of
from calib_serve.fit.samples import Samples
from calib_serve.models import Progress

_COLLAPSED = "the training collapsed: the new head answers every held-out sample alike"
_INSTEAD = "give it more training samples"


@dataclass(frozen=True)
class Retention:
    """q changes once per epoch, by a gap clipped to eta_t (eq. 12 and 13).

    Args:
        first: q at the start.
        adapt: "held-out" moves q by accuracy minus confidence on held-out samples, which suits heads of
            expected weights; "training" by confidence minus ``gamma`` times accuracy on the training set, as
            in the paper; None keeps ``first``.
        gamma: Factor of the accuracy in "training".
        eta: First and last bound of a move, between which it falls exponentially; equal ones are the paper's
            static form.
        bounds: Range of q; other than [0, 1] they are ours.
        warm_up: Share of the epochs before q first moves, as the gap of an untrained head says nothing about
            q; ours.
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
        """Return eta of an epoch (eq. 13).

        Args:
            epoch: 1 to ``epochs``.
            epochs: Number of epochs.

        >>> round(Retention().bound(20, 40), 6)
        0.01
        """
        first, last = self.eta
        return first * math.exp(math.log(last / first) * epoch / epochs)

    def moved(self, q: float, *, confidence: float, accuracy: float, epoch: int, epochs: int) -> float:
        """Return the q that follows an epoch (eq. 12).

        Args:
            q: That of the epoch.
            confidence: Mean confidence.
            accuracy: Share of right predictions.
            epoch: 1 to ``epochs``.
            epochs: Number of epochs.

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

    Args:
        hidden: Width of the bottleneck, None for a single linear layer.
        retention: How q moves.
        inference: "expected" scales every masked weight by q in the finished head, "unmasked" leaves it, as
            in the paper.
        epochs: Passes over the data.
        batch: Samples of a step.
        rate: Learning rate.
        schedule: "cosine" lets the learning rate fall to 0, "constant" does not.
        momentum: Of the descent.
        decay: Of the weights.
        scaled: Whether features have a root mean square of 1 in training, so that one rate suits features of
            any size; the finished head undoes it.
    """

    hidden: int | None = 128
    retention: Retention = field(default_factory=Retention)
    inference: Literal["expected", "unmasked"] = "expected"
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
            ("schedule", ("constant", "cosine")),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")

    def suited(self, n: int) -> Masking:
        """The settings with more epochs and smaller batches where samples are few: 2,000 updates at least.

        Args:
            n: Number of samples.

        >>> Masking().suited(50_000) == Masking(epochs=40, batch=128)
        True
        >>> Masking().suited(160) == Masking(epochs=250, batch=20)
        True
        """
        batch = min(self.batch, max(16, n // 8))
        epochs = max(self.epochs, math.ceil(2_000 / math.ceil(n / batch)))
        return replace(self, epochs=epochs, batch=batch)


PAPER = Masking(
    inference="unmasked",
    retention=Retention(adapt="training", gamma=0.95, bounds=(0.0, 1.0), warm_up=0.0),
    schedule="constant",
    scaled=False,
)
"""MaC-Cal as it is printed (algorithm 1, section 5.1).

q starts at .5 and moves after every epoch within [0, 1] (eq. 12), its step bounded by .1 falling to .001
(eq. 13); 40 epochs of batches of 128 at a rate of .1, momentum .9, decay 5e-4; features as they come,
weights as they are at the end. The paper leaves open: gamma (.95 is ours), the bottleneck's width (128) and
activation (ReLU), a mask per batch (algorithm 1) or per epoch (its text), the start (torch's).
"""

UNMASKED = Masking(inference="unmasked", retention=Retention(first=1.0, adapt=None))
"""The control: the same head, trained in the same way as the default, and no weight ever masked."""

READINGS: Mapping[str, Masking] = MappingProxyType(
    {"expected": Masking(), "paper": PAPER, "no-mask": UNMASKED}
)
"""By the names that ``reading`` takes; "expected" is the default."""


def reading(name: str, n: int) -> Masking:
    """Return the settings of a name.

    Args:
        name: "paper" stays as printed; the others train longer where samples are few.
        n: Number of training samples.

    Raises:
        InputError: For another name.
    """
    if name not in READINGS:
        raise InputError(f"reading must be one of {', '.join(READINGS)}, got {name!r}")
    return PAPER if name == "paper" else READINGS[name].suited(n)


@dataclass(frozen=True)
class Epoch:
    """The q of an epoch, its mean loss, and the accuracy and confidence by which q was updated."""

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
    features: AnyFloats,
    labels: NDArray[np.intp],
    classes: int,
    *,
    held_out: tuple[AnyFloats, NDArray[np.intp]] | None = None,
    masking: Masking | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Trained:
    """Train a head on features (n, d); ``held_out`` ones update q if ``Retention.adapt`` is "held-out".

    Raises:
        FitError: When training diverges.
    """
    how = masking or Masking().suited(len(labels))
    unit = float(np.sqrt(np.mean(np.square(features, dtype=np.float64)))) or 1.0 if how.scaled else 1.0
    layers = _Layers.drawn(features.shape[1], classes, how, seed=seed)
    x = torch.from_numpy(np.asarray(features, np.float32) / np.float32(unit))
    y = torch.from_numpy(np.ascontiguousarray(labels, np.int64))
    judged = held_out if how.retention.adapt == "held-out" and held_out else (features, labels)
    q, history = how.retention.first, list[Epoch]()
    for epoch in range(1, how.epochs + 1):
        if history:
            last, seen = history[-1], {"epoch": len(history), "epochs": how.epochs}
            q = how.retention.moved(q, confidence=last.confidence, accuracy=last.accuracy, **seen)
        with _threads_for(how, x.shape[1]):
            loss = layers.epoch(x, y, q, how, epoch, rng=np.random.default_rng((seed, epoch)))
        if not math.isfinite(loss):
            raise FitError(f"training diverged in epoch {epoch}; lower rate (now {how.rate})")
        history.append(Epoch(q, loss, *_feedback(layers.head(q, unit, how), *judged)))
        if progress:
            progress(epoch, how.epochs)
    return Trained(layers.head(q, unit, how), q, tuple(history))


@contextmanager
def _threads_for(how: Masking, width: int) -> Iterator[None]:
    """Run on one thread for small batches, where threads cost more than they save."""
    threads = torch.get_num_threads()
    if how.batch * width * (how.hidden or 1) < 1 << 23:  # multiplications of a batch
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _rate(epoch: int, how: Masking) -> float:
    if how.schedule == "constant":
        return how.rate
    return how.rate * (1 + math.cos(math.pi * (epoch - 1) / how.epochs)) / 2


@dataclass(eq=False)
class _Layers:
    """Weights, biases and their velocities, changed in place by ``epoch``."""

    weights: list[Tensor]
    biases: list[Tensor]
    velocities: list[Tensor]

    @classmethod
    def drawn(cls, width: int, classes: int, how: Masking, *, seed: int) -> _Layers:
        """Draw uniformly in +-1/sqrt(fan in), like torch.nn.Linear."""
        generator = torch.Generator().manual_seed(seed)
        sizes = [width, *([] if how.hidden is None else [how.hidden]), classes]
        weights, biases = [], []
        for fan_in, fan_out in itertools.pairwise(sizes):
            bound = 1 / math.sqrt(fan_in)
            drawn = torch.rand((fan_out, fan_in + 1), generator=generator) * 2 * bound - bound
            weights.append(drawn[:, :-1].contiguous())
            biases.append(drawn[:, -1].contiguous())
        return cls(weights, biases, [torch.zeros_like(p) for p in (*weights, *biases)])

    def epoch(
        self, x: Tensor, y: Tensor, q: float, how: Masking, epoch: int, *, rng: np.random.Generator
    ) -> float:
        """Descend one pass by masked stochastic gradients, and return the mean loss."""
        order = torch.from_numpy(rng.permutation(len(y)))
        self._masks(q, rng)  # drawn and left, so that a seed gives the numbers that it always gave
        rate, total = _rate(epoch, how), torch.zeros(())
        for rows in torch.split(order, how.batch):
            loss, gradients = self._gradients(x[rows], y[rows], self._masks(q, rng))
            total += loss * len(rows)
            parameters = [*self.weights, *self.biases]
            # The update of torch.optim.SGD, with decay in the gradient, over a few small tensors at once.
            torch._foreach_add_(gradients, parameters, alpha=how.decay)
            torch._foreach_mul_(self.velocities, how.momentum)
            torch._foreach_add_(self.velocities, gradients)
            torch._foreach_add_(parameters, self.velocities, alpha=-rate)
        return float(total) / len(y)

    def head(self, q: float, unit: float, how: Masking) -> Head:
        """The deterministic head of these layers, for unscaled features."""
        # E[M * W] = q W; the paper serves W itself.
        scale = q if how.inference == "expected" else 1.0
        weights = [w * scale for w in self.weights]
        weights[0] = weights[0] / unit
        return Head(tuple(w.numpy() for w in weights), tuple(b.numpy() for b in self.biases))

    def _masks(self, q: float, rng: np.random.Generator) -> list[Tensor]:
        if q >= 1:
            return [torch.ones_like(w) for w in self.weights]
        # Drawn by numpy: several times faster than torch here.
        return [torch.from_numpy(rng.random(w.shape, np.float32) < q).float() for w in self.weights]

    def _gradients(self, x: Tensor, y: Tensor, masks: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        used = [(w * m).requires_grad_() for w, m in zip(self.weights, masks, strict=True)]
        biases = [b.detach().requires_grad_() for b in self.biases]
        hidden = x
        for i, (w, b) in enumerate(zip(used, biases, strict=True)):
            hidden = torch.nn.functional.linear(hidden.relu() if i else hidden, w, b)
        # eq. 8: the product M * W acts, so autograd's gradient is that of the product.
        loss = cross_entropy(hidden, y)
        gradients = list(torch.autograd.grad(loss, [*used, *biases]))
        gradients[: len(masks)] = [g * m for g, m in zip(gradients, masks, strict=False)]  # eq. 11
        return loss.detach(), gradients


def _feedback(head: Head, features: AnyFloats, labels: NDArray[np.intp]) -> tuple[float, float]:
    """Accuracy and mean confidence of the finished head."""
    with torch.no_grad():
        z = torch.from_numpy(head(np.asarray(features, np.float32))).softmax(dim=1)
    # By the finished head, as it would serve: masks are of training alone.
    confidence, predicted = z.max(dim=1)
    return float((predicted.numpy() == labels).mean()), float(confidence.double().mean())


def fit_masked_head(
    features: AnyFloats,
    labels: ArrayLike,
    held_features: AnyFloats | None = None,
    held_labels: ArrayLike | None = None,
    *,
    classes: int | None = None,
    masking: Masking | None = None,
    then: str | None = None,
    model: ModelFacts | None = None,
    class_names: Sequence[str] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> Artifact:
    """Fit a new head to features of the training set.

    Args:
        features: (n, d).
        labels: Class ids (n,).
        held_features: Held-out features (m, d), which steer q and give the artifact's reference bins; by
            default a quarter of the samples.
        held_labels: Their class ids (m,).
        classes: Number of class names or the largest label plus 1 by default.
        masking: Settings of the training.
        then: Output method, such as "temperature", that is fitted behind the finished head to the held-out
            part.
        model: The classifier's ``facts()``.
        class_names: Names of the classes (K,).
        seed: Seed of the random draws.
        progress: Called with how many epochs are done, and of how many.

    Raises:
        InputError: For one class, NaN, labels outside of the classes or a name that does not exist.
        FitError: When training diverges or ``then`` has no optimum.
    """
    x, y = _checked(features, labels)
    if then is not None:
        options_of(then)  # refuses a name that does not exist before anything is trained
    if (held_features is None) != (held_labels is None):
        raise InputError("give held-out features and labels both, or neither")
    if held_features is None:
        kept, out = held_rows(len(y), seed)
        held, (x, y) = (x[out], y[out]), (x[kept], y[kept])
    else:
        held = _checked(held_features, held_labels)
    if held[0].shape[1] != x.shape[1]:
        raise ShapeError(f"features are {x.shape[1]} wide, the held-out ones {held[0].shape[1]}")
    k = classes or len(class_names) or int(max(y.max(), held[1].max())) + 1
    if max(y.max(), held[1].max()) >= k:
        raise InputError(f"labels must lie in 0..{k - 1}, got {max(y.max(), held[1].max())}")
    how = masking or Masking().suited(len(y))
    trained = train_masked(x, y, k, held_out=held, masking=how, seed=seed, progress=progress)
    logits = trained.head(np.asarray(held[0], np.float32))
    # Where every ReLU is off, the head answers with its bias alone.
    collapsed = bool((logits == logits[0]).all())
    if collapsed and then is not None:
        raise FitError(f"{_COLLAPSED}, so nothing can be fitted behind it; {_INSTEAD}")
    behind = None if then is None else fit_by_name(then, logits, held[1], seed=seed)
    said: dict[str, Any] = {} if behind is None else {"then": then, "behind": behind.fit.as_dict()}
    last = trained.epochs[-1]
    artifact = complete(
        [trained.head, *(() if behind is None else behind.steps)],
        Samples.of(logits, held[1], outputs="logits"),
        method="masked-head",
        fit={
            **{name: value for name, value in vars(how).items() if name != "retention"},
            **{name: list(v) if isinstance(v, tuple) else v for name, v in vars(how.retention).items()},
            "q": trained.q,
            "q_by_epoch": [round(epoch.q, 6) for epoch in trained.epochs],
            "training_loss": last.loss,
            "feedback_accuracy": last.accuracy,
            "feedback_confidence": last.confidence,
            "seed": seed,
            **said,
        },
        data={"trained_on": len(y), "features_sha256": data_fingerprint(np.asarray(x), y)},
        model=model,
        class_names=class_names,
        packages=("torch",),
    )
    return remarked(artifact, after=[f"{_COLLAPSED}; {_INSTEAD}"] if collapsed else [])


def _checked(features: AnyFloats, labels: ArrayLike | None) -> tuple[AnyFloats, NDArray[np.intp]]:
    """Check features (n, d) and class ids (n,)."""
    x, y = as_array(features, "features"), as_array(labels, "labels")
    if x.ndim != 2 or x.dtype.kind != "f" or len(x) == 0:
        raise ShapeError(f"features must be floats (n, d), got {x.dtype} {x.shape}")
    if y.shape != (len(x),):
        raise ShapeError(f"labels must be ({len(x)},), got {y.shape}; pass class ids, not one-hot")
    if y.dtype.kind not in "iu" or y.min() < 0:
        raise InputError(f"labels must be class ids of 0 and above, got {y.dtype} from {y.min()}")
    if (y == y[0]).all():
        raise InputError(f"all {len(y)} samples are of class {y[0]}; train on every class that is served")
    if not np.isfinite(x).all():
        raise InputError("features hold NaN or infinity; fix or drop such inputs before fitting")
    return x, y.astype(np.intp)


def held_rows(n: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows that are trained on, and the quarter that is held out."""
    m = round(n / 4)
    if not 0 < m < n:
        raise InputError(f"{n} samples are too few to hold a quarter out")
    order = np.random.default_rng(seed).permutation(n)
    # Sorted, so that memory-mapped features are read forwards.
    return np.sort(order[m:]), np.sort(order[:m])
