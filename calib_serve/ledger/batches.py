"""Batches of predictions by the names that their senders gave them: each is counted once."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select, update

from calib_serve.core.errors import ConflictError
from calib_serve.ledger.schema import BATCH, SENDER
from calib_serve.ledger.store import Store
from calib_serve.receipts import BatchKey

_CONFLICT = (
    "this Idempotency-Key was used for another batch; nothing of this one was counted: send it under a key "
    "of its own"
)


def note_batch(store: Store, connection: Connection, once: BatchKey) -> bool:
    """Note the batch's name; False where a batch of this name and content was counted."""
    if once.sender:
        return _numbered(store, connection, once)
    row: dict[str, Any] = {"name": once.name.hex(), "content": once.content, "note": once.note}
    row |= {"sent_at": once.time, "expires_at": once.expires}
    fresh = store.database.insert(BATCH).values(row).on_conflict_do_nothing().returning(BATCH.c.name)
    if connection.execute(fresh).first():
        return True
    store.hold_forgetting(connection)
    known = known_batch(store, once)
    assert known is not None, "a name is taken by a batch"
    if known.content != once.content:
        raise ConflictError(_CONFLICT)
    return False


def _numbered(store: Store, connection: Connection, once: BatchKey) -> bool:
    """Note the batch's number beside its sender's others; False where that was counted."""
    row = {"name": once.sender.hex(), "counted": "", "latest": 0, "content": b"", "sent_at": once.time}
    connection.execute(store.database.insert(SENDER).values(row).on_conflict_do_nothing())
    mine = SENDER.c.name == row["name"]
    known = connection.execute(select(SENDER).where(mine).with_for_update()).one()
    if (counted := _with_number(known.counted, once.number)) is None:
        if known.latest == once.number and known.content != once.content:
            raise ConflictError(_CONFLICT)
        return False
    more = {"counted": counted, "latest": once.number, "content": once.content, "sent_at": once.time}
    connection.execute(update(SENDER).where(mine).values(more))
    return True


def known_batch(store: Store, once: BatchKey) -> BatchKey | None:
    """The batch that was counted under this name, if any."""
    with store.database.reading() as connection:
        row = connection.execute(select(BATCH).where(BATCH.c.name == once.name.hex())).first()
    if row is None:
        return None
    return BatchKey(once.name, row.content, row.sent_at, row.expires_at, row.note)


def _with_number(counted: str, number: int) -> str | None:
    """Add a number to ranges of numbers; None where it is in them.

    Of more than a thousand ranges the lowest two become one: what is missing between them counts as sent.

    >>> _with_number("1-3,7", 4), _with_number("", 2), _with_number("1-4", 3)
    ('1-4,7', '2', None)
    """
    found = [
        (int(first), int(last or first))
        for first, _, last in (one.partition("-") for one in counted.split(",") if one)
    ]
    if any(first <= number <= last for first, last in found):
        return None
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*found, (number, number)]):
        if merged and first == merged[-1][1] + 1:
            merged[-1] = merged[-1][0], last
        else:
            merged.append((first, last))
    if len(merged) > 1_000:  # 10 KB
        merged[:2] = [(merged[0][0], merged[1][1])]
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in merged)
