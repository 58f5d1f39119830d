"""Opens the ledger at an address, of one place or of several partitions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from calib_serve.errors import LedgerError
from calib_serve.receipts import DAY
from calib_serve.watch.ledger.address import Place, check_address, is_redis, places_of, redis_password
from calib_serve.watch.ledger.partitioned import PARTITION, PartitionedLedger
from calib_serve.watch.ledger.protocol import Ledger
from calib_serve.watch.ledger.sqlite import SqliteLedger

__all__ = ["as_one", "open_ledger"]


def open_ledger(
    where: str,
    *,
    bins: int = 15,
    writer: str = "",
    retention: float = 30 * DAY,
    password_file: str | Path | None = None,
) -> Ledger:
    """The ledger at ``where``: a file name, or ``redis://host:port/db``, or a Redis Cluster.

    With ``?parts=4`` behind it, it is one of four partitions: files with numbers behind their names, or parts
    of the Redis. Several hosts can share a Redis: give each its own ``writer``. ``retention``: seconds after
    its prediction for which a label may come. ``password_file``: the file of the Redis' password (default:
    what the environment says, see ``redis_password``). InputError for an address with a password in it.
    """
    check_address(where)
    password = redis_password(password_file) if is_redis(where) else None

    def opened(place: Place) -> Ledger:
        if is_redis(place.where):
            from calib_serve.watch.ledger.redis import RedisLedger  # noqa: PLC0415  an optional extra

            return RedisLedger(
                place.where,
                bins=bins,
                writer=writer,
                retention=retention,
                prefix=place.prefix,
                password=password,
            )
        return SqliteLedger(place.where, bins=bins, writer=writer, retention=retention)

    return as_one(where, opened)


def as_one(where: str, opened: Callable[[Place], Ledger]) -> Ledger:
    """The ledger at ``where``, of what ``opened`` makes of its one place, or of each of its partitions."""
    places = places_of(where)
    with ExitStack() as on_error:
        parts = []
        for place in places:
            parts.append(opened(place))
            on_error.callback(parts[-1].close)
        if len(parts) > 1:
            ledger: Ledger = PartitionedLedger(parts)
        elif (kept := parts[0].load(PARTITION)) is not None:
            raise LedgerError(f"{where} is partition {kept.decode()} of a ledger; name the whole one")
        else:
            ledger = parts[0]
        on_error.pop_all()
    return ledger
