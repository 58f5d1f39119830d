"""A keyring that follows its file: what runs uses new keys without a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from calib_serve.errors import Refused
from calib_serve.files import FollowedFile
from calib_serve.receipts.keyring import Keyring
from calib_serve.receipts.receipt import DAY, Receipt

__all__ = ["LiveKeyring"]


class LiveKeyring(FollowedFile[Keyring]):
    """The keyring in ``path``, read again when the file has changed; take ``current`` once for a batch.

    KeyringError where the file cannot be read to begin with; later on the ring stays as it was.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        every: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(path, Keyring.load, every=every, clock=clock, failed=failed)

    def verify(self, token: str, *, now: float | None = None, ttl: float = 30 * DAY) -> Receipt:
        """As ``Keyring.verify``; for an unknown key the file is looked at first, whenever it was last."""
        ring = self.current()
        try:
            return ring.verify(token, now=now, ttl=ttl)
        except Refused as refusal:
            if refusal.reason != "unknown_key" or (changed := self.changed()) is ring:
                raise
        return changed.verify(token, now=now, ttl=ttl)
