"""Labels, and a ledger in either database to count them in."""

import os
import time

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from calib_serve.ledger import Entry, Ledger
from calib_serve.receipts import Label, Receipt
from calib_serve.receipts.sums import Key

# One moment for all processes that a test starts: a receipt's day is part of what it is, and midnight comes.
NOW = float(os.environ.setdefault("CALIB_SERVE_TEST_NOW", str(time.time())))


def make_label(i, *, confidence=0.9, label=1, model="m", version="1", when=NOW, **more):
    return Label(Receipt("k", model, version, when, i.to_bytes(10, "big"), 1, confidence, **more), label)


def entries(labels, segments=None, *, delay=0.0, source=""):
    """Each label in its segment and its predicted class, and its source's slice."""
    return [
        Entry(
            one,
            one.receipt.time + delay,
            (
                Key(one.receipt.model, one.receipt.version, segment),
                Key(one.receipt.model, one.receipt.version, str(one.receipt.predicted), "class"),
                *([Key(one.receipt.model, one.receipt.version, source, "source")] if source else []),
            ),
            source,
        )
        for one, segment in zip(labels, segments or [""] * len(labels), strict=True)
    ]


def revoked(ledger, source, **how):
    """The number of labels of a source that are taken back, by version."""
    return {version: len(nonces) for version, nonces in ledger.revoke(source, **how).items()}


class GivenTime:
    """The time of a ledger, as a test's clock has it: what it says has passed."""

    lag = 0.0

    def __init__(self, clock):
        self.now = clock

    def advance(self, connection):
        return self.now()

    def doubt(self):
        pass

    def trouble(self, forgotten_until):
        return None


def by_clock(ledger, clock):
    """The ledger, whose time is that of the test's ``clock``."""
    ledger.time = GivenTime(clock)
    return ledger


def sweep(ledger, now):
    """Sweep when that much time has passed; the number of receipts that are forgotten."""
    before, ledger.time = ledger.time, GivenTime(lambda: now)
    try:
        return ledger.sweep()
    finally:
        ledger.time = before


def accept(ledger, labels, segments=None, **more):
    """True for each label that was counted now."""
    return [fate == "counted" for fate in ledger.accept(entries(labels, segments, **more))]


def ask(url, sql, **values):
    """What any SQL tool would be told."""
    address = url.replace("://", "+psycopg://") if "://" in url else f"sqlite:///{url}"
    with create_engine(address, poolclass=NullPool).begin() as connection:
        found = connection.execute(text(sql), values)
        return found.all() if found.returns_rows else found.rowcount


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """Where a ledger is to be, in either database."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    return request.getfixturevalue("postgres_database")


@pytest.fixture
def ledger(url):
    """A ledger in either database, open."""
    ledger = Ledger(url)
    yield ledger
    ledger.close()
