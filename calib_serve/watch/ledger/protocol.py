"""The record of accepted labels: each is counted once, whoever sends it, however often.

The nonce of a receipt and the sums that its label changes are written in one transaction, so
after any crash the sums are exactly those of the labels that were acknowledged, or about to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from calib_serve.errors import InputError
from calib_serve.receipts import Label
from calib_serve.watch.ledger.sqlite import SqliteLedger, quarantine
from calib_serve.watch.ledger.sums import Key, Sums, Version

__all__ = ["Ledger", "SqliteLedger", "Version", "open_ledger", "quarantine"]


class Ledger(Protocol):
    """Where accepted labels are kept; ``SqliteLedger`` on one host, ``RedisLedger`` over several.

    A ledger has a ``writer``: whose labels it counts. Replicas that share a ledger have different
    writers and publish their own share, which Prometheus adds up again.
    """

    bins: int

    def accept(
        self, labels: Sequence[Label], *, expires: Sequence[float], segments: Sequence[str] | None = None
    ) -> list[bool]:
        """Count each label whose receipt was not seen before; True = counted now, durable on return."""

    def add(self, sums: Mapping[Key, Sums], *, once: bytes | None = None, expires: float = 0.0) -> bool:
        """Add sums of predictions; with ``once`` a second call does nothing until it expires."""

    def sums(self, *, own: bool = False) -> dict[Version, Sums]:
        """The sums over everything counted (``own``: by this writer), by (model, version)."""

    def by_segment(self, *, own: bool = False) -> dict[Key, Sums]:
        """The same, by (model, version, segment)."""

    def emission(self, consumer: str) -> AbstractContextManager[Mapping[Version, Sums]]:
        """The writer's sums that ``consumer`` has not published; leaving the block marks them so."""

    def transaction(self) -> AbstractContextManager[None]:
        """Everything inside is isolated from other processes, and atomic where the store supports it."""

    def load(self, key: str) -> bytes | None:
        """What was stored under ``key``."""

    def store(self, key: str, value: bytes) -> None:
        """Keep ``value`` under ``key``, durable on return."""

    def close(self) -> None:
        """Close files and connections."""


def open_ledger(where: str, *, bins: int = 15, writer: str = "") -> Ledger:
    """The ledger at ``where``: a file name, or ``redis://host:port/db``.

    Several hosts can share a Redis: give each its own ``writer``.
    """
    if not where:
        raise InputError("a ledger is a file name or a redis:// address, got an empty name")
    if where.startswith(("redis://", "rediss://", "unix://")):
        from calib_serve.watch.ledger.redis import RedisLedger  # noqa: PLC0415  an optional extra

        return RedisLedger(where, bins=bins, writer=writer)
    return SqliteLedger(where, bins=bins, writer=writer)
