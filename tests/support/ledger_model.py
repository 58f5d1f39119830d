"""A ledger driven at random beside a model of it: sets of what was acknowledged, in plain Python.

python tests/support/ledger_model.py sqlite 500
python tests/support/ledger_model.py postgresql://127.0.0.1/test 500

runs it so many times, against a file or an empty database, and says what was tried.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from injection import CONTEXT
from ledgers import NOW, entries
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from calib_serve.ledger import Entry, Ledger
from calib_serve.receipts import DAY, Label, Receipt
from calib_serve.receipts.batch import BatchKey
from calib_serve.receipts.sums import Key, Sums

BASE = float(round(NOW))
AGES = (45, 25, 9, 4, 1, 0.05, -2, -40)  # days; below 0: dated ahead
SOURCES = ("", "lab", "desk")
V = ("m", "1")
TRIED: Counter[str] = Counter()


def label(i: int) -> Label:
    """The i-th label that there is: its nonce says how old it is."""
    age, bit = i % len(AGES), i // len(AGES)
    nonce = bytes([age + 1] * 8) + (bit * 257).to_bytes(2, "big")
    more = {"inclusion": 0.25} if i % 3 == 0 else {"group": i % 5 + 1}
    when, version = BASE - AGES[age] * DAY + i, str(i % 2)
    return Label(Receipt("k", "m", version, when, nonce, 1, (i + 0.5) / 48, **more), i % 2)


LABELS = [label(i) for i in range(48)]


def of_source(some: list[int], source: str) -> list[Entry]:
    return entries([LABELS[i] for i in some], source=source)


@dataclass
class Model:
    """What a ledger has to know: which labels it acknowledged, from whom, and what is taken out again."""

    counted: dict[int, str] = field(default_factory=dict)  # label: source
    revoked: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    served: Counter[str] = field(default_factory=Counter)  # version: predictions
    once: set[int] = field(default_factory=set)
    forgotten: float = -np.inf  # until when it may forget
    edition: int = 1

    def sums(self, *, source: str | None = None) -> np.ndarray:
        """What all versions together must add up to; or what one source sent."""
        total = Sums.zeros()
        for i in self.counted.keys() - self.revoked:
            if source in (None, self.counted[i]):
                one = LABELS[i].receipt
                total += Sums.labelled([one.confidence], [LABELS[i].correct], weight=1 / one.inclusion)
        if source is None:
            total += Sums.served([0.7] * sum(self.served.values()))
        return total.vector


def merged(found: Any) -> np.ndarray:
    """All of these sums together."""
    total = Sums.zeros()
    for one in found:
        total += one
    return total.vector


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(found, expected, rtol=1e-9, atol=1e-9)


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

    def open(self, retention: float) -> Ledger:
        return Ledger(self.url, retention=retention, clock=self.now)

    def end(self) -> None:
        if self.folder:
            shutil.rmtree(self.folder)


def child(pipe: Any) -> None:
    """Opens a ledger when it is told to, and dies at work."""
    store, retention, how, some, source = pipe.recv()
    ledger = store.open(retention)
    given = of_source(some, source)
    if how == "in a transaction":
        with ledger.transaction():
            ledger.accept(given)
            os.kill(os.getpid(), signal.SIGKILL)
    if how == "while it rolls up":
        ledger.accept(given)
        with ledger.transaction():
            ledger.roll_up()
            os.kill(os.getpid(), signal.SIGKILL)
    if how == "while it revokes":
        ledger.accept(given)
        with ledger.transaction():
            ledger.revoke("lab")
            os.kill(os.getpid(), signal.SIGKILL)
    ledger.accept(given)
    os.kill(os.getpid(), signal.SIGKILL)


KILLED = ["in a transaction", "while it rolls up", "while it revokes", "after it"]
ids = st.lists(st.integers(0, len(LABELS) - 1), min_size=1, max_size=6)
which = st.integers(0, 1)
sources = st.sampled_from(SOURCES)


class LedgerMachine(RuleBasedStateMachine):
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

    def judge(self, some: list[int], fates: list[str], source: str, *, detect: bool = True) -> None:
        """Never double, never refused in error."""
        for i, fate in zip(some, fates, strict=True):
            TRIED["labels"] += 1
            check_fate(i, fate, known=i in self.model.counted, old=self.old(i))
            if fate == "counted":
                self.note(i, source, detect=detect)

    def note(self, i: int, source: str, *, detect: bool = True) -> None:
        self.model.counted[i] = source
        self.latest = max(LABELS[i].receipt.time, self.latest or 0)
        if detect:
            self.model.waiting.add(i)

    @rule(at=which, batches=st.lists(ids, min_size=1, max_size=5), detect=st.booleans(), source=sources)
    def accept(self, at: int, batches: list[list[int]], detect: bool, source: str) -> None:
        for some in batches:
            self.may_forget()
            fates = self.ledgers[at].accept(of_source(some, source), detect=detect)
            self.judge(some, fates, source, detect=detect)
            self.may_forget()

    @rule(at=which)
    def accept_again(self, at: int) -> None:
        some = list(self.model.counted)
        self.judge(some, self.ledgers[at].accept(of_source(some, "")), "")

    @rule(at=which, source=st.sampled_from(SOURCES[1:]), days=st.sampled_from([-60, -5, 60]))
    def revoke(self, at: int, source: str, days: int) -> None:
        until = BASE + days * DAY
        mine = {i for i, of in self.model.counted.items() if of == source} - self.model.revoked
        out = {i for i in mine if LABELS[i].receipt.time < until}
        kept = {i for i in out if not self.old(i)}  # rows of those that are older may be gone
        told = self.ledgers[at].revoke(source, until=until, by="me").nonces
        done = {i for i in out if LABELS[i].receipt.nonce in {n for of in told.values() for n in of}}
        assert kept <= done
        assert sum(map(len, told.values())) == len(done)
        self.model.revoked |= done
        self.model.waiting -= done
        self.model.edition += bool(done)

    @rule(at=which)
    def restored(self, at: int) -> None:
        self.ledgers[at].restored()
        self.model.forgotten = max(self.model.forgotten, self.store.now())
        self.model.edition += 1

    @rule(at=which, version=st.sampled_from("01"), once=st.none() | st.integers(0, 3))
    def add(self, at: int, version: str, once: int | None) -> None:
        when = self.store.now()
        name = None if once is None else BatchKey(bytes([once] * 16), b"content", when, BASE + 1000 * DAY)
        fresh = self.ledgers[at].add({Key("m", version): Sums.served([0.7])}, time=when, once=name)
        assert fresh == (once is None or once not in self.model.once)
        self.model.served[version] += fresh
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
                taken = ledger.take_waiting(V, until=until, most=most)
                ledger.keep("detector", V, "", b"state", now=self.store.now())
                ledger.advance(V, late=1)
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

    @rule(some=ids, how=st.sampled_from(KILLED), source=sources)
    def killed(self, some: list[int], how: str, source: str) -> None:
        TRIED["faults"] += 1
        self.may_forget()
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=child, args=(theirs,))
        process.start()
        ours.send((self.store, self.retention, how, some, source))
        process.join(60)
        assert process.exitcode == -signal.SIGKILL, process.exitcode
        told = [i for i in dict.fromkeys(some) if i not in self.model.counted]
        found = merged(self.ledgers[0].sums().values()) - self.model.sums()
        new, old = [i for i in told if not self.old(i)], [i for i in told if self.old(i)]
        ways = [[*new, *more] for n in range(len(old) + 1) for more in combinations(old, n)]
        for way in [[]] if how == "in a transaction" else ways:
            if close(found, Model(dict.fromkeys(way, source)).sums()):
                for i in way:
                    self.note(i, source)
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
        published = self.ledgers[1].published()
        assert published.edition.partition(".")[0] == str(self.model.edition)
        assert close(merged(published.segments.values()), expected)
        for source in SOURCES[1:]:
            mine = merged(one for key, one in published.sources.items() if key.name == source)
            assert close(mine, self.model.sums(source=source)), "what a source sent does not add up"
        assert self.ledgers[0].check() == []

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
    run_state_machine_as_test(type("Machine", (LedgerMachine,), {"url": url}), settings=how)


if __name__ == "__main__":
    from ledger_model import TRIED as TOLD
    from ledger_model import run as go

    go("" if sys.argv[1] == "sqlite" else sys.argv[1], runs=int(sys.argv[2]), shrinks=False)
    print(dict(TOLD))
