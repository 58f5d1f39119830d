"""The ledger in SQL driven at random beside a model of it: sets of what was acknowledged, in plain Python.

python tests/support/sql_ledger_model.py sqlite 500
python tests/support/sql_ledger_model.py postgresql://127.0.0.1/test 500
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from injection import CONTEXT
from ledger_model import BASE, LABELS, Model, check_fate, close, merged
from ledgers import entries
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from calib_serve.receipts import DAY
from calib_serve.watch.ledger import Key, Once, Sums
from calib_serve.watch.ledger.sql import SqlLedger

TRIED: Counter[str] = Counter()


class Store:
    """Where the ledger lies, and its clock, which is ours."""

    def __init__(self, url: str = "") -> None:
        self.url, self.folder, self.clock = url, None, BASE
        if url:
            with create_engine(url.replace("://", "+psycopg://"), poolclass=NullPool).begin() as connection:
                connection.execute(text("drop schema public cascade; create schema public"))
        else:
            shared = Path("/dev/shm")
            self.folder = tempfile.mkdtemp(dir=shared if shared.is_dir() else None)
            self.url = str(Path(self.folder, "ledger.db"))

    def now(self) -> float:
        return self.clock

    def open(self, retention: float) -> SqlLedger:
        return SqlLedger(self.url, retention=retention, clock=self.now)

    def end(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder)


def child(pipe: Any) -> None:
    """Opens a ledger when it is told to, and dies at work."""
    store, retention, how, some = pipe.recv()
    ledger = store.open(retention)
    given = entries([LABELS[i] for i in some])
    if how == "in a transaction":
        with ledger.transaction():
            ledger.accept(given)
            os.kill(os.getpid(), signal.SIGKILL)
    if how == "while it rolls up":
        ledger.accept(given)
        with ledger.transaction():
            ledger.roll_up()
            os.kill(os.getpid(), signal.SIGKILL)
    ledger.accept(given)
    os.kill(os.getpid(), signal.SIGKILL)


ids = st.lists(st.integers(0, len(LABELS) - 1), min_size=1, max_size=6)
which = st.integers(0, 1)


class SqlMachine(RuleBasedStateMachine):
    """What may happen to a ledger that two processes share, in any order."""

    url = ""

    @initialize(retention=st.sampled_from([10, 30]))
    def begin(self, retention: int) -> None:
        TRIED["runs"] += 1
        self.store, self.model = Store(self.url), Model()
        self.retention, self.latest = retention * DAY, None
        self.ledgers = [self.store.open(self.retention) for _ in range(2)]

    def may_forget(self) -> None:
        now = self.store.now() if self.latest is None else min(self.store.now(), self.latest + DAY)
        self.model.forgotten = max(self.model.forgotten, now - self.retention)

    def old(self, i: int) -> bool:
        return LABELS[i].receipt.time <= self.model.forgotten

    def judge(self, some: list[int], fates: list[str], *, detect: bool = True) -> None:
        """Never double, never refused in error."""
        for i, fate in zip(some, fates, strict=True):
            TRIED["labels"] += 1
            check_fate(i, fate, known=i in self.model.counted, old=self.old(i))
            if fate == "counted":
                self.note(i, detect=detect)

    def note(self, i: int, *, detect: bool = True) -> None:
        self.model.counted[i] = 0
        self.latest = max(LABELS[i].receipt.time, self.latest or 0)
        if detect:
            self.model.waiting.add(i)

    @rule(at=which, batches=st.lists(ids, min_size=1, max_size=5), detect=st.booleans())
    def accept(self, at: int, batches: list[list[int]], detect: bool) -> None:
        for some in batches:
            self.may_forget()
            fates = self.ledgers[at].accept(entries([LABELS[i] for i in some]), detect=detect)
            self.judge(some, fates, detect=detect)
            self.may_forget()

    @rule(at=which)
    def accept_again(self, at: int) -> None:
        some = list(self.model.counted)
        self.judge(some, self.ledgers[at].accept(entries([LABELS[i] for i in some])))

    @rule(at=which, version=st.sampled_from("01"), once=st.none() | st.integers(0, 3))
    def add(self, at: int, version: str, once: int | None) -> None:
        when = self.store.now()
        name = None if once is None else Once(bytes([once] * 16), b"content", when, BASE + 1000 * DAY)
        fresh = self.ledgers[at].add({Key("m", version): Sums.served([0.7])}, time=when, once=name)
        assert fresh == (once is None or once not in self.model.once)
        self.model.served[version, 0] += fresh
        self.model.once |= set() if once is None else {once}

    @rule(at=which)
    def roll_up(self, at: int) -> None:
        self.ledgers[at].roll_up()

    @rule(at=which, most=st.integers(1, 5), days=st.sampled_from([-50, -5, 50]), fails=st.booleans())
    def feed(self, at: int, most: int, days: int, fails: bool) -> None:
        ledger, until = self.ledgers[at], BASE + days * DAY
        TRIED["faults"] += fails
        due = sorted(
            (LABELS[i].receipt.time, i)
            for i in self.model.waiting
            if LABELS[i].receipt.time < until and LABELS[i].receipt.version == "1"
        )[:most]
        try:
            with ledger.transaction():
                taken = ledger.take_waiting(("m", "1"), until=until, most=most)
                ledger.store("detector", b"state")
                if fails:
                    raise OSError("the detector failed")
        except OSError:
            return
        assert [one.nonce for one in taken] == [LABELS[i].receipt.nonce for _, i in due]
        self.model.waiting -= {i for _, i in due}

    @rule(at=which, days=st.none() | st.sampled_from([5, 10, 30, 60]))
    def restart(self, at: int, days: int | None) -> None:
        TRIED["faults"] += 1
        self.may_forget()
        self.ledgers[at].close()
        asked = self.retention if days is None else days * DAY
        self.ledgers[at] = self.store.open(asked)
        self.retention = max(self.retention, asked)
        self.ledgers[1 - at].retention = self.retention

    @rule(some=ids, how=st.sampled_from(["in a transaction", "while it rolls up", "after it"]))
    def killed(self, some: list[int], how: str) -> None:
        TRIED["faults"] += 1
        self.may_forget()
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=child, args=(theirs,))
        process.start()
        ours.send((self.store, self.retention, how, some))
        process.join(60)
        assert process.exitcode == -signal.SIGKILL, process.exitcode
        told = [i for i in dict.fromkeys(some) if i not in self.model.counted]
        found = merged(self.ledgers[0].sums().values()) - self.model.sums()
        new, old = [i for i in told if not self.old(i)], [i for i in told if self.old(i)]
        ways = [[*new, *more] for n in range(len(old) + 1) for more in combinations(old, n)]
        for way in [[]] if how == "in a transaction" else ways:
            if close(found, Model(dict.fromkeys(way, 0)).sums()):
                for i in way:
                    self.note(i)
                return
        raise AssertionError("what a killed process was counting is neither counted nor not")

    @rule(days=st.sampled_from([-40, -1, 0, 0.01, 1, 6, 31]))
    def clock(self, days: float) -> None:
        TRIED["faults"] += 1
        self.store.clock = BASE + days * DAY

    @rule(at=which)
    def sweep(self, at: int) -> None:
        self.may_forget()
        self.ledgers[at].sweep(self.store.now())

    @invariant()
    def sums_are_those_of_what_was_acknowledged(self) -> None:
        if not hasattr(self, "model"):
            return
        expected = self.model.sums()
        for ledger in self.ledgers:
            assert close(merged(ledger.sums().values()), expected), (
                "sums are not those of what was acknowledged"
            )
        dated = merged(one.sums for one in self.ledgers[0].dated(0, 1e11, kind="segment"))
        assert close(dated, expected), "spans do not add up to the sums"
        waiting = Counter(("m", LABELS[i].receipt.version) for i in self.model.waiting)
        assert self.ledgers[1].waiting() == dict(waiting)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            for one in self.ledgers:
                one.close()
            self.store.end()


def run(url: str = "", *, runs: int, steps: int = 30, shrinks: bool = True) -> None:
    """Drive a ledger so many times; raises where it is not what the model says."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    how = settings(
        max_examples=runs, stateful_step_count=steps, deadline=None, suppress_health_check=checks,
        database=None, print_blob=True, phases=[Phase.generate, Phase.shrink][: 1 + shrinks],
    )  # fmt: skip
    run_state_machine_as_test(type("Machine", (SqlMachine,), {"url": url}), settings=how)


if __name__ == "__main__":
    from sql_ledger_model import TRIED as TOLD
    from sql_ledger_model import run as go

    go("" if sys.argv[1] == "sqlite" else sys.argv[1], runs=int(sys.argv[2]), shrinks=False)
    print(dict(TOLD))
