"""The base class of the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import InputError

__all__ = ["LARGEST", "Floats", "StepBase", "tensor"]

Floats = NDArray[np.floating[Any]]


LARGEST = float(np.finfo(np.float32).max)
"""Of a number that acts on a model's scores: where they are served, it is float32."""


def tensor(
    value: Any, name: str, dtype: type[np.floating[Any]] = np.float64, *, most: float = np.inf
) -> Floats:
    """A read-only array; InputError unless its numbers are finite, and within ``most``."""
    with np.errstate(over="ignore"):
        array = np.array(value, dtype)
    if not np.isfinite(array).all():
        raise InputError(f"{name} must be finite, got NaN or infinity")
    if (np.abs(array) > most).any():
        raise InputError(f"{name} must be within {most:g}, what float32 holds; got {np.abs(array).max():g}")
    array.setflags(write=False)
    return array


S = TypeVar("S", bound="StepBase")


class StepBase:
    """Defaults that most steps share."""

    kind: ClassVar[str]
    option_names: ClassVar[tuple[str, ...]] = ()

    @property
    def classes(self) -> int | None:
        """The number of classes that it is for, None for any."""
        return None

    @property
    def is_nothing(self) -> bool:
        """Whether it is the identity: leaving it out changes no bit of the result."""
        return False

    @property
    def tensors(self) -> dict[str, Floats]:
        """The tensors that a file stores, by name."""
        held = {name: value for name, value in vars(self).items() if name not in self.option_names}
        return {name: value for name, value in held.items() if value is not None}

    @property
    def options(self) -> dict[str, Any]:
        """The other values that a file stores."""
        return {name: getattr(self, name) for name in self.option_names}

    @classmethod
    def build(cls: type[S], options: Mapping[str, Any], tensors: dict[str, Floats]) -> S:
        """The step from its options and tensors; its own are removed from ``tensors``."""
        known = [f.name for f in fields(cls) if f.name in tensors]  # type: ignore[arg-type]
        held = {name: tensors.pop(name) for name in known}
        return cls(**held, **{name: options[name] for name in cls.option_names})
