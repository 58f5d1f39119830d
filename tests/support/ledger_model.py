"""A ledger driven at random beside a model of it: sets of what was acknowledged, in plain Python.

python tests/support/ledger_model.py sqlite 500
python tests/support/ledger_model.py postgresql://127.0.0.1/test 500

runs it so many times, against a file or an empty database, and says what was tried.
"""

from __future__ import annotations

import json
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
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from injection import CONTEXT
from ledgers import NOW, ask, entries
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from calib_serve.core.errors import LedgerError
from calib_serve.ledger import Entry, Ledger, upgrade_ledger
from calib_serve.ledger.schema import STEPS, Step
from calib_serve.receipts import DAY, Label, Receipt
from calib_serve.receipts.batch import BATCH_LIFE, BatchKey
from calib_serve.receipts.sums import Key, Sums

BASE = float(round(NOW))
AGES = (45, 25, 9, 4, 1, 0.05, -2, -40)  # days; below 0: dated ahead
SOURCES = ("", "lab", "desk")
V = ("m", "1")
COLUMN = "alter table label add column made_up integer not null default 7"
NEXT: Step = ((COLUMN,),) * 2
BROKEN: Step = ((COLUMN, "select no_such_thing"),) * 2
HOUR = 3600.0  # so far ahead a clock is followed
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


def corrected(some: list[int], new: int, source: str, delay: float) -> list[Entry]:
    """Labels that are now ``new``, and come so late."""
    made = entries([LABELS[i]._replace(label=new) for i in some], source=source, delay=delay)
    return [one._replace(replaces=True) for one in made]


def batch_key(number: int, sent: float, expires: float) -> BatchKey:
    """The name of a batch: every second one is a number of a sender."""
    key = BatchKey(bytes([number % 256] * 16), f"content {number}".encode(), sent, expires)
    return key if number % 2 else key._replace(sender=b"a sender", number=number + 1)


@dataclass
class Model:
    """What a ledger has to know: which labels it acknowledged, from whom, and what is taken out again."""

    counted: dict[int, str] = field(default_factory=dict)  # label: source
    history: dict[int, list[int]] = field(default_factory=dict)  # label: its classes, the last one now
    arrived: dict[int, float] = field(default_factory=dict)
    revoked: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    served: Counter[str] = field(default_factory=Counter)  # version: predictions
    once: dict[int, float] = field(default_factory=dict)  # batch: until when its name is known
    unsure: set[int] = field(default_factory=set)  # batches whose names may be forgotten
    forgotten: float = -np.inf  # until when it may forget
    edition: int = 1

    def sums(self, *, source: str | None = None) -> np.ndarray:
        """What all versions together must add up to; or what one source sent."""
        total = Sums.zeros()
        for i in self.counted.keys() - self.revoked:
            if source in (None, self.counted[i]):
                one = LABELS[i].receipt
                right = self.history.get(i, [LABELS[i].label])[-1] == one.predicted
                late = self.arrived.get(i, one.time) - one.time
                total += Sums.labelled([one.confidence], [right], weight=1 / one.inclusion, delay=late)
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
        self.url, self.folder, self.offsets = url, None, [0.0, 0.0]
        self.passed = 0.0  # what a clock says may be another
        self.latest = BASE + 600.0  # no ledger may take it to be later: PostgreSQL's own time goes on
        if url:
            with create_engine(url.replace("://", "+psycopg://"), poolclass=NullPool).begin() as connection:
                connection.execute(text("drop schema public cascade; create schema public"))
        else:
            shared = Path("/dev/shm")
            self.folder = tempfile.mkdtemp(dir=shared if shared.is_dir() else None)
            self.url = str(Path(self.folder, "ledger.db"))

    def now(self) -> float:
        """The clock of the host that is furthest ahead."""
        return max(map(self.clock, range(2)))

    def clock(self, host: int) -> float:
        return BASE + self.passed + self.offsets[host]

    def steady(self) -> float:
        return self.passed

    def passes(self, days: float) -> None:
        """Time passes, with the clocks as far off as they are; a day later they may be believed."""
        self.passed += days * DAY
        self.latest = max(self.latest + days * DAY, self.now() if days > 1 else 0.0)

    def open(self, retention: float, host: int = 0) -> Ledger:
        return Ledger(self.url, retention=retention, clock=lambda: self.clock(host), steady=self.steady)

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
    if how == "while it corrects":
        ledger.accept(given)
        with ledger.transaction():
            ledger.accept(corrected(some, 2, "desk", 0.0))
            os.kill(os.getpid(), signal.SIGKILL)
    if how == "while it revokes":
        ledger.accept(given)
        with ledger.transaction():
            ledger.revoke("lab")
            os.kill(os.getpid(), signal.SIGKILL)
    ledger.accept(given)
    os.kill(os.getpid(), signal.SIGKILL)


KILLED = ["in a transaction", "while it rolls up", "while it corrects", "while it revokes", "after it"]
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
        self.retention = retention * DAY
        self.ledgers = [self.store.open(self.retention, host) for host in range(2)]
        self.outbox: dict[int, tuple[str, float, float]] = {}
        self.batches = 0

    def may_forget(self) -> None:
        self.model.forgotten = max(self.model.forgotten, self.store.latest + HOUR - self.retention)

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
        self.model.history[i], self.model.arrived[i] = [LABELS[i].label], LABELS[i].receipt.time
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

    @rule(at=which, some=ids, new=st.integers(0, 2), source=sources, days=st.sampled_from([0, 0.5, 6]))
    def correct(self, at: int, some: list[int], new: int, source: str, days: float) -> None:
        self.may_forget()
        some, model, versions = list(dict.fromkeys(some)), self.model, set()
        fates = self.ledgers[at].accept(corrected(some, new, source, days * DAY))
        for i, fate in zip(some, fates, strict=True):
            TRIED["corrections"] += 1
            if fate == "forgotten":
                assert self.old(i), f"label {i} was refused in error"
            elif i not in model.counted:
                assert fate == "counted", f"label {i} was never counted, and is {fate}"
                self.note(i, source)
                model.history[i], model.arrived[i] = [new], LABELS[i].receipt.time + days * DAY
            elif i in model.revoked or model.history[i][-1] == new:
                assert fate == ("revoked" if i in model.revoked else "duplicate")
            else:
                assert fate == "corrected", f"label {i} was {fate}"
                model.counted[i], model.arrived[i] = source, LABELS[i].receipt.time + days * DAY
                model.history[i].append(new)
                versions.add(LABELS[i].receipt.version)
        model.edition += len(versions)
        self.may_forget()

    @rule(fails=st.booleans())
    def upgrade(self, fails: bool) -> None:
        """To a made-up format and back by the backup; or not at all, while two programs are at work."""
        TRIED["upgrades"] += 1
        lite = self.store.folder is not None
        copy = Path(self.store.folder, f"copy-{TRIED['upgrades']}") if lite else Path(__file__)
        if fails:
            with pytest.raises(LedgerError, match="no_such_thing"):
                upgrade_ledger(self.store.url, copy, steps=(*STEPS, BROKEN))
            return
        upgrade_ledger(self.store.url, copy, steps=(*STEPS, NEXT))
        for one in self.ledgers:
            with pytest.raises(LedgerError, match="which a newer calib-serve wrote"):
                one.accept(of_source([0], ""))
        if not lite:
            ask(self.store.url, "alter table label drop column made_up")
            ask(self.store.url, "update ledger set schema = schema - 1")
            return
        for one in self.ledgers:
            one.close()
        for end in ("-wal", "-shm"):
            Path(self.store.url + end).unlink(missing_ok=True)
        shutil.copy(str(copy), self.store.url)
        self.ledgers = [self.store.open(self.retention, host) for host in range(2)]

    @rule(at=which, source=st.sampled_from(SOURCES[1:]), days=st.sampled_from([-60, -5, 60]))
    def revoke(self, at: int, source: str, days: int) -> None:
        until = BASE + days * DAY
        mine = {i for i, of in self.model.counted.items() if of == source} - self.model.revoked
        out = {i for i in mine if self.model.arrived[i] < until}
        kept = {i for i in out if not self.old(i)}  # rows of those that are older may be gone
        told = self.ledgers[at].revoke(source, until=until, by="me")
        done = {i for i in out if LABELS[i].receipt.nonce in {n for of in told.values() for n in of}}
        assert kept <= done
        assert sum(map(len, told.values())) == len(done)
        self.model.revoked |= done
        self.model.waiting -= done
        self.model.edition += len(told)

    @rule(at=which)
    def restored(self, at: int) -> None:
        self.ledgers[at].restored()
        now = self.store.latest if self.url else max(self.store.now(), self.store.latest)
        self.model.forgotten = max(self.model.forgotten, now)
        self.model.edition += 1

    @rule(at=which, version=st.sampled_from("01"))
    def add(self, at: int, version: str) -> None:
        when = self.ledgers[at].time.now()
        assert self.ledgers[at].add({Key("m", version): Sums.served([0.7])}, time=when)
        self.model.served[version] += 1

    @rule(at=which, version=st.sampled_from("01"), days=st.sampled_from([1, 8, 1000]))
    def fill(self, at: int, version: str, days: int) -> None:
        """A batch that an application has yet to send; its name is to be known for so many days."""
        now = self.ledgers[at].time.now()
        self.outbox[self.batches] = version, now, now + days * DAY
        self.batches += 1

    @rule(at=which, answered=st.booleans(), days=st.sampled_from([0, 0, 2]))
    def deliver(self, at: int, answered: bool, days: float) -> None:
        """All that waits is sent, to either host; where no answer comes, again at another time."""
        self.passes(days)
        for number, (version, sent, expires) in list(self.outbox.items()):
            TRIED["batches"] += 1
            name = batch_key(number, sent, expires)
            fresh = self.ledgers[at].add({Key("m", version): Sums.served([0.7])}, time=sent, once=name)
            known = number in self.model.once
            assert fresh != known or number in self.model.unsure, f"batch {number} counted: {fresh}"
            self.model.served[version] += fresh
            self.model.once[number] = expires if number % 2 else sent + BATCH_LIFE
            self.model.unsure -= {number}
            if answered:
                del self.outbox[number]

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
                taken = ledger.followers.take(V, until=until, most=most)
                ledger.followers.keep("detector", V, "", b"state", now=self.store.clock(at))
                ledger.followers.advance(V, late=1)
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
        self.ledgers[at] = self.store.open(asked, at)
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

    @rule(at=which, days=st.sampled_from([-40, -1, 0, 0.01, 1, 6, 31, 400]))
    def clock(self, at: int, days: float) -> None:
        TRIED["faults"] += 1
        self.store.offsets[at] = days * DAY

    @rule(days=st.sampled_from([0.01, 0.5, 2, 6]))
    def passes(self, days: float) -> None:
        if not self.url and self.store.passed < 20 * DAY:  # a server's time goes on by itself
            self.store.passes(days)

    @rule(at=which)
    def sweep(self, at: int) -> None:
        self.may_forget()
        self.ledgers[at].sweep()
        until = self.store.latest + HOUR
        self.model.unsure |= {number for number, life in self.model.once.items() if life <= until}

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
        assert self.ledgers[1].followers.waiting() == dict(waiting)
        published = self.ledgers[1].published()
        assert published.edition.partition(".")[0] == str(self.model.edition)
        assert close(merged(published.segments.values()), expected)
        sources = self.ledgers[1].slices("source")
        for source in SOURCES[1:]:
            mine = merged(one for key, one in sources.items() if key.name == source)
            assert close(mine, self.model.sums(source=source)), "what a source sent does not add up"
        assert self.ledgers[0].check() == []
        place = "version_id, start, width"
        lost = ask(self.store.url, f"select {place} from tally except select {place} from span")
        assert lost == [], "sums that nothing would merge or forget"

    def check_rows(self) -> None:
        """The row of a label has the one that counts, and those before it."""
        number = {LABELS[i].receipt.nonce.hex(): i for i in self.model.counted}
        for receipt, now, before in ask(self.store.url, "select receipt, label, history from labels"):
            told = [one["label"] for one in json.loads(before or "[]")]
            assert [*told, now] == self.model.history[number[receipt]]

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.check_rows()
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
