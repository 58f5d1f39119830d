"""Ledgers driven at random beside a model of them: nothing is lost, doubled, or refused in error.

That the model finds what is broken is shown by ledgers that are broken on purpose.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from ledger_model import LedgerMachine, machine_of, run
from sizes import sized

from calib_serve.watch.ledger import Fate, SqliteLedger, redis_lock
from calib_serve.watch.ledger import redis as redis_ledger
from calib_serve.watch.ledger import sqlite as sqlite_ledger
from calib_serve.watch.ledger.redis import RedisLedger
from calib_serve.watch.ledger.seen import Seen

pytestmark = pytest.mark.store


@pytest.fixture
def redis_of_its_own(empty_redis: str, monkeypatch: pytest.MonkeyPatch) -> str:
    # A busy machine may stand still for longer than a lock is held; the model takes that of a dead one away.
    monkeypatch.setattr(redis_lock, "HELD", 60.0)
    return empty_redis


def test_a_sqlite_ledger_is_what_its_model_says() -> None:
    run(LedgerMachine, runs=sized(8, 10_000))


def test_a_redis_ledger_is_what_its_model_says(redis_of_its_own: str) -> None:
    run(machine_of(redis_of_its_own), runs=sized(6, 10_000))


# --- ledgers that are broken on purpose --------------------------------------------------------------


def bits_are_not_written(patch: pytest.MonkeyPatch) -> None:
    add = Seen.add

    def broken(self: Seen, nonces: list[bytes], times: list[float], *, retention: float) -> list[Fate]:
        fates = add(self, nonces, times, retention=retention)
        self._epochs.delete("")  # not damage: the digest agrees
        return fates

    patch.setattr(Seen, "add", broken)


def the_clock_alone_says_what_expired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite_ledger, "_AHEAD", 1e9)


def what_was_forgotten_is_not_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteLedger, "_forgot", lambda self, before: None)


def sums_are_marked_before_they_are_published(patch: pytest.MonkeyPatch) -> None:
    for kind in (SqliteLedger, RedisLedger):
        patch.setattr(kind, "emission", marked_before(kind.emission))


def marked_before(emission: Callable[..., contextlib.AbstractContextManager[object]]) -> object:
    @contextlib.contextmanager
    def broken(self: object, consumer: str) -> Iterator[object]:
        with emission(self, consumer) as found:
            pass
        yield found

    return broken


def redis_does_not_read_the_bit(patch: pytest.MonkeyPatch) -> None:
    reads = "if list and listed(list, pair) then return false end"
    assert reads in redis_ledger.ACCEPT
    patch.setattr(redis_ledger, "ACCEPT", redis_ledger.ACCEPT.replace(reads, ""))


BROKEN_SQLITE = [
    bits_are_not_written,
    what_was_forgotten_is_not_noted,
    sums_are_marked_before_they_are_published,
    the_clock_alone_says_what_expired,
]
BROKEN_REDIS = [redis_does_not_read_the_bit, sums_are_marked_before_they_are_published]


@pytest.mark.parametrize("broken", BROKEN_SQLITE[: sized(1, 4)])
def test_a_sqlite_ledger_that_is_broken_is_found(broken, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        run(LedgerMachine, runs=500, shrinks=False)


@pytest.mark.parametrize("broken", BROKEN_REDIS[: sized(1, 2)])
def test_a_redis_ledger_that_is_broken_is_found(
    broken, redis_of_its_own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        run(machine_of(redis_of_its_own), runs=500, shrinks=False)
