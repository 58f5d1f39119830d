"""The six kinds of steps of a calibration; any runtime can execute them.

``InputShift`` -> model up to its last linear layer -> ``Head`` -> ``LogitMap`` ... -> ``SourceMaps`` ->
``Mixture`` or softmax -> ``ProbTable``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.scores import LEAST, MASKED, few, log_softmax, softmax

LARGEST = float(np.finfo(np.float32).max)
"""Largest number that may act on a model's scores: a served model computes in float32."""

S = TypeVar("S", bound="StepBase")
Exact = NDArray[np.float64]
Sources = Union[str, Sequence[str], NDArray[np.str_]]
"""The source of all samples, or of each of n."""


def tensor(
    value: Any, name: str, dtype: type[np.floating[Any]] = np.float64, *, most: float = np.inf
) -> AnyFloats:
    """A read-only array; InputError unless its numbers are finite, and within ``most``."""
    with np.errstate(over="ignore"):
        array = np.array(value, dtype)
    if not np.isfinite(array).all():
        raise InputError(f"{name} must be finite, got NaN or infinity")
    if (np.abs(array) > most).any():
        raise InputError(f"{name} must be within {most:g}, what float32 holds; got {np.abs(array).max():g}")
    # Frozen all the way down: writing into the array would change what was fitted.
    array.setflags(write=False)
    return array


class StepBase:
    """Defaults that most steps share."""

    kind: ClassVar[str]
    option_names: ClassVar[tuple[str, ...]] = ()

    @property
    def classes(self) -> int | None:
        """The number of classes that the step is for, None for any."""
        return None

    @property
    def is_nothing(self) -> bool:
        """Whether the step is the identity: leaving it out changes no bit of the result."""
        return False

    @property
    def tensors(self) -> dict[str, AnyFloats]:
        """The tensors that a file stores, by name."""
        held = {name: value for name, value in vars(self).items() if name not in self.option_names}
        return {name: value for name, value in held.items() if value is not None}

    @property
    def options(self) -> dict[str, Any]:
        """The other values that a file stores."""
        return {name: getattr(self, name) for name in self.option_names}

    @classmethod
    def build(cls: type[S], options: Mapping[str, Any], tensors: dict[str, AnyFloats]) -> S:
        """Build the step from a manifest's entry.

        Args:
            options: Its options.
            tensors: Tensors by name; its own are removed.
        """
        known = [f.name for f in fields(cls) if f.name in tensors]  # type: ignore[arg-type]
        held = {name: tensors.pop(name) for name in known}
        return cls(**held, **{name: options[name] for name in cls.option_names if name in options})


@dataclass(frozen=True, eq=False)
class InputShift(StepBase):
    """Add a shift to every input, then clip.

    Args:
        delta: Shift, of one input's shape without the batch.
        low: Least value of a shifted input; None, with ``high``: no clipping.
        high: Greatest value.
    """

    kind: ClassVar[str] = "input_shift"
    option_names: ClassVar[tuple[str, ...]] = ("low", "high")

    delta: AnyFloats
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", tensor(self.delta, "delta", np.float32))
        if (self.low is None) != (self.high is None):
            raise InputError("give both low and high to clip, or neither")
        if self.low is not None and not -LARGEST <= self.low < (self.high or 0.0) <= LARGEST:
            raise InputError(f"low must be below high, both in float32, got {self.low} and {self.high}")

    @property
    def is_nothing(self) -> bool:
        """True where delta is 0 and nothing is clipped."""
        return self.low is None and not self.delta.any()

    def __call__(self, inputs: AnyFloats) -> AnyFloats:
        """Shifted inputs (n, *delta.shape), in the dtype they came in."""
        if inputs.shape[1:] != self.delta.shape:
            raise ShapeError(
                f"inputs must be (n, {', '.join(map(str, self.delta.shape))}), got {inputs.shape}"
            )
        shifted = (inputs + self.delta).astype(inputs.dtype)
        return shifted if self.low is None else np.clip(shifted, self.low, self.high)


@dataclass(frozen=True, eq=False)
class Head(StepBase):
    """Replace the last linear layer by linear layers with ReLU between.

    Args:
        weights: Of each layer (out, in).
        biases: Of each layer (out,).
    """

    kind: ClassVar[str] = "head"

    weights: tuple[AnyFloats, ...]
    biases: tuple[AnyFloats, ...]

    def __post_init__(self) -> None:
        weights = tuple(tensor(w, "head weight", np.float32) for w in self.weights)
        biases = tuple(tensor(b, "head bias", np.float32) for b in self.biases)
        if not weights or len(weights) != len(biases):
            raise ShapeError(
                f"a head needs one bias a weight, got {len(weights)} weights and {len(biases)} biases"
            )
        width = None
        for w, b in zip(weights, biases, strict=True):
            if w.ndim != 2 or b.shape != (w.shape[0],) or width not in (None, w.shape[1]):
                raise ShapeError(
                    f"head layers do not chain: weight {w.shape}, bias {b.shape}, input width {width}"
                )
            width = w.shape[0]
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "biases", biases)

    @property
    def classes(self) -> int:
        """The number K of classes."""
        return int(self.weights[-1].shape[0])

    @property
    def tensors(self) -> dict[str, AnyFloats]:
        """weight0, bias0, weight1 and so on."""
        pairs = enumerate(zip(self.weights, self.biases, strict=True))
        return {f"{what}{i}": t for i, (w, b) in pairs for what, t in (("weight", w), ("bias", b))}

    @property
    def options(self) -> dict[str, Any]:
        """The number of layers."""
        return {"layers": len(self.weights)}

    @classmethod
    def build(cls, options: Mapping[str, Any], tensors: dict[str, AnyFloats]) -> Head:
        """Build the head from a manifest's entry.

        Args:
            options: Its options.
            tensors: Tensors by name; its own are removed.
        """
        layers = range(int(options["layers"]))
        return cls(
            tuple(tensors.pop(f"weight{i}") for i in layers), tuple(tensors.pop(f"bias{i}") for i in layers)
        )

    def __call__(self, features: AnyFloats) -> AnyFloats:
        """Logits (n, K) of features (n, d)."""
        if features.ndim != 2 or features.shape[1] != self.weights[0].shape[1]:
            raise ShapeError(f"features must be (n, {self.weights[0].shape[1]}), got {features.shape}")
        hidden = features
        for i, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = (np.maximum(hidden, 0) if i else hidden) @ w.T + b
        return hidden


@dataclass(frozen=True, eq=False)
class LogitMap(StepBase):
    """W z + b on logits or on log-probabilities.

    Args:
        weight: () for a scalar (1 / T, so positive), (K,) for a diagonal, (K, K) for a full matrix, whose row
            k makes logit k.
        bias: (K,) or None.
        on: "logits" or "log_probs".
        least: Log-probabilities of less are read as its logarithm, where it is not None.

    >>> LogitMap.temperature(2.0)(np.array([[2.0, 0.0]])).tolist()
    [[1.0, 0.0]]
    """

    kind: ClassVar[str] = "logit_map"
    option_names: ClassVar[tuple[str, ...]] = ("on", "least")

    weight: AnyFloats
    bias: AnyFloats | None = None
    on: Literal["logits", "log_probs"] = "logits"
    least: float | None = None

    def __post_init__(self) -> None:
        weight = tensor(self.weight, "weight", most=LARGEST)
        object.__setattr__(self, "weight", weight)
        if self.least is not None and not (self.on == "log_probs" and LEAST <= self.least < 1):
            raise InputError(f"least is of log-probabilities, a probability below 1, got {self.least!r}")
        if self.on not in ("logits", "log_probs"):
            raise InputError(f"on must be 'logits' or 'log_probs', got {self.on!r}")
        if weight.ndim > 2 or (weight.ndim == 2 and weight.shape[0] != weight.shape[1]):
            raise ShapeError(f"weight must be (), (K,) or (K, K), got {weight.shape}")
        # Served models hold the weight in float32, where a smaller one is 0.
        if weight.ndim == 0 and weight < LEAST:
            raise InputError(f"a scalar weight is 1 / T and must be positive in float32, got {float(weight)}")
        if self.bias is not None:
            bias = tensor(self.bias, "bias", most=LARGEST)
            if bias.ndim != 1 or weight.shape[:1] not in ((), bias.shape):
                raise ShapeError(f"bias must be (K,) and fit weight {weight.shape}, got {bias.shape}")
            object.__setattr__(self, "bias", bias)

    @classmethod
    def temperature(cls, t: float) -> LogitMap:
        """Divide logits by a temperature.

        Args:
            t: T above 0.
        """
        if not (math.isfinite(t) and t > 0):
            raise InputError(f"a temperature must be positive and finite, got {t}")
        return cls(np.array(1 / t))

    @property
    def classes(self) -> int | None:
        """K, or None when a scalar fits any."""
        shaped = self.weight if self.weight.ndim else self.bias
        return None if shaped is None else int(shaped.shape[0])

    @property
    def is_scalar(self) -> bool:
        """Tell whether it only divides by a temperature."""
        return self.weight.ndim == 0 and self.bias is None and self.least is None

    @property
    def options(self) -> dict[str, Any]:
        """The scores it acts on, and the least probability where it has one."""
        return {"on": self.on, **({} if self.least is None else {"least": self.least})}

    @property
    def is_nothing(self) -> bool:
        """True where W is the identity and b zero, on logits."""
        same = self.weight == (np.eye(len(self.weight)) if self.weight.ndim == 2 else 1)
        return self.on == "logits" and bool(np.all(same)) and (self.bias is None or not self.bias.any())

    @property
    def ignores_shift(self) -> bool:
        """Tell whether a number added to all logits of a row changes no probability.

        Then logits and log-probabilities of one model are the same to it. A scale of each class is not.
        """
        if self.on == "log_probs" or self.weight.ndim == 0:
            return True
        sums = self.weight if self.weight.ndim == 1 else self.weight.sum(axis=1)
        return bool(np.ptp(sums) <= 1e-12 * np.abs(self.weight).max(initial=1.0))

    def fold_into(self, weight: Exact, bias: Exact) -> tuple[Exact, Exact]:
        """Return the linear layer composed with this map.

        Args:
            weight: Of the linear layer (K, d).
            bias: Of the linear layer (K,).

        >>> LogitMap.temperature(2.0).fold_into(np.array([[2.0], [4.0]]), np.zeros(2))[0].tolist()
        [[1.0], [2.0]]
        """
        if self.on != "logits":
            raise InputError("a map on log-probabilities cannot be folded into a linear layer")
        # Each column of the layer and its bias is a vector of logits to map.
        w = self.weight.astype(np.float64)
        return w @ weight if w.ndim == 2 else (w * weight.T).T, self(bias[None])[0]

    def __call__(self, logits: AnyFloats, _sources: Any = None) -> Exact:
        """Mapped logits (n, K), in float64, whatever the sources; a masked class stays masked.

        A matrix has NaN for a row where one is: it needs the logits of every class, and a mask leaves none.
        """
        z: Exact = log_softmax(logits) if self.on == "log_probs" else np.asarray(logits, np.float64)
        given, masked = z, z <= MASKED
        if self.least is not None:
            z = np.maximum(z, math.log(self.least))
        with np.errstate(invalid="ignore"):
            z = z @ self.weight.T if self.weight.ndim == 2 else z * self.weight
        z = z if self.bias is None else z + self.bias
        if self.is_scalar or not masked.any():
            return z
        lost = masked.any(axis=1, keepdims=True) & (self.weight.ndim == 2)
        return np.where(lost, np.nan, np.where(masked, given, z))


@dataclass(frozen=True, eq=False)
class SourceMaps(StepBase):
    """Divide logits by the temperature of each sample's source, such as a hospital, and add its bias.

    A source is what servers call a segment. Row 0 is the common map, of any source that is not known.

    Args:
        by: Column that says the source.
        sources: Their names (S,).
        weight: 1 / T of each (S + 1,), positive.
        bias: (S + 1, K), or None.

    >>> maps = SourceMaps("site", ["north"], np.array([1.0, 0.5]))
    >>> maps(np.array([[2.0, 0.0], [2.0, 0.0]]), ["north", "elsewhere"]).tolist()
    [[1.0, 0.0], [2.0, 0.0]]
    """

    kind: ClassVar[str] = "source_maps"
    option_names: ClassVar[tuple[str, ...]] = ("by", "sources")
    on: ClassVar[str] = "logits"
    is_scalar: ClassVar[bool] = False

    by: str
    sources: tuple[str, ...]
    weight: AnyFloats
    bias: AnyFloats | None = None

    def __post_init__(self) -> None:
        names = tuple(self.sources)
        # As long as receipts hold a segment.
        if not all(isinstance(one, str) and 0 < len(one) < 64 for one in (self.by, *names)):
            raise InputError("a source and its column are texts of 1 to 63 characters")
        if not names or len(set(names)) < len(names):
            raise InputError(f"there must be sources, each named once, got {few(names)}")
        weight = tensor(self.weight, "weight", most=LARGEST)
        if weight.shape != (len(names) + 1,) or (weight < LEAST).any():
            raise InputError(f"weight must be ({len(names) + 1},), each 1 / T and positive, got {weight}")
        if self.bias is not None:
            bias = tensor(self.bias, "bias", most=LARGEST)
            if bias.ndim != 2 or len(bias) != len(weight):
                raise ShapeError(f"bias must be ({len(weight)}, K), got {bias.shape}")
            object.__setattr__(self, "bias", bias)
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "sources", names)

    @property
    def classes(self) -> int | None:
        """K, or None where temperatures fit any."""
        return None if self.bias is None else int(self.bias.shape[1])

    @property
    def options(self) -> dict[str, Any]:
        """The column and the names."""
        return {"by": self.by, "sources": list(self.sources)}

    def rows(self, sources: Sources, n: int) -> NDArray[np.intp]:
        """Find the row of each sample's map (n,): 0 where its source is not known.

        Args:
            sources: Source of each, one text or n.
            n: Number of samples.
        """
        place = {name: row for row, name in enumerate(self.sources, 1)}
        if isinstance(sources, str):
            return np.full(n, place.get(sources, 0))
        if len(sources) != n:
            raise ShapeError(f"give one source for each of {n} samples, got {len(sources)}")
        return np.fromiter((place.get(str(one), 0) for one in sources), np.intp, n)

    def at(self, source: str) -> LogitMap:
        """Return the map of one source; the common one for a source that is not known.

        Args:
            source: Its name.
        """
        (row,) = self.rows(source, 1)
        return LogitMap(self.weight[row], None if self.bias is None else self.bias[row])

    def __call__(self, logits: AnyFloats, sources: Any) -> Exact:
        """Mapped logits (n, K), in float64, as of their ``sources``; a masked class stays masked."""
        z, row = np.asarray(logits, np.float64), self.rows(sources, len(logits))
        mapped = z * self.weight[row, None] + (0.0 if self.bias is None else self.bias[row])
        return np.where(z <= MASKED, z, mapped)


@dataclass(frozen=True, eq=False)
class Mixture(StepBase):
    """Probabilities as a weighted sum of softmaxes and the uniform distribution (Zhang 2020, eq. 7).

    sum_m ``weights[m]`` softmax(``scales[m]`` z) + ``weights[M]`` / K.

    Args:
        scales: 1 / T of each softmax (M,), positive.
        weights: (M + 1,), the uniform's last, not negative, with the sum 1.

    >>> Mixture(scales=[1.0], weights=[0.5, 0.5])(np.array([[0.0, 1e9]])).tolist()
    [[0.25, 0.75]]
    """

    kind: ClassVar[str] = "mixture"

    scales: AnyFloats
    weights: AnyFloats

    def __post_init__(self) -> None:
        scales = tensor(self.scales, "scales", most=LARGEST)
        weights = tensor(self.weights, "weights")
        if scales.ndim != 1 or not len(scales) or weights.shape != (len(scales) + 1,):
            raise ShapeError(f"scales (M,) and weights (M + 1,) do not fit: {scales.shape}, {weights.shape}")
        if (scales <= 0).any():
            raise InputError("scales are 1 / T and must be positive")
        if (weights < 0).any() or abs(weights.sum() - 1) > 1e-6:
            raise InputError(f"weights must not be negative and must sum to 1, got {weights.tolist()}")
        object.__setattr__(self, "scales", scales)
        object.__setattr__(self, "weights", weights)

    def __call__(self, logits: AnyFloats) -> NDArray[np.float64]:
        """Probabilities (n, K) of logits (n, K)."""
        z = np.asarray(logits, np.float64)
        p = np.full_like(z, self.weights[-1] / z.shape[1])
        for scale, weight in zip(self.scales, self.weights, strict=False):
            p += weight * softmax(scale * z)
        return p


@dataclass(frozen=True, eq=False)
class ProbTable(StepBase):
    """Look calibrated probabilities up by bin; bins are (lo, hi], the first holds 0.

    R = 1: the table maps the top-1 confidence, and the other classes share the rest in their
    old proportions. R = K: one row per class, renormalised; per label, as it is.

    Args:
        edges: Inner bin edges (R, B - 1), rising.
        values: Probabilities (R, B).
    """

    kind: ClassVar[str] = "prob_table"

    edges: AnyFloats
    values: AnyFloats

    def __post_init__(self) -> None:
        edges, values = tensor(self.edges, "edges"), tensor(self.values, "values")
        if edges.ndim != 2 or values.shape != (edges.shape[0], edges.shape[1] + 1):
            raise ShapeError(
                f"edges (R, B - 1) and values (R, B) do not fit: {edges.shape} and {values.shape}"
            )
        if (np.diff(edges, axis=1) < 0).any() or (edges < 0).any() or (edges > 1).any():
            raise InputError("edges must rise within [0, 1]")
        if (values < 0).any() or (values > 1).any():
            raise InputError("values must be probabilities")
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "values", values)

    @property
    def classes(self) -> int | None:
        """K, or None for the one row of the top-1 confidence."""
        return len(self.edges) if len(self.edges) > 1 else None

    def __call__(self, probs: AnyFloats) -> NDArray[np.float64]:
        """Calibrated probabilities (n, K) of probabilities (n, K); NaN, which lies in no bin, stays NaN."""
        p = np.asarray(probs, np.float64)
        if len(self.edges) == 1:
            return np.where(np.isnan(p), p, self._top1(p))
        looked_up = self.of_each(p)
        total = looked_up.sum(axis=1, keepdims=True)
        # Uniform where every class falls into a bin of value 0.
        return np.where(total == 0, 1 / p.shape[1], looked_up / np.where(total == 0, 1, total))

    def of_each(self, probs: AnyFloats) -> NDArray[np.float64]:
        """Look up each column in its own row of the table, not renormalised: for labels.

        Args:
            probs: (n, R).
        """
        p = np.asarray(probs, np.float64)
        if p.shape[1] != len(self.edges):
            raise ShapeError(f"the table is for {len(self.edges)} classes, got {p.shape[1]}")
        rows = zip(self.edges, self.values, strict=True)
        found = np.stack([v[np.searchsorted(e, p[:, k])] for k, (e, v) in enumerate(rows)], axis=1)
        return np.where(np.isnan(p), p, found)

    def _top1(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        rows, top = np.arange(len(p)), p.argmax(axis=1)
        old = p[rows, top]
        new = self.values[0][np.searchsorted(self.edges[0], old)]
        # At least LEAST, also in fused models: where all others round to 0 they share the rest alike.
        others = np.maximum(p, LEAST)
        others[rows, top] = 0
        out: NDArray[np.float64] = others * ((1 - new) / others.sum(axis=1))[:, None]
        out[rows, top] = new
        return out


Step = Union[InputShift, Head, LogitMap, SourceMaps, Mixture, ProbTable]
STEPS: tuple[type[Step], ...] = (InputShift, Head, LogitMap, SourceMaps, Mixture, ProbTable)
"""Kinds of steps, in the order in which they act."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Samples of the fit with their calibrated probabilities.

    Whoever puts the calibration somewhere else proves the end result by them: the fit's own scores must come
    out as the fit's own probabilities. ``rows`` says which samples are kept.

    Args:
        logits: (m, K), as the output steps take them.
        probs: Calibrated probabilities (m, K).
    """

    logits: AnyFloats
    probs: AnyFloats

    def __post_init__(self) -> None:
        logits, probs = tensor(self.logits, "examples"), tensor(self.probs, "examples' probabilities")
        if logits.ndim != 2 or logits.shape != probs.shape or not len(logits):
            raise ShapeError(f"examples must be (m, K) twice, got {logits.shape} and {probs.shape}")
        if probs.min() < 0 or probs.max() > 1:
            raise InputError("the examples' probabilities must lie in [0, 1]")
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "probs", probs)

    @staticmethod
    def rows(samples: int, classes: int) -> NDArray[np.intp]:
        """Choose the samples that are kept, evenly spread: 8, fewer of very many classes, perhaps none.

        Args:
            samples: Number of samples.
            classes: Number of classes.

        >>> Examples.rows(100, 10).tolist()
        [0, 14, 28, 42, 56, 70, 84, 99]
        """
        # A manifest's tensors stay small for many classes.
        kept = min(8, samples, 20_000 // classes)
        return np.linspace(0, samples - 1, kept).astype(np.intp)
