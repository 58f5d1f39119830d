"""Checks of a Redis that holds a ledger: whether it keeps what it acknowledges, and keeps all of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from calib_serve.errors import LedgerError, MissingDependency
from calib_serve.receipts import DAY
from calib_serve.watch.checks import Check

try:
    import redis
except ImportError as error:
    raise MissingDependency("redis", "watch") from error

__all__ = ["redis_checks"]

log = logging.getLogger(__name__)

_APART = 60.0  # seconds between the clocks of this host and of Redis
_FRESH = 1.0  # seconds for which facts are those of one round of checks

Facts = Mapping[str, Any]


def redis_checks(
    client: Any, root: str, *, volatile: bool, clock: Callable[[], float] = time.time
) -> list[Check]:
    """The checks of the Redis behind ``client``; ``volatile``: it may lose labels when it restarts."""
    facts = _Facts(client, root, clock)
    made: list[Check] = [
        Check("eviction", lambda: _eviction(facts()), "refusing"),
        Check("evicted", lambda: _evicted(facts())),
        Check("role", lambda: _role(facts()), "refusing"),
        Check("store-clock", lambda: _clock(facts())),
        Check("store-writes", lambda: _writes(facts())),
    ]
    if not volatile:
        made.append(Check("persistence", lambda: _persistence(facts()), "refusing"))
    return made


class _Facts:
    """What Redis says of itself, asked once a round."""

    def __init__(self, client: Any, root: str, clock: Callable[[], float]) -> None:
        self._client, self._root, self._clock = client, root, clock
        self._lock = threading.Lock()
        self._at, self._error = float("-inf"), ""
        self._found: dict[str, Any] = {}
        self._told_once = False

    def __call__(self) -> Facts:
        """The facts, or LedgerError where Redis does not answer."""
        with self._lock:
            if time.monotonic() - self._at > _FRESH:
                try:
                    self._found, self._error = self._ask(), ""
                except redis.RedisError as error:
                    self._error = f"Redis does not answer: {error}"
                self._at = time.monotonic()
            if self._error:
                raise LedgerError(self._error)
            return self._found

    def _ask(self) -> dict[str, Any]:
        began = self._clock()
        seconds, micro = self._client.time()
        ended = self._clock()
        now = seconds + micro / 1e6
        found: dict[str, Any] = {"now": now, "ahead": now - (began + ended) / 2, "took": ended - began}
        for section in ("memory", "persistence", "replication", "stats"):
            found |= self._client.info(section)
        found["evicted_at"] = self._client.get(f"{self._root}:evicted_at")
        try:
            found["save"] = self._client.config_get("save").get("save")
            replicas = self._client.config_get("min-replicas-to-write")
            found["min_replicas"] = int(replicas.get("min-replicas-to-write", 0))
        except redis.ResponseError as error:
            if not self._told_once:
                log.warning("Redis does not tell whether it saves snapshots (%s): see to it yourself", error)
            self._told_once = True
        return found


def _eviction(facts: Facts) -> str | None:
    policy = facts.get("maxmemory_policy", "noeviction")
    if facts.get("maxmemory", 0) and policy != "noeviction":
        return f"Redis may evict receipts (maxmemory-policy {policy}); set maxmemory-policy noeviction"
    return None


def _evicted(facts: Facts) -> str | None:
    at = facts["evicted_at"]
    if at is None or facts["now"] - float(at) / 1000 > DAY:
        return None
    return (
        f"Redis evicted {facts['evicted_keys']} keys: labels of predictions made before are refused as "
        "forgotten, as what was counted of them is not known"
    )


def _persistence(facts: Facts) -> str | None:
    """Whether Redis keeps what it holds when it restarts, as far as it tells."""
    if facts.get("aof_enabled") or facts.get("save", "unknown"):
        return None
    return (
        "Redis keeps nothing when it restarts (appendonly no, save ''): acknowledged labels would be lost; "
        "set appendonly yes, or allow it with --allow-volatile"
    )


def _writes(facts: Facts) -> str | None:
    """Whether the last writes of Redis to its disk went well."""
    for name, what in (
        ("aof_last_write_status", "its append-only file"),
        ("aof_last_bgrewrite_status", "its append-only file anew"),
        ("rdb_last_bgsave_status", "its last snapshot"),
    ):
        if facts.get(name, "ok") != "ok":
            return f"Redis could not write {what} ({name}:{facts[name]}); see its log"
    return None


def _role(facts: Facts) -> str | None:
    if facts.get("role") == "slave" and facts.get("slave_read_only", 1):
        return "this Redis is a read-only replica: nothing can be counted; name the primary"
    wanted, good = facts.get("min_replicas", 0), facts.get("min_slaves_good_slaves", 0)
    if wanted > good:
        return f"Redis takes no writes: {good} of {wanted} replicas (min-replicas-to-write) are connected"
    return None


def _clock(facts: Facts) -> str | None:
    ahead = facts["ahead"]
    if abs(ahead) <= _APART + facts["took"]:
        return None
    how = "behind" if ahead > 0 else "ahead of"
    return f"this host's clock is {abs(ahead):.0f} s {how} that of Redis; set both by NTP"
