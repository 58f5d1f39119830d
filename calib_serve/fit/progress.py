"""Progress of a fit, told to a callback."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, how much of it is done, how much of it there is)."""


def stage(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    """The callback of one part of the work, (done, total); None without a callback.

    Args:
        progress: Called with the part, the steps done and their number; None: no callback.
        what: Name of the part.

    >>> calls = []
    >>> stage(lambda *call: calls.append(call), "logits")(1, 2)
    >>> calls
    [('logits', 1, 2)]
    """
    return None if progress is None else partial(progress, what)
