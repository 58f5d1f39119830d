"""An epoch's bits in Redis are a list while few are set, then a bitmap: each receipt counts once in both."""

from __future__ import annotations

import random
from contextlib import closing

import numpy as np
import pytest
from ledgers import NOW, entries, open_one, remembered
from sizes import sized

from calib_serve.nonces import PER_EPOCH, Nonces, split
from calib_serve.receipts import DAY, Label, Receipt
from calib_serve.watch.ledger.backup import backup_ledger, restore_ledger
from calib_serve.watch.ledger.redis_scripts import MOST_FEW
from calib_serve.watch.ledger.redis_wire import bits_of

EPOCH = bytes(range(8))


def receipts(bits, *, epoch=EPOCH):
    made = [epoch + int(bit).to_bytes(2, "big") for bit in bits]
    labels = [Label(Receipt("k", "m", "1", NOW, nonce, 1, 0.9), 1) for nonce in made]
    assert all(split(nonce) == (epoch, bit) for nonce, bit in zip(made, bits, strict=True))
    return entries(labels)


def fates(ledger, bits, **more):
    found = ledger.accept(receipts(bits, **more), detect=False)
    return [fate == "counted" for fate in found]


@pytest.fixture
def ledger(redis_url):
    import redis

    with closing(open_one("redis", (redis_url, "epochs"))) as found:
        yield found
        with redis.Redis.from_url(redis_url) as server:
            for key in server.scan_iter("{epochs}*"):
                server.delete(key)


def epochs(ledger):
    return sorted(ledger._redis.scan_iter(f"{ledger.root}:epoch:*"))


def bits(key, content):
    """The numbers of the bits that a key holds."""
    if key.endswith(b":few"):
        return sorted(np.frombuffer(content, ">u2").tolist())
    return np.flatnonzero(np.unpackbits(np.frombuffer(content, np.uint8))).tolist()


@pytest.mark.parametrize("count", [1, 300, MOST_FEW, MOST_FEW + 1, sized(4000, 20_000)])
def test_each_receipt_is_counted_once_however_many_there_are(ledger, count):
    chosen = random.Random(count).sample(range(PER_EPOCH), count)
    for at in range(0, count, 1000):
        some = chosen[at : at + 1000]
        # Twice in a batch, and again in the next one.
        assert fates(ledger, [*some, *some[:50]]) == [True] * len(some) + [False] * len(some[:50])
        assert not any(fates(ledger, some))
    assert not any(fates(ledger, chosen))
    (key,) = epochs(ledger)
    content = ledger._redis.get(key)
    assert key.endswith(b":few") == (count <= MOST_FEW)
    assert len(content) == (2 * count if count <= MOST_FEW else PER_EPOCH // 8)
    assert bits(key, content) == sorted(chosen)
    assert bits_of(key, content) == count == remembered(ledger)
    assert 29 * DAY * 1000 < ledger._redis.pttl(key) <= 31 * DAY * 1000
    assert ledger.verify() == []


def test_numbers_are_not_found_across_two_others(ledger):
    """0x0102 0x0304 holds the bytes of 0x0203, which was not counted."""
    assert fates(ledger, [0x0102, 0x0304, 0x0203, 0x0102]) == [True, True, True, False]
    assert fates(ledger, [0, 0, 0x0001, 0x0100, 0xFFFF]) == [True, False, True, True, True]


def test_a_bitmap_of_an_earlier_program_is_read_and_goes_on(ledger):
    """It grew by SETBIT, and ends with its last bit."""
    key = f"{ledger.root}:epoch:{EPOCH.hex()}"
    for bit in (3, 70, 1000):
        ledger._redis.setbit(key, bit, 1)
    ledger._redis.pexpire(key, 20 * 86_400_000)
    ledger._redis.hset(f"{ledger.root}:bits", EPOCH.hex(), 3)
    assert fates(ledger, [3, 70, 1000, 4, 5]) == [False, False, False, True, True]
    assert epochs(ledger) == [key.encode()]
    assert bits(b"", ledger._redis.get(key)) == [3, 4, 5, 70, 1000]
    assert ledger._redis.pttl(key) > 29 * DAY * 1000


@pytest.mark.parametrize("count", [10, MOST_FEW + 10])
def test_lost_bits_are_never_begun_anew(ledger, count):
    assert all(fates(ledger, range(count)))
    ledger._redis.delete(*epochs(ledger))
    assert ledger.accept(receipts([5, 60_000]), detect=False) == ["forgotten", "forgotten"]
    assert any("its bits were lost" in one for one in ledger.verify())


def test_fewer_bits_than_were_counted_show(ledger):
    assert all(fates(ledger, range(10)))
    (key,) = epochs(ledger)
    ledger._redis.set(key, ledger._redis.get(key)[:-2], keepttl=True)
    assert ["10 receipts were counted" in one for one in ledger.verify()] == [True]


@pytest.mark.parametrize("count", [10, MOST_FEW + 10])
def test_longer_retention_and_forgetting_hold_for_both_forms(ledger, redis_url, count):
    assert all(fates(ledger, range(count)))
    with closing(open_one("redis", (redis_url, "epochs"), retention=60 * DAY)) as longer:
        (key,) = epochs(longer)
        assert longer._redis.pttl(key) > 55 * DAY * 1000
        assert longer.forget(NOW + DAY, drop=True) == 1
        assert epochs(longer) == []


@pytest.mark.parametrize("count", [10, MOST_FEW + 10])
def test_a_backup_holds_both_forms(empty_redis, tmp_path, count):
    from calib_serve.watch.ledger.redis import RedisLedger

    with closing(RedisLedger(empty_redis)) as ledger:
        assert all(fates(ledger, range(count)))
        backup_ledger(empty_redis, tmp_path / "copy")
        assert all(fates(ledger, range(count, count + 5)))
    restore_ledger(tmp_path / "copy", empty_redis, replace=True, recount=True)
    with closing(RedisLedger(empty_redis)) as ledger:
        assert remembered(ledger) == count
        assert not any(fates(ledger, range(count)))
        assert ledger.verify() == []


@pytest.mark.parametrize(("share", "most"), [(0.01, 3.0), (1.0, 0.2)])
def test_a_label_takes_few_bytes(ledger, share, most):
    """In an epoch of which every label comes, or one in a hundred: 3 bytes a label, 0.2 a prediction."""
    drawn, rng = Nonces(), random.Random(0)
    nonces = [nonce for nonce in (drawn.draw() for _ in range(PER_EPOCH)) if rng.random() < share]
    chosen = entries([Label(Receipt("k", "m", "1", NOW, nonce, 1, 0.9), 1) for nonce in nonces])
    for at in range(0, len(chosen), 5000):
        ledger.accept(chosen[at : at + 5000], detect=False)
    keys = [*ledger._redis.scan_iter(f"{ledger.root}:epoch*"), f"{ledger.root}:bits"]
    taken = sum(ledger._redis.memory_usage(key, samples=0) for key in keys)
    assert taken / len(nonces) <= most
