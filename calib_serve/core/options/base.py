"""Options classes: how they are checked and changed."""

import difflib
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, TypeVar

from calib_serve.core.errors import InputError, OptionError

T = TypeVar("T")

# Plain texts, which ``calib_serve.app`` reads: a worker that reads options has no command line installed.
PYTHON = "of Python alone"
"""Mark of a field, ``Annotated[int, PYTHON]``: a keyword argument, and no option of the command line."""
SCHEMA = "of a schema"
"""Mark of a field that ``calib-serve schema`` alone takes: other commands read it in what that wrote."""

MAX_PIXELS = 25_000_000
"""The most pixels of a picture, before and after it is resized, unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Base of options classes: each class's ``_check`` is of its own fields, and runs after its bases'."""

    # In place of calls of super(), which a class could forget: a check that is left out fails nobody's test.
    def __post_init__(self) -> None:
        for cls in reversed(type(self).__mro__):
            if "_check" in vars(cls):
                vars(cls)["_check"](self)


@dataclass(frozen=True, kw_only=True)
class CustomOps(Checked):
    """Options of what runs an ONNX file."""

    custom_ops: str | Path | None = None
    """A library of operators beside onnxruntime's own; that of onnxruntime-extensions is found by itself."""


@dataclass(frozen=True, kw_only=True)
class Factory(Checked):
    """Options of commands that load a model."""

    weights: str | Path | None = None
    """The weights of a model that is a factory, module:factory."""
    output_name: str | None = None
    """The output of an ONNX file that holds the scores, where several may; or a tensor inside."""


@dataclass(frozen=True, kw_only=True)
class LastLayer(Checked):
    """Options of methods that change a model's last layer."""

    last_linear: Annotated[str | None, PYTHON] = None
    """The layer that makes the logits, if it is not found."""


@dataclass(frozen=True, kw_only=True)
class Seeded(Checked):
    """Options of random draws."""

    seed: Annotated[int, PYTHON] = 0
    """The seed of everything that is drawn."""

    def _check(self) -> None:
        whole = isinstance(self.seed, Integral) and not isinstance(self.seed, bool) and self.seed >= 0
        check(whole, "seed", f"is a whole number from 0 on, got {self.seed!r}")


@dataclass(frozen=True, kw_only=True)
class Tolerant(Checked):
    """Options of judgements within a tolerance."""

    tolerance: float = 0.02
    """The mean gap between confidence and accuracy that users can live with, as a fraction."""


def changed(options: T, given: Mapping[str, Any], verb: Callable[..., Any] | None = None) -> T:
    """``options`` with the fields ``given``; InputError names an unknown one, and its nearest match.

    ``verb`` is the function that takes them as keywords: another of its parameters may be what was meant.

    >>> changed(Seeded(), {"seed": 3})
    Seeded(seed=3)
    >>> changed(Seeded(), {"sead": 3})
    Traceback (most recent call last):
        ...
    calib_serve.core.errors.InputError: there is no option 'sead', did you mean seed?
    """
    check_keywords(given, [field.name for field in fields(options)], verb)  # type: ignore[arg-type]
    return replace(options, **given)  # type: ignore[type-var]


def fields_of(kind: type, options: object) -> dict[str, Any]:
    """The fields of ``kind`` with the values that ``options``, which have them too, give them.

    >>> fields_of(Factory, Factory(weights="w.safetensors"))
    {'weights': 'w.safetensors', 'output_name': None}
    """
    return {field.name: getattr(options, field.name) for field in fields(kind)}


def given_fields(kind: type, options: object) -> dict[str, Any]:
    """The fields of ``kind`` that are given, so that they are not None.

    >>> given_fields(Factory, Factory(weights="w.safetensors"))
    {'weights': 'w.safetensors'}
    """
    return {name: value for name, value in fields_of(kind, options).items() if value is not None}


def divided(
    options: T,
    given: Mapping[str, Any],
    others: Collection[str] = (),
    *,
    verb: Callable[..., Any] | None = None,
) -> tuple[T, dict[str, Any]]:
    """``options`` with those of the ``given`` that are its fields, and those among the ``others``.

    InputError for a name that is neither; ``verb`` as in ``changed``.

    >>> divided(Seeded(), {"seed": 3, "ridge": 0.1}, ["ridge", "bins"])
    (Seeded(seed=3), {'ridge': 0.1})
    """
    known = [field.name for field in fields(options)]  # type: ignore[arg-type]
    check_keywords(given, [*known, *others], verb)
    own = {name: value for name, value in given.items() if name in known}
    rest = {name: value for name, value in given.items() if name not in known}
    return replace(options, **own), rest  # type: ignore[type-var]


def check_keywords(
    given: Iterable[str], known: Sequence[str], verb: Callable[..., Any] | None = None
) -> None:
    """Raise InputError for a name that is not ``known``, with the nearest one; ``verb`` as in ``changed``."""
    for name in given:
        if name not in known:
            beside = () if verb is None else inspect.signature(verb).parameters.values()
            meant = [*known, *(one.name for one in beside if one.kind is not one.VAR_KEYWORD)]
            near = difflib.get_close_matches(name, meant, 1)
            raise InputError(
                f"there is no option {name!r}"
                + (f", did you mean {near[0]}?" if near else f" of {', '.join(known)}")
            )


def check(holds: bool, option: str, says: str) -> None:
    """Raise OptionError, which names the option, unless the check ``holds``.

    >>> check(False, "folds", "must be 2 or more, got 1")
    Traceback (most recent call last):
        ...
    calib_serve.core.errors.OptionError: folds must be 2 or more, got 1
    """
    if not holds:
        raise OptionError(option, says)


def check_default(options: object, names: Iterable[str], says: str) -> None:
    """Raise OptionError for an option among ``names`` that differs from its default.

    >>> check_default(Seeded(seed=3), ["seed"], "is for what is drawn")
    Traceback (most recent call last):
        ...
    calib_serve.core.errors.OptionError: seed is for what is drawn
    """
    plain = {one.name: one for one in fields(options)}  # type: ignore[arg-type]
    for name in names:
        check(getattr(options, name) == plain[name].default, name, says)


def check_positive(option: str, value: float) -> None:
    """Raise OptionError unless the option is finite and above 0.

    >>> check_positive("timeout", 0)
    Traceback (most recent call last):
        ...
    calib_serve.core.errors.OptionError: timeout must be above 0 and finite, got 0
    """
    check(0 < value < math.inf, option, f"must be above 0 and finite, got {value:g}")


def check_between(option: str, value: float) -> None:
    """Raise OptionError unless the option lies between 0 and 1.

    >>> check_between("level", 0.95)
    """
    check(0 < value < 1, option, f"must lie between 0 and 1, got {value:g}")


def check_share(option: str, value: float) -> None:
    """Raise OptionError unless the option is above 0 and at most 1.

    >>> check_share("sample_rate", 0.1)
    """
    check(0 < value <= 1, option, f"must be above 0 and at most 1, got {value:g}")
