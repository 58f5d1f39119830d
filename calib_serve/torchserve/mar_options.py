"""An archive's options for its handler: the ``calib_serve`` section of its model-config.yaml."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Union, get_args

from calib_serve.artifact import Artifact, Preprocessing
from calib_serve.core.errors import InputError, ModelError
from calib_serve.core.options.pack import AnswerOptions, Wrapped
from calib_serve.scores import LABELS, Outputs

SECTION = "calib_serve"
TRIAL = "calibration_request.json"
"""The file of a re-packed archive that holds the request it was tried with."""

SHOWN = "calibration_shown.json"
"""The file of a re-packed archive that says what its handler's replies show of their rows."""

Kind = Literal["torchscript", "exported", "onnx", "wrapped"]


@dataclass(frozen=True)
class ModelOptions(AnswerOptions, Wrapped):
    """One classifier's archive.

    ``model``: the model file; ``wraps``: the original handler of a re-packed archive.
    ``seam``: the place in that handler where its class scores pass, and ``output``: where they lie in
    what passes, such as "logits".
    ``outputs``: what the model itself returns, or what passes the seam (``calib_serve.scores``).
    ``pictures``: how a picture becomes an input, or a mapping of that; "unknown": pictures are refused.
    ``proof``: what proves that the model, or the handler, gives the scores that were fitted.
    ``shadow``: the folder of another artifact, which runs in the shadow of the served one; "": none does.
    """

    kind: Kind
    model: str
    sha256: str
    input_shape: tuple[int | None, ...] = ()
    input_dtype: str = "float32"
    outputs: Outputs = "logits"
    wraps: str | None = None
    seam: str = "inference"
    output: str = ""
    artifact: str = "artifact"
    shadow: str = ""
    proof: str = ""
    workers: int = field(default=1, kw_only=True)
    pictures: Union[Preprocessing, Literal["unknown"]] = "unknown"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "input_shape", tuple(self.input_shape))
        if self.pictures != "unknown":
            found = Preprocessing.of(self.pictures).for_input(self.input_shape)
            if not self.input_dtype.startswith("float"):
                raise InputError(
                    f"pictures become fractions, the model takes {self.input_dtype}; leave out how they are "
                    "prepared, and send arrays"
                )
            object.__setattr__(self, "pictures", found)
        for name, allowed in (
            ("kind", get_args(Kind)),
            ("outputs", get_args(Outputs)),
            ("receipts", ("header", "body")),
        ):
            if getattr(self, name) not in allowed:
                raise ModelError(f"{name} must be one of {allowed}, got {getattr(self, name)!r}")
        if self.abstain_below is not None and self.outputs in LABELS:
            raise ModelError("of several labels there is no one confidence to abstain by; leave it out")
        if self.threshold != AnswerOptions.threshold and self.outputs not in LABELS:
            raise ModelError("threshold is of several labels, and one class is predicted here; leave it out")

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> ModelOptions:
        """Read the section of a whole model-config; unknown keys, such as typos, are refused."""
        section = config.get(SECTION)
        if not isinstance(section, Mapping):
            raise ModelError(f"model-config.yaml has no {SECTION!r} section; pack with: calib-serve pack")
        known = {field.name for field in fields(cls)}
        # A typo would leave a default in its place, and nothing would say so.
        if unknown := set(section) - known:
            raise ModelError(
                f"the {SECTION} section has unknown keys {sorted(unknown)}; known: {sorted(known)}"
            )
        try:
            return cls(**{**section, "outputs": section.get("outputs", "logits")})
        except (TypeError, InputError) as error:
            raise ModelError(f"the {SECTION} section of model-config.yaml cannot be read: {error}") from error

    def as_dict(self) -> dict[str, Any]:
        """Plain values for YAML: the required ones, and those that differ from the defaults."""
        must = {"kind", "model", "sha256"}
        held = {
            field.name: value
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default or field.name in must
        }
        if isinstance(self.pictures, Preprocessing):
            held["pictures"] = self.pictures.as_dict()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in held.items()}

    def check_artifact(self, artifact: Artifact) -> None:
        """Raise ModelError where both disagree on labels, both abstain, or scores are of places."""
        if artifact.model.class_axis is not None:
            raise ModelError(
                "the artifact is of tokens or pixels, and an archive answers with one prediction a sample: "
                "put it into the model with calib-serve fuse, or take artifact.one_place and a Reporter"
            )
        if artifact.model_steps and self.kind == "wrapped":
            raise ModelError(
                "the artifact changes the model itself, and that of a handler stays as it is: pack the "
                "model's file (--model), or put the steps into it with calib-serve fuse"
            )
        if artifact.source_maps is not None and self.kind == "wrapped":
            by = artifact.source_maps.by
            raise ModelError(
                f"a handler's seam does not know the {by}: pack the model itself, or Artifact.at"
            )
        if artifact.abstain is not None and self.abstain_below is not None:
            raise ModelError(
                f"the artifact abstains below {artifact.abstain.threshold:.4g}, and the "
                f"archive below {self.abstain_below}; leave out abstain_below=, or take an artifact without "
                "abstention"
            )
        if artifact.is_multilabel != (self.outputs in LABELS):
            fitted = artifact.model.outputs or "scores of one class a sample"
            raise ModelError(
                f"the artifact was fitted on {fitted}, and what it is to act on is {self.outputs}; say what "
                "that is with --outputs (outputs=), or take an artifact that was fitted on it"
            )

    @property
    def cores(self) -> int:
        """The threads of this worker: ``threads``, else an even share of the host's cores."""
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.threads or max(1, available // self.workers)
