"""Facts about the model that an artifact was fitted on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from calib_serve.artifact.manifest import plain
from calib_serve.errors import InputError
from calib_serve.pictures import Preprocessing
from calib_serve.scores import Outputs, check_outputs


@dataclass(frozen=True)
class ModelFacts:
    """The model that an artifact was fitted on; None where unknown.

    ``sha256`` of its file's bytes, ``source``: the file's name or the factory, ``input_shape`` of one
    input (-1 for any size), ``input_dtype`` by numpy's name, ``outputs``: what the model itself returns and
    the calibration was fitted on (``calib_serve.scores``),
    ``last_linear``: the layer that makes its logits, ``mixed_precision``: whether logits were computed
    in bfloat16, ``response``: what it gives for made-up inputs (``calib_serve.artifact.response``), which
    tells another export of it, ``pictures``: how pictures became the inputs that it was fitted on, or a
    mapping of that. Of an artifact fitted on an archive's handler, ``seam`` and ``output`` say where its
    scores pass (as in ``pack_around``), and ``outputs`` what they are. Raises InputError for a fact of
    another type.

    >>> ModelFacts(outputs="logits", input_shape=[3, 8, 8]).as_dict()
    {'input_shape': [3, 8, 8], 'outputs': 'logits'}
    """

    sha256: str | None = None
    source: str | None = None
    input_shape: tuple[int | None, ...] | None = None
    input_dtype: str | None = None
    outputs: Outputs | None = None
    last_linear: str | None = None
    mixed_precision: bool | None = None
    response: tuple[float, ...] | None = None
    seam: str | None = None
    output: str | None = None
    pictures: Preprocessing | None = None
    _held: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("sha256", "source", "input_dtype", "last_linear", "seam", "output"):
            _check(name, getattr(self, name), isinstance(getattr(self, name), str), "a text")
        mixed = self.mixed_precision
        _check("mixed_precision", mixed, isinstance(mixed, bool), "true or false")
        numbers = self.response
        right = isinstance(numbers, Sequence) and all(
            isinstance(x, (int, float)) and math.isfinite(x) for x in numbers
        )
        _check("response", numbers, right, "a list of finite numbers")
        object.__setattr__(self, "response", None if numbers is None else tuple(map(float, numbers)))
        try:
            check_outputs(self.outputs)
        except InputError as error:
            raise InputError(f"what the model returns: {error}") from error
        shape = self.input_shape
        sizes = isinstance(shape, Sequence) and all(size is None or type(size) is int for size in shape)
        _check("input_shape", shape, sizes, "a list of whole numbers")
        object.__setattr__(self, "input_shape", None if shape is None else tuple(shape))
        if self.pictures is not None:
            try:
                object.__setattr__(self, "pictures", Preprocessing.of(self.pictures))
            except InputError as error:
                raise InputError(f"pictures of the model: {error}") from error

    @classmethod
    def of(cls, known: ModelFacts | Mapping[str, Any]) -> ModelFacts:
        """The facts in a mapping, such as a manifest's; the mapping itself is kept for ``as_dict``."""
        if isinstance(known, ModelFacts):
            return known
        if not isinstance(known, Mapping):
            raise InputError(f"what is known of the model must be a mapping, got {type(known).__name__}")
        held = plain(known, "model")
        facts = cls(**{f.name: held.get(f.name) for f in fields(cls) if f.init})
        object.__setattr__(facts, "_held", held)
        return facts

    def as_dict(self) -> dict[str, Any]:
        """For the manifest: the original mapping unchanged, else all known facts."""
        if self._held:
            return dict(self._held)
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        known["pictures"] = None if self.pictures is None else self.pictures.as_dict()
        return {name: plain(value, name) for name, value in known.items() if value is not None}

    def fits(self, sha256: str) -> bool:
        """Whether the model file may have this hash; True where the artifact's is unknown."""
        return not self.sha256 or self.sha256 == sha256

    def returned(self, told: Outputs | None) -> Outputs:
        """What the model itself returns: as ``told``, else as known, else logits.

        InputError where only that of a handler's seam is known, which may be another.
        """
        if told is None and self.seam is not None:
            raise InputError(
                f"the artifact was fitted on what passes {self.seam!r} in {self.source}, not on what the "
                "model file itself returns; say with --outputs (outputs=) what that is"
            )
        return told or self.outputs or "logits"


def _check(name: str, value: object, right: bool, wanted: str) -> None:
    if value is not None and not right:
        raise InputError(f"{name} of the model must be {wanted}, got {repr(value)[:80]}")
