"""The output calibrators by name, from the simplest to the most flexible."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact
from calib_serve.errors import InputError
from calib_serve.fit.facts import complete
from calib_serve.fit.output.averaged import fit_structured_average
from calib_serve.fit.output.binary import fit_beta, fit_platt
from calib_serve.fit.output.ece_grid import fit_temperature_ece
from calib_serve.fit.output.learnable import remarks
from calib_serve.fit.output.linear import (
    fit_dirichlet_odir,
    fit_matrix,
    fit_matrix_odir,
    fit_structured_matrix,
    fit_structured_vector,
    fit_vector,
)
from calib_serve.fit.output.tables import (
    fit_histogram_mass,
    fit_histogram_width,
    fit_isotonic,
    fit_venn_abers,
)
from calib_serve.fit.output.temperature import (
    fit_ensemble_temperature,
    fit_temperature,
    fit_temperature_mixture,
)
from calib_serve.fit.samples import ClassWeight, Samples

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


CANDIDATES: Mapping[str, Fitter] = MappingProxyType(
    {
        "none": fit_none,
        "temperature": fit_temperature,
        "temperature-ece": fit_temperature_ece,
        "temperature-mixture": fit_temperature_mixture,
        "ensemble-temperature": fit_ensemble_temperature,
        "structured-vector": fit_structured_vector,
        "vector": fit_vector,
        "structured-matrix": fit_structured_matrix,
        "structured-average": fit_structured_average,
        "ms-odir": fit_matrix_odir,
        "dirichlet-odir": fit_dirichlet_odir,
        "matrix": fit_matrix,
        "histogram-width": fit_histogram_width,
        "histogram-mass": fit_histogram_mass,
        "isotonic": fit_isotonic,
        "venn-abers": fit_venn_abers,
    }
)
"""Name -> fitter, by rising flexibility: one number, a vector, a matrix, a table."""


KEEPING = frozenset(("none", "temperature", "temperature-ece", "temperature-mixture", "ensemble-temperature"))
"""Methods that keep the order of a sample's classes, and so every predicted class."""

_OF_MODELS = ("neural-clamping", "neural-clamping-efficient", "masked-head", "tuned-head")
"""What ``calibrate_model`` fits: people ask for it with logits, too."""

TWO_CLASSES: Mapping[str, Fitter] = MappingProxyType({"platt": fit_platt, "beta": fit_beta})
"""Those of two classes alone."""


def fit_by_name(
    method: str,
    logits: ArrayLike | Samples,
    labels: ArrayLike,
    *,
    class_names: Sequence[str] = (),
    seed: int = 0,
    **options: Any,
) -> Artifact:
    """Fit the method called ``method`` with its own options; ``seed`` goes to those that use random numbers.

    ``artifact.fit["remarks"]`` are sentences on what the set cannot teach, where there are any. Raises
    InputError for a name or an option that does not exist, listing those that do, FitError where nothing can
    be learnt.
    """
    known = options_of(method)
    check_options(method, options, known)
    _check_numbers(method, options)
    if "seed" in known:
        options["seed"] = seed
    weights = {name: options.pop(name, None) for name in ("sample_weight", "class_weight")}
    samples = Samples.of(logits, labels, **weights)
    # Of folds, which are temporary, nothing is said; and none fits nothing.
    said = [] if samples.part or method == "none" else remarks(samples)
    artifact = _fitter(method)(samples, samples.labels, **options)
    told = replace(artifact, fit={**artifact.fit, "remarks": said}) if said else artifact
    return replace(told, class_names=tuple(class_names)) if class_names else told


def check_options(method: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    """InputError naming the options that ``method`` does not have, and the ``known`` ones that it has."""
    if unknown := sorted(set(options) - set(known)):
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise InputError(f"{method} has no option {', '.join(unknown)}; {has}")


def _check_numbers(method: str, options: Mapping[str, Any]) -> None:
    """Raise InputError for text where the default is a number, as command lines and files may have it."""
    parameters = inspect.signature(_fitter(method)).parameters
    for name, value in options.items():
        default = parameters[name].default
        if isinstance(default, (int, float)) and isinstance(value, str):
            raise InputError(f"{name} of {method} is a number, got {value!r}")


def options_of(method: str) -> list[str]:
    """The names of a method's own options; InputError for a method that does not exist."""
    parameters = inspect.signature(_fitter(method)).parameters
    return [name for name in parameters if name not in ("logits", "labels")]


def _fitter(method: str) -> Fitter:
    known = {**CANDIDATES, **TWO_CLASSES}
    if method in _OF_MODELS:
        raise InputError(
            f"{method} changes the model, so logits are not enough: give the model and its inputs "
            "(fit --model MODEL --data DATA, or calibrate_model)"
        )
    if method not in known:
        near = difflib.get_close_matches(method, (*known, *_OF_MODELS), 1)
        meant = f", did you mean {near[0]}?" if near else ""
        raise InputError(
            f"there is no method {method!r}{meant}; choose one of {', '.join(known)}, or of a model "
            f"{', '.join(_OF_MODELS)}"
        )
    return known[method]
