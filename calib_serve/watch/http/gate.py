"""What stands before the ledger: so many requests at a time, and what a client is told when one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from calib_serve.errors import KeyringError, LedgerError, MissingDependency, UnknownFate
from calib_serve.watch.http.exporter import Batch
from calib_serve.watch.service import Watch

try:
    from anyio import CapacityLimiter
    from anyio.to_thread import run_sync
    from fastapi import HTTPException
except ImportError as error:
    raise MissingDependency("fastapi", "watch") from error

__all__ = ["NOT_READ", "Gate"]

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_NOT_COUNTED = "the ledger cannot keep the batch; nothing was counted, send it again"
_UNKNOWN: dict[Batch, str] = {
    "labels": "the ledger did not answer in time: it is not known whether the labels were counted; send them "
    "again, each is counted once",
    "predictions": "the ledger did not answer in time: it is not known whether the batch was counted; send "
    "it again with the same Idempotency-Key: it is counted once",
    "predictions_without_key": "the ledger did not answer in time: it is not known whether the batch was "
    "counted, and it had no Idempotency-Key: if it was, sending it again counts it twice. Send every batch "
    "with an Idempotency-Key",
}

NOT_READ = "the ledger cannot be used; ask again"
"""What whoever only reads is told."""


class Gate:
    """At most ``most`` requests of ``watch`` at work or in line; they are parsed and counted one by one."""

    def __init__(self, watch: Watch, *, most: int) -> None:
        self._counts, self._most, self._inside = watch.counts, most, 0
        self._limiter: CapacityLimiter | None = None

    async def run(self, work: Callable[[], Result], *, batch: Batch | None = None) -> Result:
        """What ``work`` returns, done in a thread; 429 when full, 503 when the ledger cannot be used.

        ``batch``: what it counts, if anything.
        """
        if self._inside >= self._most:
            raise HTTPException(429, "too many batches are waiting; send it again", {"Retry-After": "1"})
        self._limiter = self._limiter or CapacityLimiter(1)
        self._inside += 1
        try:
            return await run_sync(work, limiter=self._limiter)
        except LedgerError as error:
            self._counts.errors["ledger"] += 1
            unknown = batch is not None and isinstance(error, UnknownFate)
            if batch is not None and unknown:
                self._counts.unknown[batch] += 1
            log.error("%s: %s", batch or "a request", error)
            told = _NOT_COUNTED if batch else NOT_READ
            raise HTTPException(
                503, _UNKNOWN[batch] if batch and unknown else told, {"Retry-After": "5"}
            ) from error
        except KeyringError as error:
            self._counts.errors["keyring"] += 1
            log.error("a batch was not signed or verified: %s", error)
            raise HTTPException(
                503,
                "receipts cannot be signed or verified; labels may be sent again, each is counted once",
                {"Retry-After": "5"},
            ) from error
        finally:
            self._inside -= 1
