"""The output calibrators by name, from the simplest to the most flexible."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from calib_serve.artifact import Artifact
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import check_keywords
from calib_serve.fit.facts import fit_none, remarked
from calib_serve.fit.labels import LABEL_METHODS
from calib_serve.fit.output.averaged import fit_structured_average
from calib_serve.fit.output.binary import check_range, fit_beta, fit_intercept, fit_logistic, fit_platt
from calib_serve.fit.output.ece_grid import fit_temperature_ece
from calib_serve.fit.output.learnable import sample_remarks
from calib_serve.fit.output.linear import (
    fit_dirichlet_odir,
    fit_matrix,
    fit_matrix_odir,
    fit_structured_matrix,
    fit_structured_vector,
    fit_vector,
)
from calib_serve.fit.output.offset import fit_batch
from calib_serve.fit.output.tables import fit_histogram_mass, fit_histogram_width, fit_isotonic
from calib_serve.fit.output.temperature import fit_temperature
from calib_serve.fit.samples import Samples
from calib_serve.fit.threads import one_thread

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import MethodKeywords

Fitter = Callable[..., Artifact]
"""(samples, *, the method's own options) -> Artifact."""

KEEPING = frozenset(("none", "temperature", "temperature-ece"))
"""Methods that keep the order of a sample's classes, and so every predicted class."""
_OF_MODELS = ("neural-clamping", "neural-clamping-efficient", "masked-head")
"""What ``calibrate_model`` fits: people ask for it with logits, too."""
TWO_CLASSES: Mapping[str, Fitter] = MappingProxyType(
    {"intercept": fit_intercept, "logistic": fit_logistic, "platt": fit_platt, "beta": fit_beta}
)
"""Those of two classes alone."""
_TYPES = {bool: (bool, "True or False"), int: (Integral, "a whole number"), float: (Real, "a number")}
"""By the type of an option's default: the types of its values."""

CANDIDATES: Mapping[str, Fitter] = MappingProxyType(
    {
        "none": fit_none,
        "batch": fit_batch,
        "temperature": fit_temperature,
        "temperature-ece": fit_temperature_ece,
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
    }
)
"""Name -> fitter, by rising flexibility: one number, a vector, a matrix, a table."""


def fit_by_name(
    method: str,
    logits: ArrayLike | Samples,
    labels: ArrayLike | None = None,
    *,
    seed: int = 0,
    **keywords: Unpack[MethodKeywords],
) -> Artifact:
    """Fit a method of output calibration by its name.

    ``artifact.fit.remarks`` are sentences on what the set cannot teach, where there are any.

    Args:
        method: Its name.
        logits: (n, K), or ``Samples``, which may weigh.
        labels: Class ids (n,); None where ``Samples`` hold them.
        seed: Seed of methods that draw.
        **keywords: The method's own options; see ``options_of``: ``bins``, ``grid``, ``of``, ``smoothing``.

    Raises:
        InputError: For a name or an option that does not exist; it lists those that do.
        FitError: Where nothing can be learnt.
    """
    check_keywords(keywords, own_options(), fit_by_name)
    samples = logits if isinstance(logits, Samples) else Samples.of(logits, labels)
    return fitter_of(method, dict(keywords), samples.is_multilabel, seed=seed)(samples)


def fitter_of(
    method: str, options: Mapping[str, Any], multilabel: bool = False, *, seed: int = 0
) -> Callable[[Samples], Artifact]:
    """A method under its own options, which are checked here once for all fits to parts of some samples."""
    fit, parameters = _fitter(method, multilabel), fitter_parameters(_fitter(method, multilabel))
    check_options(method, options, options_of(method, multilabel))
    check_values(method, options, parameters)
    given = {**options, "seed": seed} if "seed" in parameters else options

    def fitted(samples: Samples) -> Artifact:
        # No remarks on folds, which are temporary, nor for "none", which fits nothing.
        said = [] if multilabel or samples.part or method == "none" else sample_remarks(samples)
        if multilabel:
            check_range(samples.read(slice(0, len(samples))))
        with one_thread(samples.size):
            return remarked(fit(samples, **given), after=said)

    return fitted


def check_options(method: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise InputError for ``options`` of a method that are none of those ``known``."""
    if unknown := sorted(set(options) - set(known)):
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise InputError(f"{method} has no option {', '.join(unknown)}; {has}")


def check_values(
    method: str, options: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> None:
    """Raise InputError for a value of another type than a method's own number, or yes or no, is of.

    Command lines and files may have text there.
    """
    for name, value in options.items():
        kind = type(parameters[name].default)
        wanted, said = _TYPES.get(kind, (object, ""))
        if not isinstance(value, wanted) or (kind in (int, float) and isinstance(value, bool)):
            raise InputError(f"{name} of {method} is {said}, got {value!r}")


def options_of(method: str, multilabel: bool = False) -> list[str]:
    """The names of a method's own options; InputError for a method that does not exist, or not for labels."""
    parameters = fitter_parameters(_fitter(method, multilabel))
    return [name for name in parameters if name not in ("samples", "seed")]


@cache
def own_options() -> tuple[str, ...]:
    """Return the names of all methods' own options."""
    return tuple(dict.fromkeys(name for one in (*CANDIDATES, *TWO_CLASSES) for name in options_of(one)))


@cache  # reading a signature takes a tenth of a small fit
def fitter_parameters(fit: Fitter) -> Mapping[str, inspect.Parameter]:
    """The parameters of a fitter by name."""
    return inspect.signature(fit).parameters


def methods_for(samples: Samples) -> tuple[str, ...]:
    """The names of all methods that such samples have."""
    if samples.is_multilabel:
        return tuple(LABEL_METHODS)
    return (*CANDIDATES, *(TWO_CLASSES if samples.classes == 2 else ()))


def _fitter(method: str, multilabel: bool) -> Fitter:
    known = LABEL_METHODS if multilabel else {**CANDIDATES, **TWO_CLASSES}
    if method in known:
        return known[method]
    if multilabel:
        raise InputError(f"labels have no method {method!r}; choose auto, {', '.join(known)}")
    if method in _OF_MODELS:
        raise InputError(
            f"{method} changes the model, so logits are not enough: give the model and its inputs "
            "(fit DATA --model MODEL, or calibrate_model)"
        )
    near = difflib.get_close_matches(method, (*known, *_OF_MODELS), 1)
    meant = f", did you mean {near[0]}?" if near else ""
    raise InputError(
        f"there is no method {method!r}{meant}; choose auto, {', '.join(known)}, or of a model "
        f"{', '.join(_OF_MODELS)}"
    )
