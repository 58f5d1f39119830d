"""The ledger that several hosts share: one Redis.

Run it with ``appendonly yes`` and ``appendfsync always`` if a label that was acknowledged must
survive the power cut of the Redis host, and with ``maxmemory-policy noeviction``: an evicted
epoch would let a label be counted twice.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_serve.errors import InputError, LedgerError, MissingDependency, UnknownFate
from calib_serve.receipts import DAY
from calib_serve.watch.checks import Check
from calib_serve.watch.ledger.address import REDIS_PASSWORD
from calib_serve.watch.ledger.batches import Once, check_content
from calib_serve.watch.ledger.entries import (
    SPANS,
    Dated,
    Entry,
    Fate,
    Mark,
    Noted,
    Place,
    coarser,
    journal_sums,
    noted,
    served,
)
from calib_serve.watch.ledger.generations import begin_generation, read_generation
from calib_serve.watch.ledger.leases import Leases
from calib_serve.watch.ledger.redis_checks import redis_checks
from calib_serve.watch.ledger.redis_leases import RedisLeases
from calib_serve.watch.ledger.redis_lock import RedisLock
from calib_serve.watch.ledger.redis_scripts import ACCEPT, ADD, FOLD, MERGE, TAKE_BACK
from calib_serve.watch.ledger.redis_verify import verify
from calib_serve.watch.ledger.redis_wire import (
    PUBLISHED,
    batch_as,
    batch_of,
    escaped,
    fields,
    less_labels,
    packed,
    published,
    rows_and_sums,
    seen_as,
    unpacked,
)
from calib_serve.watch.ledger.sums import Emission, Key, Kind, Sums, Version, add_at, merge_slices
from calib_serve.watch.ledger.taken_out import TAKEN_OUT, read_taken_out

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise MissingDependency("redis", "watch") from error

__all__ = ["CLIENT", "RedisLedger"]

CLIENT = "calib-serve"
"""What connections to Redis call themselves."""

_MERGE_EVERY = 300.0  # seconds between looks for spans that have grown old
_AT_MOST = 10_000  # spans of one such look, and labels of one fold
_FOLD_AT = 1_000  # labels in the journal that nobody has made sums of


class RedisLedger:
    """A ledger in the Redis at ``url``, under keys that start with ``prefix``.

    ``writer``: whose labels this object counts; each replica has its own. ``password``: that of Redis.
    Raises LedgerError when Redis cannot be reached, is full, or may evict receipts; a batch that raises may
    be sent again.
    """

    def __init__(
        self,
        url: str,
        *,
        bins: int = 15,
        writer: str = "",
        retention: float = 30 * DAY,
        prefix: str = "calib-serve",
        timeout: float = 10.0,
        password: str | None = None,
    ) -> None:
        self.bins, self.writer, self.retention = bins, writer, retention
        # The braces keep all keys on one node of a cluster, where scripts can reach them.
        self._root = prefix if prefix.startswith("{") else f"{{{prefix}}}"
        self._local = threading.local()
        self._next_merge = -math.inf
        with self._errors():
            self._redis, memory = _connected(url, timeout=timeout, password=password)
            self._accept, self._add, self._fold, self._merge, self._take_back = (
                self._redis.register_script(script) for script in (ACCEPT, ADD, FOLD, MERGE, TAKE_BACK)
            )
            self._lock = RedisLock(self._redis, self._root, timeout=timeout, errors=self._errors)
            self.leases: Leases = RedisLeases(self._redis, self._root, errors=self._errors)
            evicted = self._redis.info("stats")["evicted_keys"]
        if memory.get("maxmemory", 0) and memory.get("maxmemory_policy") != "noeviction":
            raise LedgerError(
                f"Redis may evict receipts (maxmemory-policy {memory.get('maxmemory_policy')}); "
                "set maxmemory-policy noeviction"
            )
        with self._errors():
            if self._redis.set(f"{self._root}:bins", bins, nx=True):
                self._redis.set(f"{self._root}:evicted", evicted)  # before this ledger began
            kept = int(self._redis.get(f"{self._root}:bins") or 0)
        if kept != bins:
            raise LedgerError(f"this Redis ledger counts in {kept} bins, not {bins}; use one bin count")
        with self.transaction(), self._errors():
            self._convert()
            self._retain()

    @property
    def root(self) -> str:
        """Where the names of its keys begin."""
        return self._root

    def _convert(self) -> None:
        """Bring the sums of format 1 over: they have no time, and count in those over all time."""
        root = self._root
        for place in self._redis.smembers(f"{root}:places"):
            *names, segment = json.loads(place)
            total = json.dumps([*names, "segment", segment])
            # Added to what may be there: a server of before may still count in this Redis.
            kept = fields(self._kept_1(f"{root}:sums:{place.decode()}"))
            with self._local.step() as pipe:
                for field, value in kept.items():
                    pipe.hincrbyfloat(f"{root}:total:{total}", field, value)
                pipe.sadd(f"{root}:totals", total)
                pipe.srem(f"{root}:places", place)
                pipe.delete(f"{root}:sums:{place.decode()}")
        for key in self._redis.scan_iter(f"{escaped(root)}:state:emitted/*"):
            old = np.frombuffer(self._redis.get(key) or b"", "<f8")
            name = PUBLISHED + key.decode().removeprefix(f"{root}:state:emitted/")
            marked = Sums.unpacked(self.load(name) or b"", bins=self.bins)
            marked = marked + Sums.of_version_1(old, bins=self.bins)
            with self._local.step() as pipe:
                pipe.set(f"{root}:state:{name}", marked.packed())
                pipe.delete(key)

    def _kept_1(self, key: str) -> Sums:
        vector = np.zeros(5 * self.bins + 2)
        for field, value in self._redis.hgetall(key).items():
            vector[int(field)] = float(value)
        return Sums.of_version_1(vector, bins=self.bins)

    def _retain(self) -> None:
        """Remember receipts for as long as the longest retention given so far."""
        root = self._root
        kept = float(self._redis.get(f"{root}:retention") or self.retention * 1000) / 1000
        self.retention = max(self.retention, kept)
        forgotten = max(
            self._redis_time() - kept, float(self._redis.get(f"{root}:forgotten") or -math.inf) / 1000
        )
        with self._local.step() as pipe:
            if self.retention > kept:
                # What is this old may have been forgotten under the shorter one.
                pipe.set(f"{root}:forgotten", int(forgotten * 1000))
                pipe.set(f"{root}:prolonging", int((self.retention - kept) * 1000))
            # First, so that what is counted from now on is remembered for as long.
            pipe.set(f"{root}:retention", int(self.retention * 1000))
        if more := int(self._redis.get(f"{root}:prolonging") or 0):
            # Where a process died on the way, the next one begins again: some are remembered for too long.
            for kind in ("epoch", "nonce"):
                for key in self._redis.scan_iter(f"{escaped(root)}:{kind}:*", count=1000):
                    if (left := self._redis.pttl(key)) > 0:
                        self._redis.pexpire(key, left + more)
            for name, score in self._redis.zscan_iter(f"{root}:epochs"):
                self._redis.zadd(f"{root}:epochs", {name: score + more})
            self._redis.delete(f"{root}:prolonging")

    def _redis_time(self) -> float:
        seconds, micro = self._redis.time()
        return float(seconds + micro / 1e6)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except redis.AuthenticationError as error:
            raise LedgerError(
                f"the Redis ledger wants another password: {error}; give it by {REDIS_PASSWORD}, or in a file"
            ) from error
        except redis.RedisError as error:
            raise LedgerError(f"the Redis ledger cannot be used: {error}; send the batch again") from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside happens while no other process is in a transaction; may be nested.

        What is stored or taken out inside is written at its end, in one step, or not at all: when the block
        raises, or this process stood still for so long that another came in. Accepted labels stay.
        """
        if getattr(self._local, "changes", None) is not None:
            yield
            return
        with self._lock.held() as step:
            self._local.changes, self._local.step = _Changes({}, {}), step
            try:
                yield
                self._commit(self._local.changes)
            finally:
                self._local.changes = self._local.step = None

    def _commit(self, changes: _Changes) -> None:
        if changes.stored or changes.taken:
            with self._local.step() as pipe:
                for key, value in changes.stored.items():
                    pipe.set(f"{self._root}:state:{key}", value)
                for key, rows in changes.taken.items():
                    pipe.zrem(key, *rows)

    def _changes(self) -> _Changes | None:
        return getattr(self._local, "changes", None)

    def accept(
        self, entries: Sequence[Entry], *, detect: bool = True, mark: Mark | None = None
    ) -> list[Fate]:
        """Count each label whose receipt was not seen before.

        A receipt that has expired by Redis' clock is refused as forgotten. ``mark``: where to keep what
        became of them, in the same step.
        """
        if not entries:
            return []
        notes = [noted(one, writer=self.writer) for one in entries]
        labels = [
            {
                **seen_as(row.nonce),
                "time": row.time,
                "version": json.dumps([row.model, row.version]),
                "row": packed(row),
            }
            for row in notes
        ]
        batch = {"retention": self.retention * 1000, "labels": labels, "detect": detect}
        if mark is not None:
            batch |= {"mark": mark.key, "given_up": mark.given_up, "named": mark.batch}
        fates = self._counted(self._accept, json.dumps(batch))
        self._tidy()
        return [fate.decode() for fate in fates]

    def take_back(self, rows: Sequence[Noted], *, mark: str, before: bytes, after: bytes) -> bool:
        """Take labels that were counted out of everything, and keep ``after`` under ``mark``, in one step.

        Nothing is done, and False returned, where it is not ``before`` that is kept there. Their receipts
        stay seen.
        """
        with self.transaction(), self._errors():
            while self._redis.llen(f"{self._root}:journal"):
                self._fold_journal()
            batch = less_labels(rows, bins=self.bins, now=self._redis_time())
            batch |= {"mark": mark, "before": before.decode(), "after": after.decode()}
            batch |= {"taken_out": TAKEN_OUT, "labels": len(rows)}
            done = self._take_back(keys=[self._root], args=[json.dumps(batch)])
        if done == -1:
            raise LedgerError(
                "labels to be taken back were never counted in this ledger; is the journal of another?"
            )
        return bool(done)

    def _counted(self, script: Any, batch: str) -> Any:
        """What a script that counts answers; UnknownFate where it was sent and no answer came."""
        pool = self._redis.connection_pool
        with self._errors():
            pool.release(pool.get_connection())  # where there is no connection, nothing was sent
            try:
                return script(keys=[self._root], args=[batch])
            except redis.BusyLoadingError:
                raise
            except (redis.ConnectionError, redis.TimeoutError) as error:
                raise UnknownFate(
                    f"the Redis ledger did not answer: {error}; whether the batch was counted is not known"
                ) from error

    def _tidy(self) -> None:
        """What keeps the journal short and spans wide; its failure takes nothing back that was counted."""
        with contextlib.suppress(LedgerError), self._errors():
            if self._redis.llen(f"{self._root}:journal") > _FOLD_AT:
                self._fold_journal()
            self._merge_sometimes()

    def _fold_journal(self) -> None:
        """Add the labels in the journal to the sums, unless another process does so at this moment."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.get(f"{self._root}:folds")
        pipe.lrange(f"{self._root}:journal", 0, _AT_MOST - 1)
        folds, rows = pipe.execute()
        if rows:
            batch: dict[str, Any] = {"rows": [], "sums": []}
            for writer, sums in journal_sums([unpacked(row) for row in rows], bins=self.bins).items():
                more = rows_and_sums(sums, writer=writer)
                batch = {"rows": batch["rows"] + more["rows"], "sums": batch["sums"] + more["sums"]}
            self._fold(keys=[self._root], args=[json.dumps(batch), folds or "0", len(rows)])

    def add(self, sums: Mapping[Key, Sums], *, time: float, once: Once | None = None) -> bool:
        """Add sums of predictions made at ``time``; False for a batch that was counted, which adds nothing.

        ConflictError where another batch was counted under the name of ``once``.
        """
        batch = rows_and_sums(served(sums, time=time), writer=self.writer)
        if once is not None:
            batch |= batch_as(once)
        found = self._counted(self._add, json.dumps(batch))
        if once is not None and found != 1:
            check_content(once, batch_of(once, found))
        self._tidy()
        return bool(found == 1)

    def known(self, once: Once) -> Once | None:
        """The batch that was counted under this name, if any."""
        with self._errors():
            found, earlier = self._redis.mget(
                f"{self._root}:batch:{once.name.hex()}", f"{self._root}:nonce:{once.earlier.hex()}"
            )
        return None if found is None and earlier is None else batch_of(once, found or b"")

    def _merge_sometimes(self) -> None:
        """Move what has grown old into wider spans, and drop what is older than any."""
        if time.monotonic() < self._next_merge:
            return
        self._next_merge = time.monotonic() + _MERGE_EVERY
        with self._errors():
            self._fold_journal()
            now = self._redis_time()
            names = self._redis.zrangebyscore(f"{self._root}:spans", "-inf", now - SPANS[0][1], 0, _AT_MOST)
            for name in names:
                *key, start, width = json.loads(name)
                to = coarser(start, width, now=now)
                if to != (start, width):
                    self._move(name.decode(), None if to is None else json.dumps([*key, *to]))

    def _move(self, name: str, to: str | None) -> None:
        start = json.loads(to)[-2] if to else 0
        self._merge(keys=[self._root], args=[name, to or "", start])

    def sums(self, *, own: bool = False) -> dict[Version, Sums]:
        """The sums over all time (``own``: by this writer), by (model, version)."""
        return merge_slices(self.slices(own=own))

    def slices(self, kind: Kind = "segment", *, own: bool = False) -> dict[Key, Sums]:
        """The same, by slice of this kind."""
        found: dict[Key, Sums] = {}
        for place, writer, sums in self._kept(f"{self._root}:total:", self._total_names(kind, own=own)):
            if place.key.kind == kind and not place.width and (not own or writer == self.writer):
                add_at(found, place.key, sums)
        return found

    def _total_names(self, kind: Kind, *, own: bool) -> Callable[[], dict[str, tuple[Place, str]]]:
        def names() -> dict[str, tuple[Place, str]]:
            found = {}
            for name in sorted(self._redis.smembers(f"{self._root}:totals")):
                writer, model, version, of, slice_ = json.loads(name)
                if of == kind and (not own or writer == self.writer):
                    found[name.decode()] = (Place(Key(model, version, slice_, of)), writer)
            return found

        return names

    def _kept(
        self, prefix: str, names: Callable[[], dict[str, tuple[Place, str]]]
    ) -> Iterator[tuple[Place, str, Sums]]:
        """The sums under these names and those of the journal, of one moment, with their writers."""
        with self._errors():
            self._fold_journal()
            while True:
                folds = self._redis.get(f"{self._root}:folds")
                asked = names()
                pipe = self._redis.pipeline(transaction=True)
                pipe.get(f"{self._root}:folds")
                pipe.lrange(f"{self._root}:journal", 0, -1)
                for name in asked:
                    pipe.hgetall(prefix + name)
                now, rows, *hashes = pipe.execute()
                if now == folds:  # else labels have gone from the journal to sums whose names are not here
                    break
        for (place, writer), kept in zip(asked.values(), hashes, strict=True):
            yield place, writer, self._sums_of(kept)
        for writer, sums in journal_sums([unpacked(row) for row in rows], bins=self.bins).items():
            for place, more in sums.items():
                yield place, writer, more

    def _sums_of(self, kept: Mapping[bytes, bytes]) -> Sums:
        vector = np.zeros_like(Sums.zeros(self.bins).vector)
        try:
            for field, value in kept.items():
                vector[int(field)] = float(value)
        except (ValueError, IndexError) as error:
            raise LedgerError(f"sums of the Redis ledger are damaged: {error}; restore a copy") from error
        if not np.isfinite(vector).all():
            raise LedgerError("sums of the Redis ledger are damaged: not finite; restore a copy")
        return Sums(self.bins, vector)

    def dated(
        self, since: float, until: float, *, version: Version | None = None, kind: Kind | None = None
    ) -> list[Dated]:
        """The sums of predictions made in [since, until), by slice and span; spans that lie inside whole."""

        def wanted(place: Place) -> bool:
            key, start, width = place
            inside = bool(width) and since <= start and start + width <= until
            return inside and version in (None, key.of) and kind in (None, key.kind)

        def names() -> dict[str, tuple[Place, str]]:
            found = {}
            for name in self._redis.zrangebyscore(f"{self._root}:spans", since, f"({until}"):
                model, of_version, of, slice_, start, width = json.loads(name)
                place = Place(Key(model, of_version, slice_, of), start, width)
                if wanted(place):
                    found[name.decode()] = (place, "")
            return found

        found: dict[Place, Sums] = {}
        for place, _, sums in self._kept(f"{self._root}:span:", names):
            if wanted(place):
                add_at(found, place, sums)
        return [Dated(*place, sums) for place, sums in sorted(found.items(), key=lambda one: one[0].start)]

    def waiting(self) -> dict[Version, int]:
        """How many labels wait for the drift detector."""
        with self._errors():
            names = sorted(self._redis.smembers(f"{self._root}:waiting"))
            counts = [self._redis.zcard(f"{self._root}:waiting:{name.decode()}") for name in names]
        return {tuple(json.loads(name)): n for name, n in zip(names, counts, strict=True) if n}

    def take_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """Take out the labels of predictions made before ``until``, oldest first.

        To be called within a transaction, in which the detector's state is stored as well.
        """
        key = f"{self._root}:waiting:{json.dumps(version)}"
        with self.transaction(), self._errors():
            taken = self._local.changes.taken.setdefault(key, {})
            found = self._redis.zrangebyscore(key, "-inf", f"({until}", 0, most + len(taken))
            rows = [row for row in found if row not in taken][:most]
            taken.update(dict.fromkeys(rows))
            if not taken:
                del self._local.changes.taken[key]
        return [unpacked(row) for row in rows]

    def published(self, consumer: str) -> dict[Version, Sums]:
        """What ``consumer`` has published of this writer's sums, as the ledger knows."""
        with self._errors():
            names = self._total_names("segment", own=True)()
        return self._marks(consumer, {place.key.of for place, _ in names.values()})

    def _marks(self, consumer: str, versions: Iterable[Version]) -> dict[Version, Sums]:
        found = {}
        for version in versions:
            if (kept := self.load(published(consumer, version))) is not None:
                found[version] = Sums.unpacked(kept, bins=self.bins)
        return found

    @contextlib.contextmanager
    def emission(self, consumer: str, *, before: Mapping[Version, Sums] | None = None) -> Iterator[Emission]:
        """The sums of this writer that ``consumer`` has not published; leaving the block marks them so.

        ``before``: what it has published, where it knows better than the ledger. If the block raises or its
        process is killed, the same sums are offered again.
        """
        with self.transaction():
            counted = self.sums(own=True)
            known = self._marks(consumer, counted) if before is None else before
            found = Emission.of(counted, known)
            yield found
            for version, mark in found.marks(known).items():
                self.store(published(consumer, version), mark.packed())

    def load(self, key: str) -> bytes | None:
        """What was stored under ``key``."""
        changes = self._changes()
        if changes is not None and key in changes.stored:
            return changes.stored[key]
        with self._errors():
            value = self._redis.get(f"{self._root}:state:{key}")
        return None if value is None else bytes(value)

    def store(self, key: str, value: bytes) -> None:
        """Keep ``value`` under ``key``; in a transaction, when that ends."""
        changes = self._changes()
        if changes is not None:
            changes.stored[key] = value
            return
        with self._errors():
            self._redis.set(f"{self._root}:state:{key}", value)

    def forget(self, until: float, *, drop: bool = False) -> int:
        """Refuse labels of predictions made until then; with ``drop``, how many epochs went."""
        root = self._root
        with self.transaction(), self._errors():
            kept = float(self._redis.get(f"{root}:forgotten") or -math.inf)
            self._redis.set(f"{root}:forgotten", int(max(math.ceil(until * 1000), kept)))
            last, gone = (until + self.retention - self._redis_time()) * 1000, 0
            if not drop:
                return 0
            for key in self._redis.scan_iter(f"{escaped(root)}:epoch:*", count=1000):
                if 0 <= self._redis.pttl(key) < last:
                    gone += self._redis.unlink(key)
        return gone

    def sweep(self, now: float) -> int:
        """Merge spans that are old by now; 0, as Redis forgets receipts itself, by its own clock."""
        self._next_merge = -math.inf
        self._merge_sometimes()
        return 0

    def remembered(self) -> int:
        """How many receipts are remembered by the bits of their epochs."""
        with self._errors():
            keys = self._redis.scan_iter(f"{escaped(self._root)}:epoch:*", count=1000)
            return sum(int(self._redis.bitcount(key)) for key in keys)

    def drop(self, version: Version) -> None:
        """Delete all sums and waiting labels of a version; its receipts are remembered until they expire."""
        root, of = self._root, list(version)
        with self.transaction(), self._errors():
            self._fold_journal()
            totals = [n for n in self._redis.smembers(f"{root}:totals") if json.loads(n)[1:3] == of]
            spans = [n for n in self._redis.zrange(f"{root}:spans", 0, -1) if json.loads(n)[:2] == of]
            marks = self._redis.scan_iter(f"{escaped(root)}:state:{PUBLISHED}*")
            gone = [key for key in marks if json.loads(key.decode().partition(PUBLISHED)[2])[1:] == of]
            pipe = self._redis.pipeline(transaction=True)
            for kind, names in (("total", totals), ("span", spans)):
                gone += [f"{root}:{kind}:{name.decode()}" for name in names]
            pipe.unlink(f"{root}:waiting:{json.dumps(version)}", *gone)
            if totals:
                pipe.srem(f"{root}:totals", *totals)
            if spans:
                pipe.zrem(f"{root}:spans", *spans)
            pipe.execute()

    def verify(self) -> list[str]:
        """What can be seen of it that is wrong; empty if nothing is. Changes no number."""
        with self._errors():
            return verify(
                self._redis,
                self._root,
                bins=self.bins,
                sums=self.slices,
                taken_out=lambda: read_taken_out(self),
            )

    def set_aside(self) -> list[str]:
        """Nothing: Redis keeps no checksums."""
        return []

    def forget_set_aside(self) -> int:
        """0: nothing is set aside."""
        return 0

    def checks(self, *, volatile: bool = False) -> list[Check]:
        """What to look at while this ledger is used; ``volatile``: Redis may lose labels at a restart."""
        return redis_checks(self._redis, self._root, volatile=volatile)

    def identity(self) -> str:
        """Of the Redis that runs: another one may be back at a snapshot, or be a replica that took over."""
        with self._errors():
            return str(self._redis.info("server")["run_id"])

    def generation(self) -> int:
        """Which one it is: greater, whenever sums have gone down."""
        return read_generation(self).number

    def new_generation(self, why: str, *, above: int = 0) -> int:
        """Begin a generation, later than ``above``: sums are lower than those that were published."""
        return begin_generation(self, why, now=time.time(), above=above)

    def close(self) -> None:
        """Close the connections."""
        self._lock.close()
        self._redis.close()


class _Changes(NamedTuple):
    """What a transaction is to write: what is stored, and which rows of which sets are taken out."""

    stored: dict[str, bytes]
    taken: dict[str, dict[bytes, None]]


def _connected(url: str, *, timeout: float, password: str | None) -> tuple[Any, dict[str, Any]]:
    """A client of the Redis at ``url``, and what that says of its memory."""
    try:
        client: Any = redis.Redis.from_url(
            url,
            socket_timeout=timeout,
            password=password,
            client_name=CLIENT,
            retry=Retry(NoBackoff(), 0),  # sent once: what counts would count again
        )
        return client, client.info("memory")
    except (OSError, TypeError, ValueError) as error:  # also a file that is missing, an option that is none
        raise InputError(f"the address of the Redis ledger cannot be used: {error}") from error
