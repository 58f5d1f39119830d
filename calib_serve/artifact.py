"""The artifact: what a fit found, as five kinds of steps that any runtime can carry out.

Fitters make artifacts; fusers, handlers and reports read them and know steps only, never
algorithms. On disk an artifact is a folder of two files, ``manifest.yaml`` and
``params.safetensors``; the manifest holds the sha256 of both, and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Union

import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from calib_serve.bins import Bins
from calib_serve.errors import ArtifactError, InputError, IntegrityError, SchemaError, ShapeError
from calib_serve.metrics import log_softmax, softmax

__all__ = ["SCHEMA", "Artifact", "Head", "InputShift", "LogitMap", "Mixture", "ProbTable", "Step"]

SCHEMA = 1
MANIFEST = "manifest.yaml"
PARAMS = "params.safetensors"
_MANIFEST_LIMIT = 1 << 20  # bytes; a manifest is a page or two

Floats = NDArray[np.floating[Any]]


def _tensor(value: Any, name: str, dtype: type[np.floating[Any]] = np.float64) -> Floats:
    array = np.array(value, dtype)
    if not np.isfinite(array).all():
        raise InputError(f"{name} must be finite, got NaN or infinity")
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False)
class InputShift:
    """Add ``delta`` (one input's shape, without the batch) to every input, then clip to [low, high].

    ``low`` and ``high`` are both numbers or both None (no clipping).
    """

    kind: ClassVar[str] = "input_shift"

    delta: Floats
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", _tensor(self.delta, "delta", np.float32))
        if (self.low is None) != (self.high is None):
            raise InputError("give both low and high to clip, or neither")
        if self.low is not None and not (math.isfinite(self.low) and self.low < (self.high or 0.0)):
            raise InputError(f"low must be below high, got {self.low} and {self.high}")

    def __call__(self, inputs: Floats) -> Floats:
        """Shifted inputs (n, *delta.shape), in the dtype they came in."""
        if inputs.shape[1:] != self.delta.shape:
            raise ShapeError(
                f"inputs must be (n, {', '.join(map(str, self.delta.shape))}), got {inputs.shape}"
            )
        shifted = (inputs + self.delta).astype(inputs.dtype)
        return shifted if self.low is None else np.clip(shifted, self.low, self.high)


@dataclass(frozen=True, eq=False)
class Head:
    """Replace the last linear layer: ``weights[i]`` (out, in) and ``biases[i]`` (out,), ReLU between."""

    kind: ClassVar[str] = "head"

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]

    def __post_init__(self) -> None:
        weights = tuple(_tensor(w, "head weight", np.float32) for w in self.weights)
        biases = tuple(_tensor(b, "head bias", np.float32) for b in self.biases)
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

    def __call__(self, features: Floats) -> Floats:
        """Logits (n, K) of features (n, d)."""
        if features.ndim != 2 or features.shape[1] != self.weights[0].shape[1]:
            raise ShapeError(f"features must be (n, {self.weights[0].shape[1]}), got {features.shape}")
        hidden = features
        for i, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = (np.maximum(hidden, 0) if i else hidden) @ w.T + b
        return hidden


@dataclass(frozen=True, eq=False)
class LogitMap:
    """W z + b on logits or on log-probabilities.

    ``weight`` is () for a scalar (1 / T, so positive), (K,) for a diagonal, (K, K) for a full
    matrix (row k makes logit k); ``bias`` is (K,) or None.

    >>> LogitMap.temperature(2.0)(np.array([[2.0, 0.0]])).tolist()
    [[1.0, 0.0]]
    """

    kind: ClassVar[str] = "logit_map"

    weight: Floats
    bias: Floats | None = None
    on: Literal["logits", "log_probs"] = "logits"

    def __post_init__(self) -> None:
        weight = _tensor(self.weight, "weight")
        object.__setattr__(self, "weight", weight)
        if self.on not in ("logits", "log_probs"):
            raise InputError(f"on must be 'logits' or 'log_probs', got {self.on!r}")
        if weight.ndim > 2 or (weight.ndim == 2 and weight.shape[0] != weight.shape[1]):
            raise ShapeError(f"weight must be (), (K,) or (K, K), got {weight.shape}")
        if weight.ndim == 0 and weight <= 0:
            raise InputError(f"a scalar weight is 1 / T and must be positive, got {float(weight)}")
        if self.bias is not None:
            bias = _tensor(self.bias, "bias")
            if bias.ndim != 1 or weight.shape[:1] not in ((), bias.shape):
                raise ShapeError(f"bias must be (K,) and fit weight {weight.shape}, got {bias.shape}")
            object.__setattr__(self, "bias", bias)

    @classmethod
    def temperature(cls, t: float) -> LogitMap:
        """Divide logits by T > 0."""
        if not (math.isfinite(t) and t > 0):
            raise InputError(f"a temperature must be positive and finite, got {t}")
        return cls(np.array(1 / t))

    @property
    def classes(self) -> int | None:
        """K, or None when a scalar fits any."""
        shaped = self.weight if self.weight.ndim else self.bias
        return None if shaped is None else int(shaped.shape[0])

    def __call__(self, logits: Floats) -> Floats:
        """Mapped logits (n, K), in float64."""
        z = log_softmax(logits) if self.on == "log_probs" else np.asarray(logits, np.float64)
        z = z @ self.weight.T if self.weight.ndim == 2 else z * self.weight
        return z if self.bias is None else z + self.bias


@dataclass(frozen=True, eq=False)
class Mixture:
    """Probabilities as a weighted sum of softmaxes and the uniform distribution (Zhang 2020, eq. 7).

    sum_m ``weights[m]`` softmax(``scales[m]`` z) + ``weights[M]`` / K: ``scales`` (M,) are 1 / T,
    positive; ``weights`` (M + 1,), the uniform's last, are not negative and sum to 1.

    >>> Mixture(scales=[1.0], weights=[0.5, 0.5])(np.array([[0.0, 1e9]])).tolist()
    [[0.25, 0.75]]
    """

    kind: ClassVar[str] = "mixture"

    scales: Floats
    weights: Floats

    def __post_init__(self) -> None:
        scales, weights = _tensor(self.scales, "scales"), _tensor(self.weights, "weights")
        if scales.ndim != 1 or not len(scales) or weights.shape != (len(scales) + 1,):
            raise ShapeError(f"scales (M,) and weights (M + 1,) do not fit: {scales.shape}, {weights.shape}")
        if (scales <= 0).any():
            raise InputError("scales are 1 / T and must be positive")
        if (weights < 0).any() or abs(weights.sum() - 1) > 1e-6:
            raise InputError(f"weights must not be negative and must sum to 1, got {weights.tolist()}")
        object.__setattr__(self, "scales", scales)
        object.__setattr__(self, "weights", weights)

    def __call__(self, logits: Floats) -> NDArray[np.float64]:
        """Probabilities (n, K) of logits (n, K)."""
        z = np.asarray(logits, np.float64)
        p = np.full_like(z, self.weights[-1] / z.shape[1])
        for scale, weight in zip(self.scales, self.weights, strict=False):
            p += weight * softmax(scale * z)
        return p


@dataclass(frozen=True, eq=False)
class ProbTable:
    """Look calibrated probabilities up by bin; bins are (lo, hi], the first holds 0.

    ``edges`` (R, B - 1) are the inner bin edges, rising; ``values`` (R, B) the probabilities.
    R = 1: the table maps the top-1 confidence, and the other classes share the rest in their
    old proportions. R = K: one row a class, renormalised.
    """

    kind: ClassVar[str] = "prob_table"

    edges: Floats
    values: Floats

    def __post_init__(self) -> None:
        edges, values = _tensor(self.edges, "edges"), _tensor(self.values, "values")
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

    def __call__(self, probs: Floats) -> NDArray[np.float64]:
        """Calibrated probabilities (n, K) of probabilities (n, K)."""
        p = np.asarray(probs, np.float64)
        if len(self.edges) == 1:
            return self._top1(p)
        if p.shape[1] != len(self.edges):
            raise ShapeError(f"the table is for {len(self.edges)} classes, got {p.shape[1]}")
        looked_up = np.stack(
            [
                v[np.searchsorted(e, p[:, k])]
                for k, (e, v) in enumerate(zip(self.edges, self.values, strict=True))
            ],
            axis=1,
        )
        total = looked_up.sum(axis=1, keepdims=True)
        # Every class may land in a bin of value 0: then nothing is known.
        return np.where(total > 0, looked_up / np.where(total > 0, total, 1), 1 / p.shape[1])

    def _top1(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        rows, top = np.arange(len(p)), p.argmax(axis=1)
        old = p[rows, top]
        new = self.values[0][np.searchsorted(self.edges[0], old)]
        others = p.copy()
        others[rows, top] = 0
        rest = others.sum(axis=1, keepdims=True)
        even = 1 / max(p.shape[1] - 1, 1)
        shared = np.where(rest > 0, others / np.where(rest > 0, rest, 1), even)
        out: NDArray[np.float64] = shared * (1 - new)[:, None]
        out[rows, top] = new
        return out


Step = Union[InputShift, Head, LogitMap, Mixture, ProbTable]
_STEPS: tuple[type[Step], ...] = (InputShift, Head, LogitMap, Mixture, ProbTable)


@dataclass(frozen=True, eq=False)
class Artifact:
    """What a fit found and what is known about it.

    ``steps`` in the order they act: at most one InputShift, at most one Head, any LogitMaps, at
    most one Mixture, at most one ProbTable. ``model``, ``data``, ``fit`` are plain facts (str,
    numbers, lists, mappings); ``before`` and ``after`` map a metric's name to its value, low and
    high on held-out data; ``reference`` are the calibrated model's bins on the calibration set.

    >>> artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2)
    >>> artifact.probs(np.array([[0.0, 0.0]])).tolist()
    [[0.5, 0.5]]
    """

    steps: tuple[Step, ...]
    method: str
    classes: int
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    fit: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    reference: Bins | None = None
    class_names: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        object.__setattr__(self, "class_names", tuple(self.class_names))
        if self.classes < 2:
            raise InputError(f"a classifier has at least 2 classes, got {self.classes}")
        if self.class_names and len(self.class_names) != self.classes:
            raise ShapeError(f"{self.classes} classes but {len(self.class_names)} class names")
        order = [_STEPS.index(type(step)) for step in self.steps]
        single = [i for i in order if _STEPS[i] is not LogitMap]
        if order != sorted(order) or len(single) != len(set(single)):
            kinds = ", ".join(step.kind for step in self.steps)
            raise InputError(
                f"steps must be: input_shift, head, logit_map ..., mixture, prob_table; got {kinds}"
            )
        for step in self.steps:
            width = _width(step)
            if width not in (None, self.classes):
                raise ShapeError(
                    f"the {step.kind} step is for {width} classes, the artifact for {self.classes}"
                )
        for name in ("model", "data", "fit", "before", "after", "versions"):
            object.__setattr__(self, name, _plain(getattr(self, name), name))

    @property
    def input_shift(self) -> InputShift | None:
        """The step on the input, if any."""
        return next((s for s in self.steps if isinstance(s, InputShift)), None)

    @property
    def head(self) -> Head | None:
        """The new last layers, if any."""
        return next((s for s in self.steps if isinstance(s, Head)), None)

    @property
    def output_steps(self) -> tuple[LogitMap | Mixture | ProbTable, ...]:
        """The steps that need the logits alone."""
        return tuple(s for s in self.steps if isinstance(s, (LogitMap, Mixture, ProbTable)))

    def probs(self, logits: Floats) -> NDArray[np.float64]:
        """Calibrated probabilities (n, K) of logits (n, K), by the output steps.

        Where the artifact has an InputShift or a Head, the logits must come from the model with
        these already in place.
        """
        z = np.asarray(logits)
        if z.ndim != 2 or z.shape[1] != self.classes:
            raise ShapeError(f"logits must be (n, {self.classes}), got {z.shape}")
        mixture: Mixture | None = None
        table: ProbTable | None = None
        for step in self.output_steps:
            if isinstance(step, ProbTable):
                table = step
            elif isinstance(step, Mixture):
                mixture = step
            else:
                z = step(z)
        p = softmax(z) if mixture is None else mixture(z)
        return p if table is None else table(p)

    @property
    def fingerprint(self) -> str:
        """The sha256 of everything in the artifact."""
        return self._manifest(_sha256(self._params()))["sha256"]  # type: ignore[no-any-return]

    def save(self, path: str | Path) -> Path:
        """Write the folder ``path``, whole or not at all; replaces an artifact that is there."""
        path = Path(path)
        if path.exists() and not (path.is_dir() and {p.name for p in path.iterdir()} <= {MANIFEST, PARAMS}):
            raise ArtifactError(f"{path} exists and is not an artifact; choose another folder")
        params = self._params()
        manifest = yaml.safe_dump(self._manifest(_sha256(params)), sort_keys=False, allow_unicode=True)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            partial.mkdir(parents=True)
            _write(partial / PARAMS, params)
            _write(partial / MANIFEST, manifest.encode())
            if path.exists():
                old = path.with_name(f"{partial.name}.old")
                path.rename(old)
                partial.rename(path)
                shutil.rmtree(old)
            else:
                partial.rename(path)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise ArtifactError(f"cannot write the artifact {path}: {error}") from error
        return path

    @classmethod
    def load(cls, path: str | Path) -> Artifact:
        """Read and check a folder written by ``save``.

        Raises SchemaError for a manifest that is not ours, IntegrityError when a hash does not match.
        """
        path = Path(path)
        manifest = _read_manifest(path / MANIFEST)
        params = _read(path / PARAMS)
        if _sha256(params) != manifest["params_sha256"]:
            raise IntegrityError(
                f"{path / PARAMS} is not the file the manifest was written for; fit or copy it again"
            )
        try:
            artifact = _build(manifest, params)
        except (InputError, KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
            raise SchemaError(f"{path} is not a valid artifact: {error}") from error
        return artifact

    def _params(self) -> bytes:
        flat = {
            f"step{i}.{name}": np.asarray(array, order="C")
            for i, step in enumerate(self.steps)
            for name, array in _tensors(step).items()
        }
        return save_tensors(flat)

    def _manifest(self, params_sha256: str) -> dict[str, Any]:
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "method": self.method,
            "classes": self.classes,
            "class_names": list(self.class_names),
            "steps": [{"kind": step.kind, **_options(step)} for step in self.steps],
            "model": self.model,
            "data": self.data,
            "fit": self.fit,
            "before": self.before,
            "after": self.after,
            "reference": None
            if self.reference is None
            else {
                name: getattr(self.reference, name).tolist() for name in ("count", "confidence", "correct")
            },
            "versions": self.versions,
            "params_sha256": params_sha256,
        }
        return {**content, "sha256": _digest(content)}


def _width(step: Step) -> int | None:
    """The class count a step is made for, or None for any."""
    if isinstance(step, Head):
        return int(step.weights[-1].shape[0])
    if isinstance(step, LogitMap):
        return step.classes
    if isinstance(step, ProbTable) and len(step.edges) > 1:
        return len(step.edges)
    return None


def _tensors(step: Step) -> dict[str, Floats]:
    if isinstance(step, InputShift):
        return {"delta": step.delta}
    if isinstance(step, Head):
        pairs = enumerate(zip(step.weights, step.biases, strict=True))
        return {f"{what}{i}": t for i, (w, b) in pairs for what, t in (("weight", w), ("bias", b))}
    if isinstance(step, LogitMap):
        return {"weight": step.weight} | ({} if step.bias is None else {"bias": step.bias})
    if isinstance(step, Mixture):
        return {"scales": step.scales, "weights": step.weights}
    return {"edges": step.edges, "values": step.values}


def _options(step: Step) -> dict[str, Any]:
    if isinstance(step, InputShift):
        return {"low": step.low, "high": step.high}
    if isinstance(step, LogitMap):
        return {"on": step.on}
    if isinstance(step, Head):
        return {"layers": len(step.weights)}
    return {}


def _build_step(facts: Mapping[str, Any], tensors: dict[str, Floats]) -> Step:
    kind = facts["kind"]
    if kind == InputShift.kind:
        return InputShift(tensors.pop("delta"), facts["low"], facts["high"])
    if kind == Head.kind:
        layers = range(int(facts["layers"]))
        return Head(
            tuple(tensors.pop(f"weight{i}") for i in layers), tuple(tensors.pop(f"bias{i}") for i in layers)
        )
    if kind == LogitMap.kind:
        return LogitMap(tensors.pop("weight"), tensors.pop("bias", None), facts["on"])
    if kind == Mixture.kind:
        return Mixture(tensors.pop("scales"), tensors.pop("weights"))
    if kind == ProbTable.kind:
        return ProbTable(tensors.pop("edges"), tensors.pop("values"))
    raise SchemaError(f"unknown step kind {kind!r}; this version knows {[s.kind for s in _STEPS]}")


def _build(manifest: Mapping[str, Any], params: bytes) -> Artifact:
    tensors = load_tensors(params)
    steps = []
    for i, facts in enumerate(manifest["steps"]):
        prefix = f"step{i}."
        own = {name[len(prefix) :]: tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
        steps.append(_build_step(facts, own))
        if own:
            raise SchemaError(f"step {i} has tensors it does not know: {sorted(own)}")
    if tensors:
        raise SchemaError(f"tensors that belong to no step: {sorted(tensors)}")
    reference = manifest["reference"]
    return Artifact(
        tuple(steps),
        method=str(manifest["method"]),
        classes=int(manifest["classes"]),
        **{
            name: manifest[name]
            for name in ("model", "data", "fit", "before", "after", "versions", "class_names")
        },
        reference=None if reference is None else Bins(**reference),
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    text = _read(path, limit=_MANIFEST_LIMIT)
    try:
        # Aliases let a few bytes stand for gigabytes; ours has none.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise SchemaError(f"{path} has YAML aliases; an artifact's manifest has none")
        manifest = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SchemaError(f"{path} is not YAML: {error}") from error
    if not isinstance(manifest, dict) or "schema" not in manifest:
        raise SchemaError(f"{path} is not an artifact's manifest: it has no schema version")
    if type(manifest["schema"]) is not int or manifest["schema"] != SCHEMA:
        raise SchemaError(
            f"{path} has schema {manifest['schema']!r}, this version of calib-serve reads {SCHEMA}; "
            "upgrade calib-serve or fit the artifact again"
        )
    claimed = manifest.pop("sha256", None)
    try:
        actual = _digest(manifest)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"{path} holds values that a manifest cannot: {error}") from error
    if claimed != actual:
        raise IntegrityError(f"{path} was changed after it was written; fit or copy it again")
    return manifest


def _read(path: Path, limit: int | None = None) -> bytes:
    try:
        if limit is not None and path.stat().st_size > limit:
            raise SchemaError(f"{path} has {path.stat().st_size} bytes, more than the {limit} allowed")
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(
            f"cannot read {path}: {error}; an artifact is a folder of {MANIFEST} and {PARAMS}"
        ) from error


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest(content: Mapping[str, Any]) -> str:
    return _sha256(json.dumps(content, sort_keys=True, allow_nan=False, ensure_ascii=False).encode())


def _plain(value: Any, name: str) -> Any:
    """``value`` as what YAML and JSON both hold; a metric that is NaN (undefined) becomes null."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise InputError(f"{name} holds an infinite number")
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, name) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist(), name)
    if isinstance(value, Sequence):
        return [_plain(item, name) for item in value]
    raise InputError(f"{name} holds a {type(value).__name__}; use strings, numbers, lists and mappings")
