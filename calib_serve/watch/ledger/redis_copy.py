"""Copies of a Redis ledger: taken while it is in use, and put in its place in one step.

A copy is lines of JSON, one a key: its name below the ledger's root, its kind, when it expires, its content.
It is made of what Redis tells, not of its own files, so it fits other versions of Redis.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import redis

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger.address import Place, redis_password
from calib_serve.watch.ledger.redis import RedisLedger
from calib_serve.watch.ledger.redis_scripts import SNAPSHOT, SWITCH
from calib_serve.watch.ledger.redis_store import CLIENT, connected
from calib_serve.watch.ledger.redis_wire import bits_of, escaped

__all__ = ["Record", "as_it_is", "copied", "in_use", "put_in_place", "staged", "used_bytes"]

_SLICE = 256  # keys of one round
_MEMBERS = 1000  # of one command
_COPYING = 60_000  # milliseconds for which a backup that was killed keeps another one waiting
_LEAVING = 5.0  # seconds for whoever is about to leave
_STAGED = 3_600_000  # milliseconds for which what a killed restore left behind stays


class Record(NamedTuple):
    """A key below the root; ``expires``: milliseconds since 1970, 0 for never."""

    key: str
    kind: str
    expires: int
    content: list[bytes]


@contextlib.contextmanager
def _connected(place: Place) -> Iterator[Any]:
    try:
        with connected(
            place.where, place.root, timeout=60, password=redis_password(), name=None
        ) as connection:
            yield connection
    except (redis.RedisError, ValueError) as error:
        raise LedgerError(f"the Redis ledger cannot be used: {error}; try again") from error


def copied(place: Place, to: Path) -> float:
    """Write the ledger of one moment to ``to`` while others use it; when that moment was.

    What is large is read first, in slices: epochs, whose bits are only ever set, so that one with as many as
    before is the same, and sums, of which scripts note meanwhile which they touch. Then one script reads the
    rest, and again what has changed.
    """
    root = place.root
    with _connected(place) as db, to.with_name(f"{to.name}.early").open("w+b") as spool, to.open("wb") as out:
        token = secrets.token_hex(8)
        if not db.set(f"{root}:copying", token, nx=True, px=_COPYING):
            raise LedgerError("another backup of this Redis is being taken; try again in a minute")
        db.unlink(f"{root}:touched")
        known: dict[str, int] = {}
        places: dict[bytes, tuple[int, int]] = {}
        for key, content, count in _early(db, root):
            told = _told(content)
            places[key], known[key.decode()] = (spool.tell(), len(told)), count
            spool.write(told)
        found = db.eval(SNAPSHOT, 1, root, f"{escaped(root)}:*", json.dumps(known), token)
        if found is None:
            raise LedgerError("the copy of this Redis took too long, or another one came between; try again")
        (seconds, micro), rows = found
        now = int(seconds) * 1000 + int(micro) // 1000
        for key, kind, left, content in rows:
            # 0 are left of what ends while the script runs; below 0: it has no end.
            expires = now + left if left >= 0 else 0
            name = json.dumps([key.decode().removeprefix(root), kind.decode(), expires])
            told = _reread(spool, *places[key]) if content is None else _told(_many(content))
            out.write(name.encode() + b"\t" + told + b"\n")
    return now / 1000


def _early(db: Any, root: str) -> Iterator[tuple[bytes, list[bytes], int]]:
    """Keys that may be read before the moment of the copy, with their content, and how many bits it has."""
    for kind in ("epoch", "total", "span"):
        for keys in _sliced(db.scan_iter(f"{escaped(root)}:{kind}:*", count=1000)):
            db.pexpire(f"{root}:copying", _COPYING)
            pipe = db.pipeline(transaction=False)
            for key in keys:
                pipe.get(key) if kind == "epoch" else pipe.hgetall(key)
            for key, found in zip(keys, pipe.execute(), strict=True):
                if kind != "epoch":
                    yield key, [one for pair in found.items() for one in pair], 0
                elif found is not None:
                    yield key, [found], bits_of(key, found)


def _sliced(keys: Iterable[bytes]) -> Iterator[list[bytes]]:
    rest = iter(keys)
    while some := list(islice(rest, _SLICE)):
        yield some


def _many(content: bytes | list[bytes]) -> list[bytes]:
    return content if isinstance(content, list) else [content]


def _told(content: list[bytes]) -> bytes:
    return json.dumps([base64.b64encode(one).decode() for one in content]).encode()


def _reread(spool: BinaryIO, start: int, length: int) -> bytes:
    spool.seek(start)
    return spool.read(length)


def _records(file: Path) -> Iterator[Record]:
    with file.open("rb") as lines:
        for line in lines:
            try:
                name, _, told = line.partition(b"\t")
                key, kind, expires = json.loads(name)
                yield Record(key, kind, int(expires), [base64.b64decode(one) for one in json.loads(told)])
            except (ValueError, TypeError) as error:
                raise LedgerError(f"a line of the backup is no key of a ledger: {error}") from error


def as_it_is(place: Place, *, root: str = "") -> RedisLedger:
    """Open a ledger that is there, or another one under ``root``, in its own bins and with its retention."""
    root = root or place.root
    with _connected(place) as db:
        bins = db.get(f"{root}:bins")
    if bins is None:
        raise LedgerError("there is no ledger in this Redis")
    return RedisLedger(place.where, bins=int(bins), retention=0.0, prefix=root, password=redis_password())


def in_use(place: Place) -> bool:
    """Whether a process of ours is connected to this database; False where Redis does not tell."""
    with _connected(place) as db:
        number = db.connection_pool.connection_kwargs.get("db") or 0
        with contextlib.suppress(redis.ResponseError):  # a user without the right to ask
            until = time.monotonic() + _LEAVING
            while any(one.get("name") == CLIENT and int(one["db"]) == number for one in db.client_list()):
                if time.monotonic() > until:
                    return True
                time.sleep(0.05)
    return False


def used_bytes(place: Place) -> int:
    """The memory that Redis uses."""
    with _connected(place) as db:
        return int(db.info("memory")["used_memory"])


@contextlib.contextmanager
def staged(place: Place, file: Path) -> Iterator[RedisLedger]:
    """The ledger of a copy, open beside the one in its place; gone afterwards unless ``put_in_place``."""
    root = place.root
    stage = f"{root}.restoring-{secrets.token_hex(4)}"
    with _connected(place) as db:
        _unlink(db, f"{escaped(root)}.restoring-*")  # of a restore that was killed
        now = int(db.time()[0]) * 1000
        rest = _records(file)
        while some := list(islice(rest, _SLICE)):
            pipe = db.pipeline(transaction=False)
            for one in some:
                if not 0 < one.expires <= now:
                    _write(pipe, stage, one)
            pipe.execute()
        try:
            with contextlib.closing(as_it_is(place, root=stage)) as ledger:
                yield ledger
        finally:
            _unlink(db, f"{escaped(stage)}*")


def _write(pipe: Any, stage: str, one: Record) -> None:
    key, content = stage + one.key, one.content
    if one.kind == "string":
        pipe.set(key, content[0])
    for at in range(0, 0 if one.kind == "string" else len(content), _MEMBERS):
        some = content[at : at + _MEMBERS]
        if one.kind == "list":
            pipe.rpush(key, *some)
        elif one.kind == "set":
            pipe.sadd(key, *some)
        elif one.kind == "zset":
            pipe.zadd(key, {member: float(score) for member, score in _pairs(some)})
        elif one.kind == "hash":
            pipe.hset(key, mapping=dict(_pairs(some)))
        else:
            raise LedgerError(f"a key of the backup is a {one.kind[:20]!r}, which no ledger has")
    pipe.pexpire(key, _STAGED)
    pipe.hset(f"{stage}.expires", one.key, one.expires)
    pipe.pexpire(f"{stage}.expires", _STAGED)


def _pairs(content: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(content[::2], content[1::2], strict=True)


def _unlink(db: Any, pattern: str) -> None:
    for keys in _sliced(db.scan_iter(pattern, count=1000)):
        db.unlink(*keys)


def put_in_place(place: Place, ledger: RedisLedger, *, replace: bool) -> str | None:
    """Make a staged ledger the one in its place, in one step; under which root what was there goes on."""
    root = place.root
    with _connected(place) as db:
        aside = f"{root}.replaced-{math.floor(db.time()[0])}-{secrets.token_hex(2)}"
        patterns = [f"{escaped(root)}:*", f"{escaped(ledger.root)}:*"]
        told = db.eval(SWITCH, 1, root, ledger.root, aside, *patterns, int(replace)).decode()
    if told == "there":
        raise LedgerError("there is a ledger in this Redis; set it aside with --replace")
    if told == "gone":
        raise LedgerError("another restore came between; begin again")
    return aside if told == "replaced" else None
