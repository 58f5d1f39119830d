"""What ``verify`` says of a Redis ledger, of each kind of damage by itself, and of what is no damage."""

from __future__ import annotations

import json

import numpy as np
import pytest
import redis
from ledgers import NOW, entries, make_label

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import Key, Sums, noted
from calib_serve.watch.ledger.redis_verify import verify
from calib_serve.watch.ledger.redis_wire import packed

ROOT = "{a[1]}"
LATER = 4e12  # milliseconds since 1970
EPOCH = "00ff" * 4
TOTAL, SPAN = json.dumps(["", "m", "1", "segment", ""]), json.dumps(["m", "1", "segment", "", 0.0, 300.0])
SIZE = len(Sums.zeros(2).vector)


@pytest.fixture
def server(empty_redis):
    with redis.Redis.from_url(empty_redis) as client:
        yield client


def said(server, labels=0, taken=0, sums=None):
    def counted():
        return {Key("m", "1"): Sums.labelled([0.9] * labels, [1] * labels, bins=2)}

    return verify(server, ROOT, bins=2, sums=sums or counted, taken_out=lambda: taken)


def remember(server, count, *, epoch=EPOCH, few=True, held=None, until=LATER):
    bits = np.arange(count if held is None else held)
    if few:
        server.set(f"{ROOT}:epoch:{epoch}:few", bits.astype(">u2").tobytes())
    else:
        bitmap = np.zeros(1 << 16, np.uint8)
        bitmap[bits] = 1
        server.set(f"{ROOT}:epoch:{epoch}", np.packbits(bitmap).tobytes())
    server.hset(f"{ROOT}:bits", epoch, count)
    if until is not None:
        server.zadd(f"{ROOT}:epochs", {epoch: until})


def total(remembered, labels, more=""):
    return [f"totals: {remembered} receipts are remembered, and only {labels} labels are in the sums{more}"]


def test_a_redis_in_which_there_is_nothing_has_nothing_wrong(server):
    assert said(server) == []


def test_receipts_in_redis_are_counted_in_every_form_and_those_of_other_ledgers_are_not(server):
    remember(server, 5)
    remember(server, 3000, epoch="11" * 8, few=False)
    server.set(f"{ROOT}:nonce:{'ab' * 12}", "")  # of version 1
    server.set(f"{ROOT}:nonce:{'cd' * 12}", "")
    server.set(f"{ROOT}:nonce:{'ab' * 16}", "")  # a batch
    server.set(f"{{a1}}:epoch:{EPOCH}:few", bytes(20))  # what a pattern would find
    server.set(f"{{a1}}:nonce:{'ab' * 12}", "")
    assert said(server, labels=3007) == said(server, labels=3008) == []
    assert said(server, labels=3006) == total(3007, 3006)


def test_labels_that_were_taken_out_in_redis_are_not_missing(server):
    remember(server, 5)
    assert said(server, labels=3, taken=2) == []
    assert said(server, labels=2, taken=2) == total(5, 2, ", and 2 were taken out")


def test_a_bitmap_in_redis_that_is_too_long_is_not_read(server):
    remember(server, 3, few=False)
    key = f"{ROOT}:epoch:{EPOCH}"
    assert said(server, labels=2) == total(3, 2)
    server.append(key, b"\xff")
    assert said(server, labels=0) == []


def test_an_epoch_that_expires_while_redis_is_looked_at_is_none(server, monkeypatch):
    remember(server, 3)
    scan = server.scan_iter
    monkeypatch.setattr(server, "scan_iter", lambda *a, **k: [*scan(*a, **k), f"{ROOT}:epoch:gone".encode()])
    assert said(server, labels=2) == total(3, 2)


@pytest.mark.parametrize("few", [False, True])
def test_fewer_bits_in_redis_than_were_counted_are_said_while_the_epoch_lasts(server, few):
    remember(server, 5, few=few, held=4)
    assert said(server, labels=5) == [f"epoch {EPOCH}: 5 receipts were counted, and fewer are remembered"]
    remember(server, 5, few=few, held=5)
    assert said(server, labels=5) == []
    seconds, micro = server.time()
    now = seconds * 1000 + micro / 1000
    for until, wrong in ((None, 0), (now - 2000, 0), (now - 0.5, 0), (now + 600_000, 1)):
        server.delete(f"{ROOT}:epochs")
        remember(server, 5, few=few, held=4, until=until)
        assert len(said(server, labels=5)) == wrong


def test_bits_that_redis_lost_are_said_and_an_epoch_without_any_is_none(server):
    remember(server, 5)
    server.hset(f"{ROOT}:bits", mapping={EPOCH: -7, "00" * 8: 0})
    lost = f"epoch {EPOCH}: its bits were lost; its receipts are refused as forgotten"
    assert said(server, labels=5) == [lost]


@pytest.mark.parametrize(
    ("field", "value", "wrong"),
    [
        ("0", "1.5", None),
        (SIZE - 1, "1", None),
        (SIZE, "1", f"its number {SIZE} reads b'1'"),
        (-1, "1", "its number -1 reads b'1'"),
        ("0", "many", "could not convert string to float: b'many'"),
        ("0", "inf", "its number 0 reads b'inf'"),
        ("0", "nan", "its number 0 reads b'nan'"),
        ("x", "1", "invalid literal for int() with base 10: b'x'"),
    ],
)
@pytest.mark.parametrize("kind", ["total", "span"])
def test_numbers_in_redis_that_cannot_be_sums_are_said(server, kind, field, value, wrong):
    name = put_name(server, kind, TOTAL if kind == "total" else SPAN)
    server.hset(f"{ROOT}:{kind}:{name}", field, value)
    assert said(server) == ([] if wrong is None else [f"{kind} {name}: {wrong}"])


def put_name(server, kind, name):
    if kind == "total":
        server.sadd(f"{ROOT}:totals", name)
    else:
        server.zadd(f"{ROOT}:spans", {name: 0})
    return name


@pytest.mark.parametrize(("kind", "name"), [("total", SPAN), ("span", TOTAL)])
def test_names_of_sums_in_redis_have_their_parts(server, kind, name):
    put_name(server, kind, name)
    assert said(server) == [f"{kind} {name}: its name has other parts"]


def test_what_is_of_another_kind_in_redis_is_said_and_the_rest_as_well(server):
    put_name(server, "total", TOTAL), put_name(server, "span", SPAN)
    server.set(f"{ROOT}:total:{TOTAL}", "text")
    server.hset(f"{ROOT}:span:{SPAN}", "0", "many")
    put_name(server, "span", "no json"), put_name(server, "span", b"\xff")
    found = said(server)
    begins = [f"total {TOTAL}: ", f"span {SPAN}: ", "span no json: ", "span \ufffd: "]
    assert [one.startswith(begin) for one, begin in zip(found, begins, strict=True)] == [True] * 4
    assert "WRONGTYPE" in found[0]


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_labels_in_redis_that_cannot_be_read_are_said(server, bad):
    rows = [packed(noted(one, writer="")) for one in entries([make_label(i, when=NOW) for i in range(3)])]
    waits = json.dumps(["m", "1"])
    server.sadd(f"{ROOT}:waiting", waits, "other")

    def put(some):
        server.delete(f"{ROOT}:journal", f"{ROOT}:waiting:{waits}")
        server.rpush(f"{ROOT}:journal", *some)
        server.zadd(f"{ROOT}:waiting:{waits}", {one: i for i, one in enumerate(some)})

    put(rows)
    assert said(server) == []
    put([*rows[:bad], "no json", *rows[bad + 1 :]])
    server.rpush(f"{ROOT}:waiting:other", rows[0])
    found = sorted(said(server))
    begins = ["journal: Expecting value: ", f"waiting:{waits}: Expecting value: ", "waiting:other: WRONGTYPE"]
    assert [one.startswith(begin) for one, begin in zip(found, begins, strict=True)] == [True] * 3
    # Sums are not compared where something cannot be read.
    remember(server, 9)
    assert not any(one.startswith("totals") for one in said(server))


@pytest.mark.parametrize("error", [LedgerError("damaged"), ValueError("damaged"), TypeError("damaged")])
def test_sums_of_redis_that_cannot_be_read_are_said(server, error):
    def sums():
        raise error

    assert said(server, sums=sums) == ["sums cannot be read: damaged"]
