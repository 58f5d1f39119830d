"""The form of a handler's results: where the class scores lie in them.

Handlers return a tensor, an array, nested lists, or a tuple, a mapping or an object (such as a Hugging Face
``ModelOutput``) that holds one of these among other things. All else is refused with a sentence.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import ModelError

Step = Union[str, int]
EACH = "*"
"""The step to each item of a list."""
_NAMED = ("logits", "scores", "probs", "probabilities", "output", "outputs")
"""How the scores are called where several tensors fit; the first one counts."""


@dataclass(frozen=True, eq=False)
class FoundScores:
    """Scores of a model's result.

    Args:
        values: (n, K), or (n, 1) of one number a row, in float64.
        shape: Shape in which they were returned.
    """

    values: NDArray[np.float64]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """The place of the scores in a result: () is all of it, ("logits",) a key, (0,) a tuple's first.

    ("*", "logits") is that key in each item of a list, one a row.

    Args:
        path: Keys and indices, from the outside; "*": each item of a list.

    >>> Form.parse("logits"), Form.parse("0.logits")
    (Form(path=('logits',)), Form(path=(0, 'logits')))
    """

    path: tuple[Step, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Form:
        """Parse the form's text, as in an archive's options: keys and positions joined by dots."""
        return cls(tuple(int(part) if part.isdecimal() else part for part in text.split(".") if part))

    def __str__(self) -> str:
        return ".".join(map(str, self.path))

    def scores(self, returned: Any, classes: int | None) -> FoundScores:
        """The scores in a result.

        Args:
            returned: What the model returned.
            classes: Number of classes, K; None: any.

        Raises:
            ModelError: Where there are no such scores.
        """
        try:
            returned = _at(returned, self.path)
        except (LookupError, AttributeError, TypeError):
            raise ModelError(
                f"the model returned {_described(returned)} where its {self} was expected"
            ) from None
        return _scores(returned, classes)

    def is_half(self, returned: Any) -> bool:
        """Whether the scores have the three digits of a float of 16 bits."""
        returned = _at(returned, self.path)
        while isinstance(returned, (list, tuple)) and returned:
            returned = returned[0]
        return str(getattr(returned, "dtype", "")).endswith("float16")

    def put(self, returned: Any, values: NDArray[np.float64], shape: tuple[int, ...]) -> Any:
        """Put scores in their place, in a copy of a result, of the same types.

        Args:
            returned: What the model returned.
            values: Scores, as many as ``shape`` has.
            shape: Shape of the scores that were returned.
        """
        return _put(returned, self.path, lambda old: _like(old, values.reshape(shape)))


def find_scores(returned: Any, classes: int | None) -> tuple[Form, FoundScores]:
    """Find the class scores in a result, and their form.

    Args:
        returned: What a model returned.
        classes: Number of classes, K; None: any.

    Raises:
        ModelError: Where there are none, or several fit; it says what was returned instead, or which.
    """
    fits = all_scores(returned, classes)
    if len(fits) > 1 and not _is_named(fits[0][0]):
        names = ", ".join(str(form) for form, _ in fits)
        raise ModelError(f"several of what is returned may be the scores: {names}; name one with --output")
    return fits[0]


def all_scores(returned: Any, classes: int | None) -> list[tuple[Form, FoundScores]]:
    """List all parts of a result that may be class scores, the likeliest first.

    Args:
        returned: What a model returned.
        classes: Number of classes, K; None: any.

    Raises:
        ModelError: Where there are none; it says what was returned instead.
    """
    fits, other = [], []
    for form, value in _leaves(returned, ()):
        try:
            fits.append((form, _scores(value, classes)))
        except ModelError as error:
            other.append(str(error))
    if not fits:
        raise ModelError(
            "; ".join(dict.fromkeys(other)) or f"it returns {_described(returned)}, not class scores"
        )
    if classes is None:  # one number beside scores of several classes is a loss, a norm ...
        fits = [fit for fit in fits if fit[1].values.shape[1] > 1] or fits
    return sorted(
        fits, key=lambda fit: _NAMED.index(str(fit[0].path[-1])) if _is_named(fit[0]) else len(_NAMED)
    )


def _is_named(form: Form) -> bool:
    return bool(form.path) and form.path[-1] in _NAMED


def _leaves(value: Any, path: tuple[Step, ...]) -> Iterator[tuple[Form, Any]]:
    """Yield the parts of ``value`` that may be scores, with their forms."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str):
                yield from _leaves(item, (*path, key))
    elif type(value) is list and value and all(isinstance(item, Mapping) for item in value):
        for form, _ in _leaves(value[0], ()):
            with suppress(LookupError, AttributeError, TypeError):
                yield Form((*path, EACH, *form.path)), [_at(item, form.path) for item in value]
    elif isinstance(value, (list, tuple)) and not _is_numbers(value) and not _is_rows(value, sure=True):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    # Results of Hugging Face that are no mapping.
    elif hasattr(value, "logits") and not hasattr(value, "shape"):
        yield from _leaves(value.logits, (*path, "logits"))
    elif value is not None:
        yield Form(path), value


def _is_numbers(value: Any) -> bool:
    """Whether nested lists are rows of numbers, such as ``tensor.tolist()``."""
    while isinstance(value, (list, tuple)) and value:
        if any(type(item) is not type(value[0]) for item in value):
            return all(isinstance(item, (int, float)) for item in value)
        value = value[0]
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_rows(value: Any, *, sure: bool = False) -> bool:
    """Whether a list holds one tensor of scores for each row.

    ``sure``: not if it may as well be a list of outputs, of which one is the scores of a single row.
    """
    shapes = {getattr(item, "shape", None) for item in value} if type(value) is list else set()
    shape = shapes.pop() if len(shapes) == 1 else None
    if shape is None or (sure and len(shape) == 2 and len(value) == 1):
        return False
    return len(shape) == 1 or (len(shape) == 2 and shape[0] == 1)


def _scores(value: Any, classes: int | None) -> FoundScores:
    array = _array(value)
    if array is None or array.dtype.kind != "f":
        raise ModelError(f"it returns {_described(value)}, not class scores")
    shape = array.shape
    one_logit = shape[1:] == (1,) or (
        array.ndim == 1 and (classes in (1, 2) or (classes, shape) == (None, (1,)))
    )
    # One number a row is of a binary model, or of a single label.
    if one_logit and classes in (1, 2, None):
        return FoundScores(array.reshape(-1, 1), shape)
    rows = array[None] if array.ndim == 1 else array
    if rows.ndim != 2 or rows.shape[1] < 2:
        raise ModelError(f"it returns {_described(value)}, not class scores (n, K)")
    if classes is not None and rows.shape[1] != classes:
        raise ModelError(f"the model returns {rows.shape[1]} classes, the artifact is for {classes}")
    return FoundScores(rows, shape)


def _array(value: Any) -> NDArray[np.float64] | None:
    """A value as an array, floats as float64; None for a value that is no array."""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        try:
            found: NDArray[Any] = tensor.numpy()
        except TypeError:  # numpy has no bfloat16
            found = tensor.double().numpy()
        return found.astype(np.float64) if found.dtype.kind == "f" else found
    if isinstance(value, list) and _is_rows(value):
        arrays = [np.atleast_2d(array) for array in map(_array, value) if array is not None]
        return np.concatenate(arrays)
    if isinstance(value, np.ndarray) or _is_numbers(value):
        try:
            array = np.asarray(value)
        except ValueError:
            return None
        return array.astype(np.float64) if array.dtype.kind == "f" else array
    return None


def _at(value: Any, path: Sequence[Step]) -> Any:
    """The value at a path."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if step == EACH and isinstance(value, list):
        return [_at(item, rest) for item in value]
    return _at(_member(value, step), rest)


def _member(value: Any, step: Step) -> Any:
    if isinstance(step, int) or isinstance(value, Mapping):
        return value[step]
    return getattr(value, step)


def _put(value: Any, path: tuple[Step, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    step, rest = path[0], path[1:]
    if step == EACH and isinstance(value, list):
        rows = iter(change([_at(item, rest) for item in value]))
        return [_put(item, rest, lambda _: next(rows)) for item in value]
    item = _put(_member(value, step), rest, change)
    if isinstance(value, tuple) and isinstance(step, int):
        items = [*value[:step], item, *value[step + 1 :]]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    # A copy: the handler may keep what it returned, and send it again.
    copied = copy.copy(value)
    if isinstance(step, int) or isinstance(value, Mapping):
        copied[step] = item
    else:
        setattr(copied, step, item)
    return copied


def _like(old: Any, values: NDArray[np.float64]) -> Any:
    if hasattr(old, "new_tensor"):
        from torch import from_numpy  # noqa: PLC0415 - a tensor is here, so torch is too

        # By way of float32: numpy has no bfloat16, into which torch casts.
        narrow = values.astype(np.float32) if old.element_size() <= 4 else np.ascontiguousarray(values)
        return from_numpy(narrow).to(old)  # its dtype and device
    if isinstance(old, np.ndarray):
        return values.astype(old.dtype)
    if _is_rows(old):
        return [_like(item, row.reshape(item.shape)) for item, row in zip(old, values, strict=True)]
    return values.tolist()


def _described(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, (str, bytes)):
        return "text"
    shape = getattr(value, "shape", None)
    if shape is not None:
        dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
        whole = "class ids or other whole numbers" if dtype.startswith(("int", "uint", "bool")) else dtype
        return f"{type(value).__name__} {tuple(shape)} of {whole}"
    if isinstance(value, (list, tuple)) and value:
        return f"a {type(value).__name__} of {len(value)} ({_described(value[0])} first)"
    return type(value).__name__
