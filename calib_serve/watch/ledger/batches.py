"""Batches of predictions that may be sent again: each counts once, under a name that stands for its content.

A name is bound to what was sent under it first: the same content again is the same batch, another content is
refused, as it would be acknowledged and never counted.
"""

from __future__ import annotations

from typing import NamedTuple

from calib_serve.errors import ConflictError
from calib_serve.receipts import DAY
from calib_serve.watch.ledger.rows import Tables
from calib_serve.watch.ledger.seen import doubted_batches

__all__ = ["Batches", "Once", "check_content"]


class Once(NamedTuple):
    """A batch by its ``name``: a digest of its ``content``, when it was sent first and how long it is known.

    ``note``: what its sender is to know again when it is sent again.
    """

    name: bytes
    content: bytes
    time: float
    expires: float
    note: bytes = b""

    @classmethod
    def of(cls, name: bytes, content: bytes = b"", *, time: float, note: bytes = b"") -> Once:
        """One that is sent at ``time`` and known for a day."""
        return cls(name, content, time, time + DAY, note)


class Batches:
    """The batches that the ledger behind ``tables`` remembers; used within its transactions."""

    def __init__(self, tables: Tables) -> None:
        self._named, self._state = tables["batches"], tables["state"]

    def add(self, once: Once) -> bool:
        """Remember it; False if it was remembered already, ConflictError if with another content.

        False as well for one of a time whose batches may have been lost to damage.
        """
        if (known := self.find(once)) is not None:
            check_content(once, known)
            return False
        if once.time <= doubted_batches(self._state):
            return False
        self._named.add([once])
        return True

    def find(self, once: Once) -> Once | None:
        """The batch as it was remembered under this name."""
        row = self._named.get(once.name)
        return None if row is None else Once(*row)

    def forget(self, before: float, *, at_most: int) -> None:
        """Forget so many that expired before."""
        self._named.expire(before, at_most=at_most)


def check_content(once: Once, known: Once) -> None:
    """ConflictError unless what is known is the same batch."""
    if known.content != once.content:
        raise ConflictError(
            "this Idempotency-Key was used for another batch; nothing of this one was counted: "
            "send it under a key of its own"
        )
