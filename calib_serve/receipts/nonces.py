"""Nonces of receipts: a random epoch for each process, and a hidden counter."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from itertools import count, islice
from typing import NamedTuple

import numpy as np

from calib_serve.core.process import around_forks

NONCE_BYTES = 10
"""An epoch of 8 random bytes, and a counter of 2."""

PER_EPOCH = 1 << 16

DRAWS = random.Random()  # noqa: S311 - which labels are asked for is no secret
"""Draws of this process, seeded by the system: an application may seed Python's own for each request."""

if hasattr(os, "register_at_fork"):  # not on every platform
    os.register_at_fork(after_in_child=DRAWS.seed)


class Nonces:
    """Draws nonces; safe to use from threads and after a fork.

    A new epoch begins in each process and after ``PER_EPOCH`` nonces. Within an epoch the counter
    passes a Feistel network of four random functions (Luby and Rackoff 1988), so that what a client sees
    tells no traffic.

    >>> source = Nonces()
    >>> len({source.draw() for _ in range(PER_EPOCH + 1)}) == PER_EPOCH + 1
    True
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._epoch = self._begun()
        around_forks(self)

    def _begun(self) -> _Epoch:
        left, right = np.divmod(np.arange(PER_EPOCH, dtype=np.uint16), 256)
        for _ in range(4):
            left, right = right, left ^ np.frombuffer(os.urandom(256), np.uint8)[right]
        places = (left * 256 + right).astype(">u2").tobytes()
        return _Epoch(os.urandom(NONCE_BYTES - 2), places, count(0, 2), os.getpid())

    def after_in_child(self) -> None:
        """Begin an epoch of the child process."""
        # The parent's lock may be held by a thread that the child does not have.
        self._lock = threading.RLock()
        self._epoch = self._begun()

    def draw(self) -> bytes:
        """Draw one nonce, ``NONCE_BYTES`` long."""
        name, places, nexts, process = self._epoch
        at = next(nexts)
        nonce = name + places[at : at + 2]
        return nonce if len(nonce) == NONCE_BYTES and process == os.getpid() else self.draws(1)[0]

    def draws(self, number: int) -> list[bytes]:
        """Draw as many nonces."""
        of = self._epoch
        name, places, nexts, process = of
        drawn = [name + places[at : at + 2] for at in islice(nexts, number)]  # each place is taken once
        if process == os.getpid() and (not number or len(drawn[-1]) == NONCE_BYTES):
            return drawn
        with self._lock:
            if self._epoch is of:  # else another thread has begun the next one
                self._epoch = self._begun()
        good = [nonce for nonce in drawn if len(nonce) == NONCE_BYTES and process == os.getpid()]
        return good + self.draws(number - len(good))


class _Epoch(NamedTuple):
    """An epoch: its name, its counters in hidden order (two bytes each), their iterator, its process."""

    name: bytes
    places: bytes
    nexts: Iterator[int]
    process: int
