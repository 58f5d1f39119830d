"""The shape of one input: checked, with advice on how to turn pictures that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from calib_serve.core.errors import ShapeError

_MISSING = "the channel is missing: add it by inputs[:, None]"
_COMES_FIRST = "the channel comes first: turn them by inputs.transpose(0, 3, 1, 2)"
_COMES_LAST = "the channel comes last: turn them by inputs.transpose(0, 2, 3, 1)"
_GREY = "these are grey, and it takes colours: give each three times, np.repeat({}, 3, 1)"
_COLOURED = "these are coloured, and it takes grey: make them grey as in its training"
_CHANNELS = (1, 3)


def check_input_shape(given: Sequence[int], wanted: Sequence[int | None], *, of: str = "the model") -> None:
    """Raise ShapeError, with what to do, unless inputs of shape ``given`` fit ``wanted``.

    Both without the batch.

    A size of None is any size. ``of`` names what takes them.
    """
    if not _fits(given, wanted):
        sizes = ", ".join("any" if size is None else str(size) for size in wanted)
        raise ShapeError(
            f"{of} takes inputs of shape (n, {sizes}), got (n, {', '.join(map(str, given))}); "
            + _to_fit(tuple(given), tuple(wanted))
        )


def layout_advice(given: Sequence[int]) -> str:
    """Advise on pictures that a model of unknown input shape refused; "" without advice.

    >>> layout_advice((28, 28))
    'if these are pictures, the channel is missing: add it by inputs[:, None]'
    """
    if len(given) == 2:
        return f"if these are pictures, {_MISSING}"
    if len(given) == 3 and given[2] in _CHANNELS and given[0] not in _CHANNELS:
        return f"if these are pictures, {_COMES_FIRST}"
    return ""


def _to_fit(given: tuple[int, ...], wanted: tuple[int | None, ...]) -> str:
    """Advise on inputs of ``given`` to fit ``wanted``: the first step that does it."""
    steps = [((1, *given), _MISSING)]
    if len(given) == 3:
        steps += [((given[2], *given[:2]), _COMES_FIRST), ((*given[1:], given[0]), _COMES_LAST)]
    if wanted[:1] == (3,):
        steps += [((3, *given), _GREY.format("inputs[:, None]"))]
        steps += [((3, *given[1:]), _GREY.format("inputs"))] if given[:1] == (1,) else []
    elif wanted[:1] == (1,) and given[:1] == (3,):
        steps += [((1, *given[1:]), _COLOURED)]
    known = [size for size in wanted if size is not None]
    if len(known) == len(wanted) and prod(given) == prod(known):
        sizes = ", ".join(map(str, known))
        steps += [(tuple(known), f"as many numbers: if their order is right, inputs.reshape(-1, {sizes})")]
    return next((advice for made, advice in steps if _fits(made, wanted)), "prepare them as in its training")


def _fits(given: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(given) == len(wanted) and all(w in (None, g) for g, w in zip(given, wanted, strict=True))
