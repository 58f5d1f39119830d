"""What every part of a Redis ledger stands on: the connection, its errors, the transaction and the state."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from calib_serve.errors import InputError, LedgerError, MissingDependency
from calib_serve.watch.ledger.address import REDIS_PASSWORD, Place, is_cluster
from calib_serve.watch.ledger.redis_cluster import cluster_pool
from calib_serve.watch.ledger.redis_lock import RedisLock

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise MissingDependency("redis", "watch") from error

__all__ = ["CLIENT", "RedisStore", "connected"]

CLIENT = "calib-serve"
"""What connections to Redis call themselves."""


class RedisStore:
    """State in the Redis at ``url`` under keys that start with ``prefix``, changed under one lock.

    ``timeout``: seconds to wait for an answer, and for the lock.
    """

    def __init__(self, url: str, *, prefix: str, timeout: float, password: str | None) -> None:
        self._root = prefix if prefix.startswith("{") else Place(url, prefix).root
        self._local = threading.local()
        with self._errors():
            self._redis = connected(url, self._root, timeout=timeout, password=password)
            self._lock = RedisLock(self._redis, self._root, timeout=timeout, errors=self._errors)

    @property
    def root(self) -> str:
        """Where the names of its keys begin."""
        return self._root

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

    def close(self) -> None:
        """Close the connections."""
        self._lock.close()
        self._redis.close()


class _Changes(NamedTuple):
    """What a transaction is to write: what is stored, and which rows of which sets are taken out."""

    stored: dict[str, bytes]
    taken: dict[str, dict[bytes, None]]


def connected(url: str, root: str, *, timeout: float, password: str | None, name: str | None = CLIENT) -> Any:
    """A client of the Redis at ``url``, or of the node of a cluster that has the keys of ``root``.

    ``name``: what its connections call themselves. InputError where it cannot be reached at all.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout,
        "password": password,
        "client_name": name,
        "retry": Retry(NoBackoff(), 0),  # sent once: what counts would count again
    }
    try:
        client: Any
        if is_cluster(url):
            client = redis.Redis.from_pool(cluster_pool(url, root, **options))
        else:
            client = redis.Redis.from_url(url, **options)
        client.ping()
        return client
    except (OSError, TypeError, ValueError) as error:  # also a file that is missing, an option that is none
        raise InputError(f"the address of the Redis ledger cannot be used: {error}") from error
