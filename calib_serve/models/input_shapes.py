"""The shape of one input: checked, with advice on how to turn pictures that do not fit."""

from __future__ import annotations

from collections.abc import Sequence

from calib_serve.core.errors import ShapeError

_MISSING = "the channel is missing: add it by inputs[:, None]"
_COMES_FIRST = "the channel comes first: turn them by inputs.transpose(0, 3, 1, 2)"
_COMES_LAST = "the channel comes last: turn them by inputs.transpose(0, 2, 3, 1)"
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
    """Advise on inputs of ``given`` to fit ``wanted``: the one step that does it."""
    steps = [((1, *given), _MISSING)]
    if len(given) == 3:
        steps += [((given[2], *given[:2]), _COMES_FIRST), ((*given[1:], given[0]), _COMES_LAST)]
    return next((advice for made, advice in steps if _fits(made, wanted)), "prepare them as in its training")


def _fits(given: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(given) == len(wanted) and all(w in (None, g) for g, w in zip(given, wanted, strict=True))
