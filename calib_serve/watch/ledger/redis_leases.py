"""Leases as keys of a Redis that expire."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from calib_serve.watch.ledger.leases import LEASE, Held, Holder
from calib_serve.watch.ledger.redis_scripts import TAKE_LEASE, UNLEASE

__all__ = ["RedisLeases"]


class RedisLeases:
    """The writers of the ledger under ``root``; ``errors``: turns those of Redis into LedgerError."""

    def __init__(
        self,
        server: Any,
        root: str,
        *,
        errors: Callable[[], AbstractContextManager[None]],
        seconds: float = LEASE,
    ) -> None:
        self._redis, self._root, self._errors, self.seconds = server, root, errors, seconds
        self._take = server.register_script(TAKE_LEASE)
        self._release = server.register_script(UNLEASE)

    def look(self, name: str) -> Held | None:
        """Who holds the name."""
        with self._errors():
            holder = self._redis.get(self._key(name))
            left = self._redis.pttl(self._key(name)) / 1000
        return None if holder is None or left <= 0 else Held(Holder.unpacked(holder), left)

    def take(self, name: str, holder: Holder) -> Held | None:
        """Take the name, or renew the lease on it; who else holds it."""
        with self._errors():
            asked = [holder.id, holder.packed(), int(self.seconds * 1000)]
            found = self._take(keys=[self._key(name)], args=asked)
        return None if found is None else Held(Holder.unpacked(found[0]), found[1] / 1000)

    def release(self, name: str, holder: Holder) -> None:
        """Give the name back, if it is ``holder``'s."""
        with self._errors():
            self._release(keys=[self._key(name)], args=[holder.id])

    def remember(self, name: str, note: bytes) -> None:
        """Keep a note for the next holder of the name."""
        with self._errors():
            self._redis.set(f"{self._root}:published-by:{name}", note)

    def recall(self, name: str) -> bytes | None:
        """The last note."""
        with self._errors():
            note = self._redis.get(f"{self._root}:published-by:{name}")
        return None if note is None else bytes(note)

    def _key(self, name: str) -> str:
        return f"{self._root}:lease:{name}"
