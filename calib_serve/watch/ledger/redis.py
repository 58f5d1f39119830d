"""The ledger that several hosts share: one Redis.

Run it with ``appendonly yes`` and ``appendfsync always`` if a label that was acknowledged must
survive the power cut of the Redis host, and with ``maxmemory-policy noeviction``: an evicted
nonce would let a label be counted twice.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from calib_serve.errors import InputError, LedgerError, MissingDependency
from calib_serve.receipts import Label
from calib_serve.watch.ledger.sums import Key, Sums, Version, changes, merge_segments

try:
    import redis
except ImportError as error:
    raise MissingDependency("redis", "watch") from error

__all__ = ["RedisLedger"]

# One script, so one step: the nonce and the sums, or neither. Redis' own clock says what has
# expired, so hosts whose clocks disagree cannot have a label counted twice.
_ONCE = """
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local function fresh(nonce, until_ms)
  local left = tonumber(until_ms) - ms
  if left <= 0 then return false end
  return redis.call('SET', nonce, '', 'NX', 'PX', string.format('%.0f', left)) and true
end
"""
_ACCEPT = (
    _ONCE
    + """
local length, out, at = tonumber(ARGV[1]), {}, 2
while ARGV[at] do
  local nonce, until_ms, place = ARGV[at], ARGV[at+1], ARGV[at+2]
  if fresh(KEYS[1] .. ':nonce:' .. nonce, until_ms) then
    redis.call('SADD', KEYS[1] .. ':places', place)
    for field = at + 3, at + length - 1, 2 do
      redis.call('HINCRBYFLOAT', KEYS[1] .. ':sums:' .. place, ARGV[field], ARGV[field+1])
    end
    out[#out + 1] = 1
  else
    out[#out + 1] = 0
  end
  at = at + length
end
return out
"""
)
_ADD = (
    _ONCE
    + """
if ARGV[1] ~= '' and not fresh(KEYS[1] .. ':nonce:' .. ARGV[1], ARGV[2]) then return 0 end
local at = 3
while ARGV[at] do
  redis.call('SADD', KEYS[1] .. ':places', ARGV[at])
  redis.call('HINCRBYFLOAT', KEYS[1] .. ':sums:' .. ARGV[at], ARGV[at+1], ARGV[at+2])
  at = at + 3
end
return 1
"""
)
_UNLOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_HELD = 30_000  # milliseconds after which the lock of a dead process expires
_FOREVER = 4_102_444_800_000  # the year 2100, for what need not expire


class RedisLedger:
    """A ledger in the Redis at ``url``, under keys that start with ``prefix``.

    ``writer``: whose labels this object counts; each replica has its own. Raises LedgerError when
    Redis cannot be reached, is full, or may evict nonces; a batch that raises may be sent again.
    """

    def __init__(
        self,
        url: str,
        *,
        bins: int = 15,
        writer: str = "",
        prefix: str = "calib-serve",
        timeout: float = 10.0,
    ) -> None:
        self.bins, self.writer = bins, writer
        # The braces keep all keys on one node of a cluster, where scripts can reach them.
        self._root = f"{{{prefix}}}"
        self._timeout = timeout
        self._local = threading.local()
        with self._errors():
            self._redis: Any = redis.Redis.from_url(url, socket_timeout=timeout)
            self._accept = self._redis.register_script(_ACCEPT)
            self._add_script = self._redis.register_script(_ADD)
            self._unlock = self._redis.register_script(_UNLOCK)
            memory = self._redis.info("memory")
        if memory.get("maxmemory", 0) and memory.get("maxmemory_policy") != "noeviction":
            raise LedgerError(
                f"Redis may evict nonces (maxmemory-policy {memory.get('maxmemory_policy')}); "
                "set maxmemory-policy noeviction"
            )
        with self._errors():
            self._redis.set(f"{self._root}:bins", bins, nx=True)
            kept = int(self._redis.get(f"{self._root}:bins") or 0)
        if kept != bins:
            raise LedgerError(f"this Redis ledger counts in {kept} bins, not {bins}; use one bin count")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise LedgerError(f"the Redis ledger cannot be used: {error}; send the batch again") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside happens while no other process is in a transaction; may be nested.

        What was written inside stays when the block raises: accepted labels are never taken back.
        """
        depth = getattr(self._local, "depth", 0)
        token = secrets.token_hex(16)
        if depth == 0:
            self._take_lock(token)
        self._local.depth = depth + 1
        try:
            yield
        finally:
            self._local.depth = depth
            if depth == 0:
                self._release(token)

    def _take_lock(self, token: str) -> None:
        until = time.monotonic() + self._timeout
        if stale := getattr(self._local, "stale", None):
            self._release(stale)
        with self._errors():
            while not self._redis.set(f"{self._root}:lock", token, nx=True, px=_HELD):
                if time.monotonic() > until:
                    raise LedgerError(
                        f"the Redis ledger was locked for {self._timeout:.0f} s; send the batch again"
                    )
                time.sleep(0.005)

    def _release(self, token: str) -> None:
        # A Redis that restarts may still hold this lock: it is released at this thread's next transaction.
        self._local.stale = token
        with self._errors():
            self._unlock(keys=[f"{self._root}:lock"], args=[token])
        self._local.stale = None

    def accept(
        self, labels: Sequence[Label], *, expires: Sequence[float], segments: Sequence[str] | None = None
    ) -> list[bool]:
        """Count each label whose receipt was not seen before; True = counted now.

        ``expires``: until when each receipt is accepted, seconds since 1970; its nonce is kept
        until then. One that has expired by Redis' clock is refused.
        """
        segments = [""] * len(labels) if segments is None else segments
        if not len(labels) == len(expires) == len(segments):
            raise InputError(
                f"one expiry and one segment a label, got {len(labels)}, {len(expires)} and {len(segments)}"
            )
        if not labels:
            return []
        fields, values = changes(
            "labels",
            [one.receipt.confidence for one in labels],
            [one.correct for one in labels],
            bins=self.bins,
        )
        arguments: list[str | int] = [3 + 2 * fields.shape[1]]
        for label, until, segment, at, adds in zip(
            labels, expires, segments, fields.tolist(), values.tolist(), strict=True
        ):
            place = self._place(Key(label.receipt.model, label.receipt.version, segment))
            arguments += [label.receipt.nonce.hex(), _milliseconds(until), place]
            arguments += [
                part for field, value in zip(at, adds, strict=True) for part in (field, repr(value))
            ]
        with self._errors():
            return [bool(new) for new in self._accept(keys=[self._root], args=arguments)]

    def add(self, sums: Mapping[Key, Sums], *, once: bytes | None = None, expires: float = 0.0) -> bool:
        """Add sums of predictions; with ``once`` a second call does nothing until it expires."""
        arguments: list[str | int] = ["" if once is None else once.hex(), _milliseconds(expires)]
        for key, more in sums.items():
            for field in np.flatnonzero(more.vector).tolist():
                arguments += [self._place(key), field, repr(float(more.vector[field]))]
        with self._errors():
            return bool(self._add_script(keys=[self._root], args=arguments))

    def _place(self, key: Key) -> str:
        return json.dumps([self.writer, key.model, key.version, key.segment])

    def sums(self, *, own: bool = False) -> dict[Version, Sums]:
        """The sums over everything counted (``own``: by this writer), by (model, version)."""
        return merge_segments(self.by_segment(own=own))

    def by_segment(self, *, own: bool = False) -> dict[Key, Sums]:
        """The same, by (model, version, segment)."""
        found: dict[Key, Sums] = {}
        with self._errors():
            places = sorted(self._redis.smembers(f"{self._root}:places"))
            pipe = self._redis.pipeline(transaction=True)
            for place in places:
                pipe.hgetall(f"{self._root}:sums:{place.decode()}")
            hashes = pipe.execute()
        for place, fields in zip(places, hashes, strict=True):
            writer, *names = json.loads(place)
            if not own or writer == self.writer:
                key, zeros = Key(*names), Sums.zeros(self.bins)
                vector = np.zeros_like(zeros.vector)
                for field, value in fields.items():
                    vector[int(field)] = float(value)
                found[key] = found.get(key, zeros) + Sums(self.bins, vector)
        return found

    @contextmanager
    def emission(self, consumer: str) -> Iterator[Mapping[Version, Sums]]:
        """The sums of this writer that ``consumer`` has not published; leaving the block marks them so.

        If the block raises or its process is killed, the same sums are offered again.
        """
        with self.transaction():
            counted = self.sums(own=True)
            zeros = Sums.zeros(self.bins)
            fresh = {}
            for version, total in counted.items():
                kept = self.load(_emitted(consumer, version))
                before = zeros if kept is None else Sums.stored(np.frombuffer(kept, "<f8"), bins=self.bins)
                if total != before:
                    fresh[version] = total - before
            yield fresh
            if fresh:  # all in one step, or none
                marks = {_emitted(consumer, v): counted[v].vector.astype("<f8").tobytes() for v in fresh}
                with self._errors():
                    self._redis.mset({f"{self._root}:state:{key}": mark for key, mark in marks.items()})

    def load(self, key: str) -> bytes | None:
        """What was stored under ``key``."""
        with self._errors():
            value = self._redis.get(f"{self._root}:state:{key}")
        return None if value is None else bytes(value)

    def store(self, key: str, value: bytes) -> None:
        """Keep ``value`` under ``key``."""
        with self._errors():
            self._redis.set(f"{self._root}:state:{key}", value)

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()


def _milliseconds(seconds: float) -> str:
    return str(int(min(max(seconds * 1000, 0), _FOREVER)))


def _emitted(consumer: str, version: Version) -> str:
    return "emitted/" + json.dumps([consumer, *version])
