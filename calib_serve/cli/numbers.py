"""Numbers that an option takes, refused on the command line and not an hour later in a worker."""

from __future__ import annotations

import math

import typer

__all__ = ["positive", "share"]


def share(text: str) -> float:
    """A share above 0 and up to 1.

    >>> share("0.1")
    0.1
    """
    value = _number(text)
    if not 0 < value <= 1:
        raise typer.BadParameter(f"it is a share above 0 and at most 1, got {text}")
    return value


def positive(text: str) -> float:
    """A finite number above 0.

    >>> positive("300")
    300.0
    """
    value = _number(text)
    if not 0 < value < math.inf:
        raise typer.BadParameter(f"it must be above 0 and finite, got {text}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"it is a number, got {text!r}") from None
