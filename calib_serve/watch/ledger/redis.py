"""The ledger that several hosts share: one Redis.

Run it with ``appendonly yes`` and ``appendfsync always`` if a label that was acknowledged must
survive the power cut of the Redis host, and with ``maxmemory-policy noeviction``: an evicted
epoch would let a label be counted twice.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from calib_serve.errors import LedgerError, MissingDependency, UnknownFate
from calib_serve.receipts import DAY
from calib_serve.watch.checks import Check
from calib_serve.watch.ledger.entries import (
    Dated,
    Entry,
    Fate,
    Mark,
    Noted,
    Once,
    check_content,
    noted,
    served,
)
from calib_serve.watch.ledger.generations import TAKEN_OUT, begin_generation, read_generation, read_taken_out
from calib_serve.watch.ledger.leases import Leases
from calib_serve.watch.ledger.redis_checks import redis_checks
from calib_serve.watch.ledger.redis_leases import RedisLeases
from calib_serve.watch.ledger.redis_scripts import ACCEPT, ADD, TAKE_BACK
from calib_serve.watch.ledger.redis_store import RedisStore
from calib_serve.watch.ledger.redis_sums import RedisSums
from calib_serve.watch.ledger.redis_verify import verify
from calib_serve.watch.ledger.redis_wire import (
    PUBLISHED,
    batch_as,
    batch_of,
    escaped,
    less_labels,
    packed,
    published,
    rows_and_sums,
    seen_as,
    unpacked,
)
from calib_serve.watch.ledger.sums import Emission, Key, Kind, Sums, Version, merge_slices

try:
    import redis
except ImportError as error:
    raise MissingDependency("redis", "watch") from error

__all__ = ["RedisLedger"]


class RedisLedger(RedisStore):
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
        super().__init__(url, prefix=prefix, timeout=timeout, password=password)
        self.bins, self.writer, self.retention = bins, writer, retention
        self.leases: Leases = RedisLeases(self._redis, self._root, errors=self._errors)
        self._sums = RedisSums(self._redis, self._root, bins=bins, errors=self._errors)
        with self._errors():
            self._accept, self._add, self._take_back = (
                self._redis.register_script(script) for script in (ACCEPT, ADD, TAKE_BACK)
            )
            memory = self._redis.info("memory")
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
            self._retain()

    def _retain(self) -> None:
        """Remember receipts for as long as the longest retention given so far."""
        root, mine = self._root, int(self.retention * 1000)
        kept = int(float(self._redis.get(f"{root}:retention") or mine))
        longest = max(mine, kept)
        self.retention = max(self.retention, kept / 1000)
        # With what a process had still to add that died on the way: some are remembered for too long.
        more = longest - kept + int(self._redis.get(f"{root}:prolonging") or 0)
        if not more:
            self._redis.set(f"{root}:retention", longest)
            return
        self._forget_until(longest - more, ("prolonging", more), ("retention", longest))
        for key in self._redis.scan_iter(f"{escaped(root)}:epoch:*", count=1000):
            if (left := self._redis.pttl(key)) > 0:
                self._redis.pexpire(key, left + more)
        for name, _ in self._redis.zscan_iter(f"{root}:epochs"):
            self._redis.zincrby(f"{root}:epochs", more, name)
        self._forget_until(longest - more, ("prolonging", 0))

    def _forget_until(self, shorter: int, *more: tuple[str, int]) -> None:
        """Refuse what may have expired after ``shorter`` milliseconds; set ``more`` in the same step."""
        root, expired = self._root, int(self._redis_time() * 1000) - shorter
        forgotten = max(expired, float(self._redis.get(f"{root}:forgotten") or -math.inf))
        with self._local.step() as pipe:
            pipe.set(f"{root}:forgotten", int(forgotten))
            for name, value in more:
                pipe.set(f"{root}:{name}", value) if value else pipe.delete(f"{root}:{name}")

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
        self._sums.tidy()
        return [fate.decode() for fate in fates]

    def take_back(self, rows: Sequence[Noted], *, mark: str, before: bytes, after: bytes) -> bool:
        """Take labels that were counted out of everything, and keep ``after`` under ``mark``, in one step.

        Nothing is done, and False returned, where it is not ``before`` that is kept there. Their receipts
        stay seen.
        """
        with self.transaction(), self._errors():
            while self._redis.llen(f"{self._root}:journal"):
                self._sums.fold()
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
        self._sums.tidy()
        return bool(found == 1)

    def known(self, once: Once) -> Once | None:
        """The batch that was counted under this name, if any."""
        with self._errors():
            found = self._redis.get(f"{self._root}:batch:{once.name.hex()}")
        return None if found is None else batch_of(once, found)

    def sums(self, *, own: bool = False) -> dict[Version, Sums]:
        """The sums over all time (``own``: by this writer), by (model, version)."""
        return merge_slices(self.slices(own=own))

    def slices(
        self, kind: Kind = "segment", *, own: bool = False, version: Version | None = None
    ) -> dict[Key, Sums]:
        """The same, by slice of this kind; of all versions or one."""
        return self._sums.slices(kind, writer=self.writer if own else None, version=version)

    def dated(
        self, since: float, until: float, *, version: Version | None = None, kind: Kind | None = None
    ) -> list[Dated]:
        """The sums of predictions made in [since, until), by slice and span; spans that lie inside whole."""
        return self._sums.dated(since, until, version=version, kind=kind)

    def waiting(self, *, until: float = math.inf) -> dict[Version, int]:
        """How many labels of predictions made before ``until`` wait for the drift detector."""
        with self._errors():
            names = sorted(self._redis.smembers(f"{self._root}:waiting"))
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.zcount(f"{self._root}:waiting:{name.decode()}", "-inf", f"({until}")
            counts = pipe.execute()
        return {tuple(json.loads(name)): n for name, n in zip(names, counts, strict=True) if n}

    def look_at_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """The labels of predictions made before ``until``, oldest first, as they wait."""
        with self._errors():
            rows = self._redis.zrangebyscore(self._waiting_key(version), "-inf", f"({until}", 0, most)
        return [unpacked(row) for row in rows]

    def _waiting_key(self, version: Version) -> str:
        return f"{self._root}:waiting:{json.dumps(version)}"

    def take_waiting(self, version: Version, *, until: float, most: int) -> list[Noted]:
        """Take them out.

        To be called within a transaction, in which the detector's state is stored as well.
        """
        key = self._waiting_key(version)
        with self.transaction(), self._errors():
            taken = self._local.changes.taken.setdefault(key, {})
            found = self._redis.zrangebyscore(key, "-inf", f"({until}", 0, most + len(taken))
            rows = [row for row in found if row not in taken][:most]
            taken.update(dict.fromkeys(rows))
            if not taken:
                del self._local.changes.taken[key]
        return [unpacked(row) for row in rows]

    def published(self, consumer: str, versions: Iterable[Version] | None = None) -> dict[Version, Sums]:
        """What ``consumer`` has published of this writer's sums, as the ledger knows."""
        if versions is None:
            with self._errors():
                names = self._sums.totals("segment", writer=self.writer)
            versions = {place.key.of for place, _ in names.values()}
        found = {}
        for version in versions:
            if (kept := self.load(published(consumer, version))) is not None:
                found[version] = Sums.unpacked(kept, bins=self.bins)
        return found

    def mark_published(self, consumer: str, marks: Mapping[Version, Sums]) -> None:
        """Note that ``consumer`` has published this much."""
        for version, mark in marks.items():
            self.store(published(consumer, version), mark.packed())

    @contextlib.contextmanager
    def emission(self, consumer: str, *, before: Mapping[Version, Sums] | None = None) -> Iterator[Emission]:
        """The sums of this writer that ``consumer`` has not published; leaving the block marks them so.

        ``before``: what it has published, where it knows better than the ledger. If the block raises or its
        process is killed, the same sums are offered again.
        """
        with self.transaction():
            counted = self.sums(own=True)
            known = self.published(consumer, counted) if before is None else before
            found = Emission.of(counted, known)
            yield found
            self.mark_published(consumer, found.marks(known))

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
        self._sums.merge_sometimes(now=True)
        return 0

    def drop(self, version: Version) -> None:
        """Delete all sums and waiting labels of a version; its receipts are remembered until they expire."""
        root, of = self._root, list(version)
        self._sums.forget_names()
        with self.transaction(), self._errors():
            self._sums.fold()
            totals = [n for n in self._redis.smembers(f"{root}:totals") if json.loads(n)[1:3] == of]
            spans = [n for n in self._redis.zrange(f"{root}:spans", 0, -1) if json.loads(n)[:2] == of]
            marks = self._redis.scan_iter(f"{escaped(root)}:state:{PUBLISHED}*")
            gone = [key for key in marks if json.loads(key.decode().partition(PUBLISHED)[2])[1:] == of]
            pipe = self._redis.pipeline(transaction=True)
            for kind, names in (("total", totals), ("span", spans)):
                gone += [f"{root}:{kind}:{name.decode()}" for name in names]
            pipe.unlink(self._waiting_key(version), *gone)
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
