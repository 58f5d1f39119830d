"""How far a fit is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, how much of it is done, how much of it there is)."""


def stage(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    """Return the callback of one part of the work, (done, total); None where nobody listens.

    >>> calls = []
    >>> stage(lambda *call: calls.append(call), "logits")(1, 2)
    >>> calls
    [('logits', 1, 2)]
    """
    return None if progress is None else partial(progress, what)
