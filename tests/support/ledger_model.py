"""A ledger driven at random beside a model of it: sets of what was acknowledged, in plain Python.

    python tests/support/ledger_model.py sqlite 500
    python tests/support/ledger_model.py partitions 500
    python tests/support/ledger_model.py redis://127.0.0.1:6379/9 500

runs it so many times, against a file or an empty Redis, and says what was tried and what was found.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from injection import CONTEXT
from ledgers import entries

from calib_serve.receipts import DAY, Label, Receipt
from calib_serve.watch.ledger import (
    Key,
    Once,
    PartitionedLedger,
    SqliteLedger,
    Sums,
    backup_ledger,
    restore_ledger,
)
from calib_serve.watch.ledger.address import places_of
from calib_serve.watch.ledger.redis import RedisLedger
from calib_serve.watch.ledger.sums import Version, _published

# One moment in this process and in those that it starts.
BASE = float(os.environ.setdefault("LEDGER_MODEL_BASE", str(round(time.time()))))
AGES = (45, 25, 9, 4, 1, 0.05, -2, -40)  # days; below 0: dated ahead
CONSUMER = "model"
PUBLISHED = _published(Sums.zeros().bins)
TRIED: Counter[str] = Counter()


def label(i: int) -> Label:
    """The i-th label that there is: its epoch says how old it is, one in nine is of format 1."""
    epoch, bit = i % len(AGES), i // len(AGES)
    nonce = (
        bytes([epoch + 1] * 11 + [bit])
        if i % 9 == 0
        else bytes([epoch + 1] * 8) + (bit * 257).to_bytes(2, "big")
    )
    more = {"inclusion": 0.25} if i % 3 == 0 else {"group": i % 5 + 1}
    when, version = BASE - AGES[epoch] * DAY + i, str(i % 2)
    receipt = Receipt("k", "m", version, when, nonce, 1, (i + 0.5) / 48, **more)
    return Label(receipt, i % 2)


LABELS = [label(i) for i in range(48)]


@dataclass
class Model:
    """What a ledger has to know: which labels it acknowledged, to whom, and what was published."""

    counted: dict[int, int] = field(default_factory=dict)  # label: writer
    waiting: set[int] = field(default_factory=set)
    served: Counter[tuple[str, int]] = field(default_factory=Counter)  # (version, writer): predictions
    once: set[int] = field(default_factory=set)
    published: dict[int, np.ndarray] = field(default_factory=dict)  # writer: sums
    forgotten: float = -np.inf  # until when it may forget

    def copy(self) -> Model:
        """As it is, for a rollback."""
        return Model(
            dict(self.counted), set(self.waiting), Counter(self.served), set(self.once),
            dict(self.published), self.forgotten,
        )  # fmt: skip

    def sums(self, writer: int | None = None) -> np.ndarray:
        """What all versions together must add up to, over all writers or one."""
        total = Sums.zeros()
        for i, of in self.counted.items():
            if writer in (None, of):
                one = LABELS[i].receipt
                total += Sums.labelled([one.confidence], [LABELS[i].correct], weight=1 / one.inclusion)
        for (_, of), n in self.served.items():
            if writer in (None, of):
                total += Sums.served([0.7] * n)
        return total.vector


def merged(found: Any) -> np.ndarray:
    """All of these sums together."""
    total = Sums.zeros()
    for one in found:
        total += one
    return total.vector


def check_fate(i: int, fate: str, *, known: bool, old: bool) -> None:
    """Never double, never refused in error; ``old``: it may be forgotten."""
    if known:
        assert fate != "counted", f"label {i} was counted twice"
        assert fate == "duplicate" or old, f"label {i} is not that old"
    elif not old:
        assert fate == "counted", f"label {i} was refused in error as {fate}"
    else:
        assert fate != "duplicate", f"label {i} was never counted"


class Store:
    """A SQLite ledger in a folder of its own, whose clock is ours.

    ``undoes``: how many labels are not counted that were accepted in a transaction that fails.
    """

    own_clock, undoes = True, "all"

    def __init__(self) -> None:
        shared = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
        self.where, self.clock, self.file = str(self.folder / "ledger.db"), BASE, self.folder / "backup"

    def open(self, writer: int, retention: float) -> SqliteLedger:
        """A ledger object of one of two writers."""
        return SqliteLedger(self.where, writer=str(writer), retention=retention, clock=self.now)

    def now(self) -> float:
        """What the clock says."""
        return self.clock

    def unlock(self) -> None:
        """A file has no lock that outlives its holder."""

    def end(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.folder)


class PartitionedStore(Store):
    """Three SQLite ledgers as one."""

    undoes = "some"

    def __init__(self) -> None:
        super().__init__()
        self.where += "?parts=3"

    def open(self, writer: int, retention: float) -> PartitionedLedger:
        return PartitionedLedger(
            [
                SqliteLedger(place.where, writer=str(writer), retention=retention, clock=self.now)
                for place in places_of(self.where)
            ]
        )


class RedisStore(Store):
    """A Redis that has nothing else; its clock is its own."""

    own_clock, undoes = False, "none"

    def __init__(self, url: str) -> None:
        super().__init__()
        self.where = url
        self._client().flushdb()

    def _client(self) -> Any:
        import redis

        return redis.Redis.from_url(self.where)

    def open(self, writer: int, retention: float) -> RedisLedger:
        return RedisLedger(self.where, writer=str(writer), retention=retention)

    def now(self) -> float:
        return time.time()

    def unlock(self) -> None:
        """What time does to the lock of a dead process."""
        with self._client() as client:
            client.delete("{calib-serve}:lock")


def dies(make: Callable[[], Any], how: str, ids: list[int]) -> None:
    """Work in a process that does not survive it."""
    ledger = make()
    if how == "in a transaction":
        with ledger.transaction():
            ledger.accept(entries([LABELS[i] for i in ids]))
            os.kill(os.getpid(), signal.SIGKILL)
    if how == "while it publishes":
        with ledger.emission(f"{CONSUMER}:{ledger.writer}"):
            os.kill(os.getpid(), signal.SIGKILL)
    if how == "while the detector is fed":
        with ledger.transaction():
            for version in ledger.waiting():
                if not isinstance(ledger, RedisLedger):  # which does not give back what was taken
                    ledger.take_waiting(version, until=np.inf, most=3)
            os.kill(os.getpid(), signal.SIGKILL)
    if how.startswith("at byte") and isinstance(ledger, SqliteLedger):
        log = Path(f"{ledger.path}-wal")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        limit = (log.stat().st_size if log.exists() else 0) + int(how.rsplit(maxsplit=1)[-1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    ledger.accept(entries([LABELS[i] for i in ids]))
    os.kill(os.getpid(), signal.SIGKILL)


def child(pipe: Any) -> None:
    """Opens a ledger when it is told to, and dies at work."""
    store, writer, retention, how, ids = pipe.recv()
    dies(lambda: store.open(writer, retention), how, ids)


ids = st.lists(st.integers(0, len(LABELS) - 1), min_size=1, max_size=6)
writers = st.integers(0, 1)


class LedgerMachine(RuleBasedStateMachine):
    """What may happen to a ledger, in any order."""

    make: Callable[[], Store] = Store

    @initialize(retention=st.sampled_from([10, 30]))
    def begin(self, retention: int) -> None:
        TRIED["runs"] += 1
        self.store = type(self).make()
        self.model, self.kept, self.lost = Model(), None, set()
        self.retention, self.latest = retention * DAY, None
        self.ledgers = [self.store.open(i, self.retention) for i in (0, 1)]
        self.left: list[Any] = []
        self.child: Any = None

    # --- what is allowed ---

    def may_forget(self) -> None:
        """What expired by the clock, but not a day past what was counted last, may be forgotten."""
        now = self.store.now()
        if self.latest is not None and self.store.own_clock:
            now = min(now, self.latest + DAY)
        self.model.forgotten = max(self.model.forgotten, now - self.retention)

    def judge(self, i: int, fate: str) -> None:
        """Never double, never refused in error."""
        TRIED["labels"] += 1
        old = LABELS[i].receipt.time <= self.model.forgotten
        known = i in self.model.counted or i in self.lost
        TRIED["double"] += known and fate == "counted"
        TRIED["refused in error"] += not known and not old and fate != "counted"
        check_fate(i, fate, known=known, old=old)

    def note(self, i: int, writer: int, *, detect: bool = True) -> None:
        self.model.counted[i] = writer
        self.latest = max(LABELS[i].receipt.time, self.latest or 0)
        if detect:
            self.model.waiting.add(i)

    # --- what clients and servers do ---

    @rule(writer=writers, batches=st.lists(ids, min_size=1, max_size=5), detect=st.booleans())
    def accept(self, writer: int, batches: list[list[int]], detect: bool) -> None:
        for some in batches:
            self.may_forget()
            fates = self.ledgers[writer].accept(entries([LABELS[i] for i in some]), detect=detect)
            for i, fate in zip(some, fates, strict=True):
                self.judge(i, fate)
                if fate == "counted":
                    self.note(i, writer, detect=detect)
            self.may_forget()

    @rule(writer=writers)
    def accept_again(self, writer: int) -> None:
        """A client that was never answered sends all that it ever sent."""
        some = [*self.model.counted, *self.lost]
        self.may_forget()
        fates = self.ledgers[writer].accept(entries([LABELS[i] for i in some]))
        for i, fate in zip(some, fates, strict=True):
            self.judge(i, fate)
        self.may_forget()

    @rule(writer=writers, version=st.sampled_from("01"), once=st.none() | st.integers(0, 3))
    def add(self, writer: int, version: str, once: int | None) -> None:
        served = {Key("m", version): Sums.served([0.7])}
        when = self.store.now()
        name = None if once is None else Once(bytes([once] * 16), b"content", when, BASE + 1000 * DAY)
        fresh = self.ledgers[writer].add(served, time=when, once=name)
        assert fresh == (once is None or once not in self.model.once)
        if fresh:
            self.model.served[version, writer] += 1
        if once is not None:
            self.model.once.add(once)

    @rule(writer=writers, fails=st.booleans())
    def publish(self, writer: int, fails: bool) -> None:
        TRIED["faults"] += fails
        try:
            with self.ledgers[writer].emission(f"{CONSUMER}:{writer}") as (fresh, counted):
                self.assert_fresh(fresh, writer)
                assert close(merged(counted.values()), self.model.sums(writer))
                if fails:
                    raise OSError("nobody listens")
        except OSError:
            return
        self.model.published[writer] = self.model.sums(writer)

    def assert_fresh(self, fresh: Mapping[Version, Sums], writer: int) -> None:
        """Of the sums that are published, it is what was counted since."""
        before = self.model.published.get(writer, Sums.zeros().vector)
        told, counted = before + merged(fresh.values()), self.model.sums(writer)
        assert close(told[PUBLISHED], counted[PUBLISHED]), "published is not counted"

    @rule(most=st.integers(1, 5), days=st.sampled_from([-50, -5, 50]), fails=st.booleans())
    def feed(self, most: int, days: int, fails: bool) -> None:
        ledger, until, taken = self.ledgers[0], BASE + days * DAY, []
        fails &= not isinstance(ledger, RedisLedger)
        TRIED["faults"] += fails
        due = sorted(
            (LABELS[i].receipt.time, i)
            for i in self.model.waiting
            if LABELS[i].receipt.time < until and LABELS[i].receipt.version == "1"
        )[:most]
        try:
            with ledger.transaction():
                taken = ledger.take_waiting(("m", "1"), until=until, most=most)
                if fails:
                    raise OSError("the detector failed")
        except OSError:
            return
        assert [one.nonce for one in taken] == [LABELS[i].receipt.nonce for _, i in due]
        self.model.waiting -= {i for _, i in due}

    # --- what happens to them ---

    @rule(writer=writers, closes=st.booleans(), days=st.none() | st.sampled_from([5, 10, 30, 60]))
    def restart(self, writer: int, closes: bool, days: int | None) -> None:
        """With another time to live, perhaps, and perhaps not in order."""
        TRIED["faults"] += 1
        self.may_forget()
        if closes:
            self.ledgers[writer].close()
        else:
            self.left.append(self.ledgers[writer])
        asked = self.retention if days is None else days * DAY
        self.ledgers[writer] = self.store.open(writer, asked)
        self.retention = max(self.retention, asked)

    @rule(
        writer=writers,
        some=ids,
        how=st.sampled_from(
            ["in a transaction", "while it publishes", "while the detector is fed", "after it"]
        )
        | st.integers(0, 40_000).map("at byte {}".format),
    )
    def killed(self, writer: int, some: list[int], how: str) -> None:
        TRIED["faults"] += 1
        self.may_forget()
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=child, args=(theirs,))
        process.start()
        ours.send((self.store, writer, self.retention, how, some))
        process.join(60)
        assert process.exitcode in (-signal.SIGKILL, -signal.SIGXFSZ), process.exitcode
        self.store.unlock()
        told = [i for i in dict.fromkeys(some) if i not in self.model.counted and i not in self.lost]
        if "publishes" in how or "fed" in how:
            told = []
        found = merged(self.ledgers[0].sums().values()) - self.model.sums()
        # What was not acknowledged may be counted: all that is not so old that it may have been forgotten.
        new, old = [i for i in told if not self.old(i)], [i for i in told if self.old(i)]
        ways = [[*new, *some_of] for n in range(len(old) + 1) for some_of in combinations(old, n)]
        if how != "after it":
            ways = [[], *ways]
        if how == "in a transaction" and self.store.undoes == "all":
            ways = [[]]
        if how == "in a transaction" and self.store.undoes == "some":
            ways = [list(some_of) for n in range(len(told) + 1) for some_of in combinations(told, n)]
        for way in ways:
            if close(found, Model(dict.fromkeys(way, writer)).sums()):
                for i in way:
                    self.note(i, writer)
                return
        raise AssertionError("what a killed process was counting is neither counted nor not")

    def old(self, i: int) -> bool:
        return LABELS[i].receipt.time <= self.model.forgotten

    @rule(days=st.sampled_from([-40, -1, 0, 0.01, 1, 6, 31]))
    def clock(self, days: float) -> None:
        """It goes anywhere; Redis has its own."""
        if self.store.own_clock:
            TRIED["faults"] += 1
            self.store.clock = BASE + days * DAY

    @rule()
    def sweep(self) -> None:
        self.may_forget()
        self.ledgers[0].sweep(self.store.now())

    @rule()
    def backup(self) -> None:
        backup_ledger(self.store.where, self.store.file, clock=self.store.now)
        self.kept = (self.model.copy(), set(self.lost), self.latest, self.retention)

    @rule(recount=st.booleans())
    def roll_back(self, recount: bool) -> None:
        if self.kept is None:
            return
        TRIED["faults"] += 1
        for one in (*self.ledgers, *self.left):
            one.close()
        self.left.clear()
        lost, now = set(self.model.counted), self.store.now()
        restore_ledger(
            self.store.file,
            self.store.where,
            replace=True,
            recount=recount,
            clock=self.store.now,
            clock_skew=0,
        )
        self.model, self.lost, self.latest, retention = self.kept[0].copy(), set(self.kept[1]), *self.kept[2:]
        if not recount:
            until = now + 1
            self.lost |= {i for i in lost if LABELS[i].receipt.time <= until} - set(self.model.counted)
            self.model.forgotten = max(self.model.forgotten, until)
        self.ledgers = [self.store.open(i, retention) for i in (0, 1)]
        self.retention = retention

    # --- what holds at every moment ---

    @invariant()
    def sums_are_those_of_what_was_acknowledged(self) -> None:
        if not hasattr(self, "model"):
            return
        expected = self.model.sums()
        for ledger in self.ledgers:
            found = merged(ledger.sums().values())
            TRIED["lost"] += bool((found < expected - 1e-6).any())
            assert close(found, expected), "sums are not those of what was acknowledged"
        dated = merged(one.sums for one in self.ledgers[0].dated(0, 1e11, kind="segment"))
        assert close(dated, expected), "spans do not add up to the sums"
        waiting = Counter(("m", LABELS[i].receipt.version) for i in self.model.waiting)
        assert self.ledgers[1].waiting() == dict(waiting)

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        try:
            for writer in (0, 1):
                with self.ledgers[writer].emission(f"{CONSUMER}:{writer}") as (fresh, _):
                    self.assert_fresh(fresh, writer)
                with self.ledgers[writer].emission(f"{CONSUMER}:{writer}") as (fresh, _):
                    assert not fresh
        finally:
            for one in (*self.ledgers, *self.left):
                one.close()
            self.store.end()


def close(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal but for what adding up in another order changes."""
    return bool(np.allclose(one, other, rtol=1e-9, atol=1e-9))


class PartitionedMachine(LedgerMachine):
    """The same, of partitions."""

    make = PartitionedStore


class RedisMachine(LedgerMachine):
    """The same, of a Redis."""

    url = ""

    @classmethod
    def make(cls) -> Store:
        return RedisStore(cls.url)


def run(machine: type[LedgerMachine], *, runs: int, steps: int = 30, shrinks: bool = True) -> None:
    """Drive a ledger so many times; raises where it is not what the model says."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    how = settings(
        max_examples=runs, stateful_step_count=steps, deadline=None, suppress_health_check=checks,
        database=None, print_blob=True, phases=[Phase.generate, Phase.shrink][: 1 + shrinks],
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=how)


def machine_of(where: str) -> type[LedgerMachine]:
    """The machine for a file, or for the Redis at an address."""
    files = {"sqlite": LedgerMachine, "partitions": PartitionedMachine}
    return files[where] if where in files else type("Machine", (RedisMachine,), {"url": where})


if __name__ == "__main__":
    from ledger_model import TRIED as TOLD
    from ledger_model import machine_of as of
    from ledger_model import run as go

    began = time.monotonic()
    try:
        go(of(sys.argv[1]), runs=int(sys.argv[2]), shrinks=False)
    finally:
        found = {
            name: TOLD[name] for name in ("runs", "labels", "faults", "lost", "double", "refused in error")
        }
        print({**found, "seconds": round(time.monotonic() - began)})
