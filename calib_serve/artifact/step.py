"""What every step answers of itself, whatever its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import InputError

__all__ = ["Floats", "StepBase", "tensor"]

Floats = NDArray[np.floating[Any]]


def tensor(value: Any, name: str, dtype: type[np.floating[Any]] = np.float64) -> Floats:
    """An array that nobody changes, once its numbers are finite."""
    array = np.array(value, dtype)
    if not np.isfinite(array).all():
        raise InputError(f"{name} must be finite, got NaN or infinity")
    array.setflags(write=False)
    return array


S = TypeVar("S", bound="StepBase")


class StepBase:
    """What most steps answer alike."""

    kind: ClassVar[str]
    option_names: ClassVar[tuple[str, ...]] = ()

    @property
    def classes(self) -> int | None:
        """The K that it is made for, None for any."""
        return None

    @property
    def is_nothing(self) -> bool:
        """Whether it changes no number: left out, the result is the same to the last bit."""
        return False

    @property
    def tensors(self) -> dict[str, Floats]:
        """What a file holds in tensors, by name."""
        held = {name: value for name, value in vars(self).items() if name not in self.option_names}
        return {name: value for name, value in held.items() if value is not None}

    @property
    def options(self) -> dict[str, Any]:
        """What a file holds besides."""
        return {name: getattr(self, name) for name in self.option_names}

    @classmethod
    def build(cls: type[S], options: Mapping[str, Any], tensors: dict[str, Floats]) -> S:
        """The step of its options and tensors; those it knows are taken out of ``tensors``."""
        known = [f.name for f in fields(cls) if f.name in tensors]  # type: ignore[arg-type]
        held = {name: tensors.pop(name) for name in known}
        return cls(**held, **{name: options[name] for name in cls.option_names})
