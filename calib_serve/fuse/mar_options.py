"""An archive's options for its handler: the ``calib_serve`` section of its model-config.yaml."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from calib_serve.artifact import Outputs, read_outputs
from calib_serve.errors import ModelError

__all__ = [
    "KEYRING",
    "LABEL_BUDGET",
    "LEDGER",
    "METRICS",
    "MODELS",
    "SAMPLES",
    "SAMPLE_RATE",
    "SAMPLE_SECONDS",
    "SECTION",
    "WRITER",
    "Kind",
    "ModelOptions",
    "from_environment",
]

SECTION = "calib_serve"
# The host's own settings, which no archive may carry: set by ``calib-serve serve``.
KEYRING = "CALIB_SERVE_KEYRING"
LEDGER = "CALIB_SERVE_LEDGER"
WRITER = "CALIB_SERVE_WRITER"
MODELS = "CALIB_SERVE_MODELS"
METRICS = "CALIB_SERVE_METRICS"
SAMPLES = "CALIB_SERVE_SAMPLES"
SAMPLE_RATE = "CALIB_SERVE_SAMPLE_RATE"
SAMPLE_SECONDS = "CALIB_SERVE_SAMPLE_SECONDS"
LABEL_BUDGET = "CALIB_SERVE_LABEL_BUDGET"

Kind = Literal["torchscript", "exported", "eager", "onnx", "wrapped"]


@dataclass(frozen=True)
class ModelOptions:
    """One classifier's archive.

    ``model``: the model file; ``factory``: ``module:name`` for an eager model, whose ``model`` file
    holds the weights; ``wraps``: the original handler of a re-packed archive.
    ``outputs``: what the model itself returns. ``threads``: cores a worker may use (None: all
    cores shared evenly by the workers). ``top``: how many classes a reply lists;
    ``probabilities``: whether it lists all of them. ``abstain_below``: confidence under which a
    reply says so.
    """

    kind: Kind
    model: str
    sha256: str
    input_shape: tuple[int | None, ...] = ()
    input_dtype: str = "float32"
    outputs: Outputs = "logits"
    factory: str | None = None
    wraps: str | None = None
    last_linear: str | None = None
    artifact: str = "artifact"
    workers: int = 1
    threads: int | None = None
    top: int = 5
    probabilities: bool = True
    abstain_below: float | None = None
    allow_cpu_fallback: bool = False
    flush_seconds: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    max_pixels: int = 25_000_000

    def __post_init__(self) -> None:
        for name in ("input_shape", "mean", "std"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, allowed in (("kind", get_args(Kind)), ("outputs", get_args(Outputs))):
            if getattr(self, name) not in allowed:
                raise ModelError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        if self.abstain_below is not None and not 0 <= self.abstain_below <= 1:
            raise ModelError(f"abstain_below must be in [0, 1], got {self.abstain_below}")
        if not (self.flush_seconds > 0 and self.workers >= 1 and self.top >= 0 and self.max_pixels >= 1):
            raise ModelError("flush_seconds, workers and max_pixels must be positive, top not negative")

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> ModelOptions:
        """From the whole model-config; unknown keys, such as typos, are refused."""
        section = config.get(SECTION)
        if not isinstance(section, Mapping):
            raise ModelError(f"model-config.yaml has no {SECTION!r} section; pack with: calib-serve pack")
        known = {field.name for field in fields(cls)}
        if unknown := set(section) - known:
            raise ModelError(
                f"the {SECTION} section has unknown keys {sorted(unknown)}; known: {sorted(known)}"
            )
        try:
            return cls(**{**section, "outputs": read_outputs(section.get("outputs", "logits"))})
        except TypeError as error:
            raise ModelError(f"the {SECTION} section of model-config.yaml cannot be read: {error}") from error

    def as_dict(self) -> dict[str, Any]:
        """For YAML: required values, and those that differ from the defaults."""
        must = {"kind", "model", "sha256"}
        default = {field.name: field.default for field in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if name in must or value != default[name]
        }

    @property
    def cores(self) -> int:
        """Threads of this worker: the host's cores shared evenly unless ``threads`` says otherwise."""
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.threads or max(1, available // self.workers)


def from_environment(name: str) -> str | None:
    """A host's own setting, or None where it is not set or empty."""
    return os.environ.get(name) or None
