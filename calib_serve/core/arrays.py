"""Arrays of any library as numpy's, and numbers as tables of notebooks and pandas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError

Floats = NDArray[np.float64]
AnyFloats = NDArray[np.floating[Any]]
"""Of any width."""

Codes = NDArray[np.intp]
"""Whole numbers: class ids, groups, indices."""


def as_array(values: Any, name: str = "values", *, missing: bool = False) -> NDArray[Any]:
    """``values`` as a numpy array; numpy arrays, memory-mapped or not, are not copied.

    Takes what numpy takes, torch tensors on any device and with or without a gradient (bfloat16 becomes
    float32), and columns and tables of pandas, polars and pyarrow, also columns of lists. Text stays text;
    the caller refuses it. Raises InputError, which names ``name``, for missing values among objects, unless
    ``missing`` ones are to stay, and for anything but arrays.

    >>> as_array([[0.5, 0.5]]).shape
    (1, 2)
    """
    if type(values) is np.ndarray and values.dtype.kind in "fiub":
        return values  # most are, at each request of a server
    try:
        array = _converted(values)
        if array.dtype.kind == "O":
            array = _of_objects(array, missing)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError is torch's
        raise InputError(f"{name} cannot be read as an array of numbers: {error}") from error
    if array.dtype.kind == "V" and array.dtype.name.startswith(("bfloat", "float")):  # of ml_dtypes
        return array.astype(np.float32)
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise InputError(f"{name} cannot be read as an array of numbers: some values are masked; drop them")
    return array


def as_floats(values: Any, name: str = "values") -> NDArray[np.float64]:
    """``values`` as float64; InputError where they are not numbers.

    >>> as_floats([True, False]).tolist()
    [1.0, 0.0]
    """
    array = as_array(values, name)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must be numbers, got dtype {array.dtype}")
    return np.asarray(array, np.float64)


def finite(value: Any) -> Any:
    """``value`` as JSON has it: None in place of a number that is NaN or infinite.

    >>> finite(0.5), finite(math.nan), finite("all")
    (0.5, None, 'all')
    """
    return None if isinstance(value, float) and not math.isfinite(value) else value


def some_of(n: int, most: int) -> NDArray[np.intp]:
    """Choose ``most`` of n rows at most, rising: one from each of as many equal runs, always the same.

    >>> some_of(3, 5).tolist(), (some_of(10, 5) // 2).tolist()
    ([0, 1, 2], [0, 1, 2, 3, 4])
    """
    if n <= most:
        return np.arange(n)
    ends = np.arange(most + 1) * n // most
    return np.random.default_rng(0).integers(ends[:-1], ends[1:]).astype(np.intp)


def content_of(rows: AnyFloats) -> Floats:
    """A number (n,) that tells rows (n, K) apart: equal rows have equal ones, and others all but surely not.

    >>> len(set(content_of(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])).tolist()))
    2
    """
    # A random projection.
    return np.asarray(np.einsum("nk,k->n", rows, np.random.default_rng(0).standard_normal(rows.shape[1])))


def are_counts(weight: NDArray[np.float64]) -> bool:
    """Whether weights (n,) are counts of rows: whole numbers with a mean of at most 8.

    >>> are_counts(np.array([2.0, 0.0, 1.0])), are_counts(np.array([1532.0, 871.0]))  # of a survey
    (True, False)
    """
    return bool((weight == np.rint(weight)).all() and weight.sum() <= 8 * np.count_nonzero(weight))


def repeated(weight: NDArray[np.float64]) -> NDArray[np.intp]:
    """Repeat rows by their weights (n,), rising: exactly where weights are counts.

    Else as many rows as the weights are worth, (sum w)^2 / sum w^2, each as often as its weight says but
    for one.

    >>> repeated(np.array([2.0, 0.0, 1.0])).tolist(), repeated(np.array([0.5, 0.5])).tolist()
    ([0, 0, 2], [0, 1])
    """
    if are_counts(weight):
        return np.repeat(np.arange(len(weight)), weight.astype(np.intp))
    ends = np.cumsum(weight) / weight.sum()
    worth = max(round(float(weight.sum() ** 2 / (weight**2).sum())), 1)
    return np.minimum(np.searchsorted(ends, (np.arange(worth) + 0.5) / worth), len(weight) - 1)


def _converted(values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "detach"):
        try:
            return np.asarray(values.numpy(force=True))
        except TypeError:  # numpy has no bfloat16
            return np.asarray(values.float().numpy(force=True))
    if isinstance(values, (list, tuple)) and values and hasattr(values[0], "detach"):
        return np.stack([_converted(value) for value in values])
    # Of pyarrow, where numpy would fill in what is missing.
    if "dictionary<" in str(getattr(values, "type", "")):
        return np.asarray(values.cast(values.type.value_type))
    return np.asarray(values)


def _of_objects(array: NDArray[Any], keep: bool) -> NDArray[Any]:
    """The numbers, lists of numbers or texts in an array of objects."""
    found = array.ravel().tolist()
    if found and isinstance(found[0], (np.ndarray, list, tuple)):
        return np.stack([as_array(value) for value in found]).reshape(*array.shape, -1)
    kinds = {*map(type, found)}
    if keep and {str, float} <= kinds and any(isinstance(v, float) and math.isnan(v) for v in found):
        return array  # as pandas has missing texts: NaN would become one
    if absent := {kind for kind in kinds if kind.__name__ in ("NoneType", "NAType")}:
        if keep:
            return array
        missing = next(i for i, value in enumerate(found) if type(value) in absent)
        raise ValueError(f"value {missing} is missing; drop such samples")
    plain = np.array(found)
    return (plain if plain.dtype.kind != "O" else plain.astype(np.float64)).reshape(array.shape)


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write an HTML table whose first column names the rows; every text is escaped.

    >>> html_table("<b>", ["metric", "value"], [["ece", "0.1"]]).startswith("<table><caption>&lt;b&gt;<")
    True
    """
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    caption = f"<caption>{escape(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def rows_at_once(
    run: Callable[[NDArray[Any]], NDArray[Any]], inputs: NDArray[Any], size: int | str | None
) -> NDArray[Any]:
    """Run inputs (n, ...) through a function of exactly ``size`` of them; the last are filled up.

    ``size`` as ONNX has it: a name or None is any number.

    >>> rows_at_once(lambda batch: batch + len(batch), np.zeros(5), 2).tolist()
    [2.0, 2.0, 2.0, 2.0, 2.0]
    """
    if not isinstance(size, int):
        return run(inputs)
    parts = [inputs[start : start + size] for start in range(0, len(inputs), size)]
    return np.concatenate([run(np.resize(part, (size, *part.shape[1:])))[: len(part)] for part in parts])
