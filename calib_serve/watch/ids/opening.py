"""Opens the store of ids that belongs to a ledger: beside its file, or in its Redis."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from calib_serve.errors import InputError
from calib_serve.receipts import DAY
from calib_serve.watch.ids.bindings import ReceiptIds
from calib_serve.watch.ids.sqlite import SqliteIds
from calib_serve.watch.ledger.address import is_redis, places_of, redis_password

__all__ = ["open_ids"]


def open_ids(
    ledger: str,
    *,
    most: int,
    ttl: float = 30 * DAY,
    password_file: str | Path | None = None,
    clock: Callable[[], float] = time.time,
) -> ReceiptIds:
    """The store of ids beside the ledger at this address: ``ledger.db.ids``, or keys in the same Redis.

    ``most``: ids that it holds. ``ttl``: seconds for which each stays. ``password_file``: that of Redis.
    InputError for options that cannot be, LedgerError where the store cannot be used.
    """
    if most < 1:
        raise InputError(f"a store of ids holds at least one, got {most}")
    places = places_of(ledger)
    where = places[0].where
    if is_redis(where):
        from calib_serve.watch.ids.redis import RedisIds  # noqa: PLC0415  an optional extra

        return RedisIds(where, most=most, ttl=ttl, password=redis_password(password_file))
    file = where if len(places) == 1 else where.removesuffix(".1")
    return SqliteIds(f"{file}.ids", most=most, ttl=ttl, clock=clock)
