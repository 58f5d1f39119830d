"""The output calibrators by name, from the simplest to the most flexible."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact
from calib_serve.errors import InputError
from calib_serve.fit.facts import complete
from calib_serve.fit.samples import ClassWeight, Samples
from calib_serve.fit.scaling import fit_temperature

__all__ = ["CANDIDATES", "Fitter", "fit_by_name", "fit_none"]

Fitter = Callable[..., Artifact]
"""(logits, labels, *, sample_weight=None, ...) -> Artifact."""


def fit_none(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    class_weight: ClassWeight = None,
) -> Artifact:
    """No calibration: an artifact without steps, with the same facts as any other."""
    samples = Samples.of(logits, labels, sample_weight=sample_weight, class_weight=class_weight)
    return complete([], samples, method="none", fit={})


CANDIDATES: Mapping[str, Fitter] = MappingProxyType({"none": fit_none, "temperature": fit_temperature})


def fit_by_name(
    method: str,
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    class_names: Sequence[str] = (),
    seed: int = 0,
    **options: Any,
) -> Artifact:
    """Fit the method called ``method`` with its own options; ``seed`` goes to those that draw.

    Raises InputError for a name or an option that does not exist, and tells those that do.
    """
    if method not in CANDIDATES:
        raise InputError(f"there is no method {method!r}; choose one of {', '.join(CANDIDATES)}")
    fitter = CANDIDATES[method]
    known = [name for name in inspect.signature(fitter).parameters if name not in ("logits", "labels")]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(f"{method} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    if "seed" in known:
        options["seed"] = seed
    return replace(fitter(logits, labels, **options), class_names=tuple(class_names))
