"""Nonces of receipts, and draws that no seed of an application changes."""

from __future__ import annotations

import os
import random

NONCE_BYTES = 10
"""Of a billion receipts two have one nonce with a chance of 4e-7; in the ledger their times differ, too."""

DRAWS = random.Random()  # noqa: S311 - which labels are asked for is no secret
"""Draws of this process, seeded by the system: an application may seed Python's own for each request."""

if hasattr(os, "register_at_fork"):  # not on every platform
    os.register_at_fork(after_in_child=DRAWS.seed)


def draw_nonces(number: int) -> list[bytes]:
    """Draw nonces of ``NONCE_BYTES`` each: by the system, in every thread and process, and telling nothing.

    >>> [len(nonce) for nonce in draw_nonces(2)]
    [10, 10]
    """
    drawn = os.urandom(NONCE_BYTES * number)
    return [drawn[at : at + NONCE_BYTES] for at in range(0, len(drawn), NONCE_BYTES)]
