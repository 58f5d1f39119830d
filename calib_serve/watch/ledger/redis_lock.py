"""The lock under which processes that share a Redis change what they keep together.

It expires soon and is renewed by a heartbeat, so that the lock of a dead process falls. One that stood still
and wakes writes nothing: what is written under the lock names its number, which is the latest one given out.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from calib_serve.errors import LedgerError, MissingDependency
from calib_serve.watch.ledger.redis_scripts import LOCK, RENEW, UNLOCK

try:
    from redis import RedisError, WatchError
except ImportError as error:
    raise MissingDependency("redis", "watch") from error

__all__ = ["RedisLock"]

HELD = 2.0
"""Seconds after which the lock of a process that gives no sign of life falls."""

_BEAT = HELD / 5


class RedisLock:
    """The lock of the ledger under ``root``; ``timeout``: seconds to wait for it."""

    def __init__(
        self,
        server: Any,
        root: str,
        *,
        timeout: float,
        errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._redis, self._timeout, self._errors = server, timeout, errors
        self._keys = [f"{root}:lock", f"{root}:fence"]
        self._take, self._renew, self._unlock = (server.register_script(one) for one in (LOCK, RENEW, UNLOCK))
        self._token = ""
        self._busy, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def held(self) -> Iterator[Callable[[], AbstractContextManager[Any]]]:
        """Hold it; gives what makes steps of commands, each done while it is held or not at all.

        LedgerError after ``timeout`` seconds.
        """
        token, fence = secrets.token_hex(8), 0
        until = time.monotonic() + self._timeout
        with self._errors():
            while not (fence := int(self._take(keys=self._keys, args=[token, int(HELD * 1000)]))):
                if time.monotonic() > until:
                    raise LedgerError(
                        f"the Redis ledger was locked for {self._timeout:.0f} s; send the batch again"
                    )
                time.sleep(0.005)
        self._token = token
        self._start_beating()
        try:
            yield lambda: self._step(token, fence)
        finally:
            if self._token == token:  # else another thread has it, as this one lost it
                self._busy.clear()
                self._token = ""
            with contextlib.suppress(RedisError):  # it falls by itself
                self._unlock(keys=self._keys[:1], args=[token])

    @contextlib.contextmanager
    def _step(self, token: str, fence: int) -> Iterator[Any]:
        with self._errors(), self._redis.pipeline(transaction=True) as pipe:
            pipe.watch(self._keys[1])  # changed whenever somebody takes the lock
            lock, latest = pipe.mget(self._keys)
            if lock != token.encode() or latest != str(fence).encode():
                raise LedgerError(_LOST)
            pipe.multi()
            yield pipe
            try:
                pipe.execute()
            except WatchError as error:
                raise LedgerError(_LOST) from error

    def _start_beating(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._beat, name="calib-lock", daemon=True)
            self._thread.start()
        self._busy.set()

    def _beat(self) -> None:
        while not self._closed.is_set():
            self._busy.wait()
            if not self._closed.wait(_BEAT) and (token := self._token):
                with contextlib.suppress(RedisError, OSError):  # the latter where it is closed meanwhile
                    self._renew(keys=self._keys[:1], args=[token, int(HELD * 1000)])

    def close(self) -> None:
        """End the heartbeat."""
        self._closed.set()
        self._busy.set()
        if self._thread is not None:
            self._thread.join(_BEAT)


_LOST = (
    "this process stood still and lost the lock of the Redis ledger: nothing was written; "
    "send the batch again"
)
