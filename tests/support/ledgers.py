"""Labels, and both kinds of ledger to count them in."""

import uuid

import pytest

from calib_serve.receipts import Label, Receipt
from calib_serve.watch.ledger import SqliteLedger

FOREVER = 4e9


def make_label(i, *, confidence=0.9, label=1, model="m", version="1", when=1000.0):
    return Label(Receipt("k", model, version, when, i.to_bytes(12, "big"), 1, confidence), label)


def accept(ledger, labels, expires=FOREVER, **more):
    return ledger.accept(labels, expires=[expires] * len(labels), **more)


def open_one(kind, place, **options):
    if kind == "sqlite":
        return SqliteLedger(place, **options)
    from calib_serve.watch.ledger.redis import RedisLedger

    url, prefix = place
    return RedisLedger(url, prefix=prefix, **options)


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
