"""Labels, and both kinds of ledger to count them in."""

import time
import uuid

import pytest

from calib_serve.receipts import Label, Receipt
from calib_serve.watch.ledger import Entry, Key, SqliteLedger
from calib_serve.watch.ledger.redis_wire import bits_of

NOW = time.time()  # Redis refuses by its own clock what has expired
FOREVER = 4e9


def make_label(i, *, confidence=0.9, label=1, model="m", version="1", when=NOW, **more):
    return Label(Receipt("k", model, version, when, i.to_bytes(10, "big"), 1, confidence, **more), label)


def entries(labels, segments=None, *, delay=0.0):
    """Each label in its segment and its predicted class."""
    return [
        Entry(
            one,
            one.receipt.time + delay,
            (
                Key(one.receipt.model, one.receipt.version, segment),
                Key(one.receipt.model, one.receipt.version, str(one.receipt.predicted), "class"),
            ),
        )
        for one, segment in zip(labels, segments or [""] * len(labels), strict=True)
    ]


def accept(ledger, labels, segments=None, **more):
    """True for each label that was counted now."""
    return [fate == "counted" for fate in ledger.accept(entries(labels, segments, **more))]


def open_one(kind, place, **options):
    if kind == "sqlite":
        return SqliteLedger(place, **options)
    from calib_serve.watch.ledger.redis import RedisLedger

    url, prefix = place
    return RedisLedger(url, prefix=prefix, **options)


def counted(kind, where, labels, **options):
    """How many of the labels a ledger that is opened for this counts."""
    ledger = open_one(kind, where, **options)
    fates = ledger.accept(entries(labels))
    ledger.close()
    return [fates.count(fate) for fate in ("counted", "duplicate", "forgotten")]


def remembered(ledger):
    """How many receipts have a bit."""
    if isinstance(ledger, SqliteLedger):
        bits = [ledger._seen._bits(row[3]) for row in ledger._tables["epochs"].select()]
        return sum(int(one.sum()) for one in bits)
    keys = ledger._redis.scan_iter(f"{ledger.root}:epoch:*")
    return sum(bits_of(key, ledger._redis.get(key)) for key in keys)


def labels_of(kind, where, **options):
    ledger = open_one(kind, where, **options)
    n = ledger.sums()["m", "1"].labels.sum()
    assert remembered(ledger) == n
    ledger.close()
    return n


@pytest.fixture(params=["sqlite", "redis"])
def store(request, tmp_path):
    """(kind, where it is): open it with ``open_one(*store)``."""
    if request.param == "sqlite":
        return "sqlite", str(tmp_path / "ledger.db")
    return "redis", (request.getfixturevalue("redis_url"), uuid.uuid4().hex)


@pytest.fixture
def ledger(store):
    """Either ledger, open."""
    ledger = open_one(*store)
    yield ledger
    ledger.close()
