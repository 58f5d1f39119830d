"""A copy of a Redis ledger, line by line: what is in it, what of it is put back, and how long that stays."""

from __future__ import annotations

import base64
import json
import time
from contextlib import closing

import pytest
import redis
from ledgers import NOW, accept, make_label

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger import redis_copy as module
from calib_serve.watch.ledger.address import Place
from calib_serve.watch.ledger.redis import RedisLedger
from calib_serve.watch.ledger.redis_copy import copied, put_in_place, staged

ROOT = "{calib-serve}"
TIMES = 3_600_000  # milliseconds


@pytest.fixture
def place(empty_redis):
    return Place(empty_redis)


@pytest.fixture
def server(empty_redis):
    with redis.Redis.from_url(empty_redis, decode_responses=True) as client:
        yield client


def fill(server):
    """A key of each kind, more than one command or one round takes, and one of another ledger."""
    bitmap = bytearray(8192)
    bitmap[7] = 0x81
    server.set(f"{ROOT}:epoch:aa", bytes(bitmap), px=TIMES)
    server.set(f"{ROOT}:epoch:bb:few", b"\x00\x01\x00\x02", px=TIMES)
    server.hset(f"{ROOT}:total:t", mapping={str(i): str(i / 2) for i in range(1201)})
    server.hset(f"{ROOT}:span:s", mapping={"0": "1.5"})
    with server.pipeline(transaction=False) as pipe:
        for i in range(600):
            pipe.hset(f"{ROOT}:span:{i}", "0", i)
        pipe.execute()
    server.rpush(f"{ROOT}:journal", *[f"r{i % 7}" for i in range(2001)])
    server.sadd(f"{ROOT}:totals", *[f"t{i}" for i in range(1001)])
    server.zadd(f"{ROOT}:spans", {f"s{i}": i + 0.25 for i in range(1001)})
    server.set(f"{ROOT}:bins", 15)
    server.set(f"{ROOT}:nonce:n", "", px=TIMES)
    server.set("{other}:bins", 10)


def held(raw, root=ROOT):
    """What a ledger's keys hold and when they expire, by Redis' own commands."""
    read = {
        b"string": raw.get,
        b"hash": raw.hgetall,
        b"list": lambda key: raw.lrange(key, 0, -1),
        b"set": raw.smembers,
        b"zset": lambda key: raw.zrange(key, 0, -1, withscores=True),
    }
    names = list(raw.scan_iter(f"{root}:*", count=1000))
    return {
        name.decode().removeprefix(root): (read[raw.type(name)](name), raw.pexpiretime(name))
        for name in names
    }


def put_back(place, file, *, replace=True):
    with staged(place, file) as ledger:
        return put_in_place(place, ledger, replace=replace)


def line(key, kind, expires, *content):
    told = [base64.b64encode(one).decode() for one in content]
    return f"{json.dumps([key, kind, expires])}\t{json.dumps(told)}\n"


def test_a_copy_of_redis_says_of_each_key_its_kind_its_end_and_its_content(place, server, tmp_path):
    server.set(f"{ROOT}:bins", 15)
    server.set(f"{ROOT}:epoch:aa", b"\x81", pxat=4_000_000_000_123)
    server.rpush(f"{ROOT}:journal", "b", "a")
    server.set(f"{ROOT}:lock", "held")
    server.sadd(f"{ROOT}:touched", f"{ROOT}:of one that was killed")
    server.set("{other}:bins", 10)
    before = time.time()
    taken = copied(place, tmp_path / "copy")
    assert before - 0.01 <= taken <= time.time() + 0.01
    lines = sorted((tmp_path / "copy").read_text().splitlines(keepends=True))
    ends = json.loads(lines[1].partition("\t")[0])[2]
    assert abs(ends - 4_000_000_000_123) <= 250
    assert lines == [
        line(":bins", "string", 0, b"15"),
        line(":epoch:aa", "string", ends, b"\x81"),
        line(":journal", "list", 0, b"b", b"a"),
    ]
    assert not server.exists(f"{ROOT}:copying", f"{ROOT}:touched")


def test_what_expires_while_redis_is_copied_does_not_stay_for_ever(place, server, tmp_path):
    """One ends in every millisecond of the next second: also in that of the copy, with 0 left of it."""
    now = int(time.time() * 1000)
    with server.pipeline(transaction=False) as pipe:
        for i in range(1000):
            pipe.set(f"{ROOT}:nonce:{i}", "", pxat=now + i)
        pipe.execute()
    copied(place, tmp_path / "copy")
    lines = (tmp_path / "copy").read_text().splitlines()
    assert len(lines) > 0
    assert [one for one in lines if json.loads(one.partition("\t")[0])[2] < now] == []


def test_a_copy_of_redis_that_is_put_back_is_the_same_to_the_last_member(place, server, tmp_path):
    fill(server)
    with redis.Redis.from_url(place.where) as raw:
        before = held(raw)
        copied(place, tmp_path / "copy")
        assert held(raw) == before
        server.delete(*server.keys(f"{ROOT}:span:*"), f"{ROOT}:bins", f"{ROOT}:totals")
        server.set(f"{ROOT}:later", "x")
        aside = put_back(place, tmp_path / "copy")
        after = held(raw)
        for written_when_opened in (":retention", ":fence"):
            after.pop(written_when_opened)
    assert after.keys() == before.keys()
    for name, (content, ends) in before.items():
        assert after[name][0] == content
        assert after[name][1] == pytest.approx(ends, abs=1000)
    when, _, drawn = aside.removeprefix(f"{ROOT}.replaced-").partition("-")
    assert abs(int(when) - time.time()) < 60
    assert len(bytes.fromhex(drawn)) == 2  # for there may be two in a second
    assert server.get(f"{aside}:later") == "x"
    assert server.get("{other}:bins") == "10"
    assert server.keys(f"{ROOT}.restoring*") == []


def test_what_is_staged_in_redis_goes_by_itself_within_an_hour_and_at_the_end(place, server, tmp_path):
    (tmp_path / "copy").write_text(
        line(":bins", "string", 0, b"7") + line(":nonce:gone", "string", int(NOW * 1000) - 5000, b"")
        + line(":nonce:here", "string", int(NOW * 1000) + 86_400_000, b"") + line(":journal", "list", 0)
    )  # fmt: skip
    server.set(f"{ROOT}.restoring-killed:bins", 1)
    with staged(place, tmp_path / "copy") as ledger:
        stage = ledger.root
        assert stage.startswith(f"{ROOT}.restoring-")
        assert not server.exists(f"{ROOT}.restoring-killed:bins")
        assert ledger.bins == 7
        assert server.exists(f"{stage}:nonce:here") == 1
        assert server.exists(f"{stage}:nonce:gone") == 0
        left = [server.pttl(f"{stage}{name}") for name in (":bins", ":nonce:here", ".expires")]
        assert all(3_500_000 < one <= 3_600_000 for one in left)
        assert server.hget(f"{stage}.expires", ":bins") == "0"
        assert server.hget(f"{stage}.expires", ":nonce:here") == str(int(NOW * 1000) + 86_400_000)
    assert server.keys("*") == []


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ("no line\n", "a line of the backup is no key of a ledger"),
        ('[":bins", "string"]\t[]\n', "a line of the backup is no key of a ledger"),
        ('[":a", "string", 0]\t[1]\n', "a line of the backup is no key of a ledger"),
        (line(":a", "stream", 0, b"x"), "a key of the backup is a 'stream', which no ledger has"),
    ],
)
def test_a_copy_of_redis_that_is_none_is_refused(place, tmp_path, bad, match):
    (tmp_path / "copy").write_text(line(":bins", "string", 0, b"15") + bad)
    with pytest.raises(LedgerError, match=match), staged(place, tmp_path / "copy"):
        pass


def test_a_ledger_in_redis_is_replaced_only_where_that_was_said(place, server, tmp_path):
    (tmp_path / "copy").write_text(line(":bins", "string", 0, b"15"))
    assert put_back(place, tmp_path / "copy", replace=False) is None
    server.set(f"{ROOT}:mine", 1)
    with pytest.raises(LedgerError, match="there is a ledger in this Redis; set it aside with --replace"):
        put_back(place, tmp_path / "copy", replace=False)
    assert server.get(f"{ROOT}:mine") == "1"
    with staged(place, tmp_path / "copy") as ledger:
        server.delete(f"{ledger.root}.expires")
        with pytest.raises(LedgerError, match="another restore came between; begin again"):
            put_in_place(place, ledger, replace=True)
    assert server.get(f"{ROOT}:mine") == "1"


def test_two_backups_of_a_redis_do_not_come_between_each_other(place, server, tmp_path):
    server.set(f"{ROOT}:copying", "another", px=5000)
    with pytest.raises(
        LedgerError, match="another backup of this Redis is being taken; try again in a minute"
    ):
        copied(place, tmp_path / "copy")
    assert server.get(f"{ROOT}:copying") == "another"


def during(monkeypatch, act):
    """Does something once, when a backup has read its first keys."""
    early = module._early

    def told(db, root):
        for number, one in enumerate(early(db, root)):
            if number == 0:
                act()
            yield one

    monkeypatch.setattr(module, "_early", told)


def test_a_backup_of_redis_keeps_others_waiting_for_a_minute_at_most(place, server, tmp_path, monkeypatch):
    left = []
    server.hset(f"{ROOT}:span:s", "0", "1")
    during(monkeypatch, lambda: left.append(server.pttl(f"{ROOT}:copying")))
    copied(place, tmp_path / "copy")
    server.delete(f"{ROOT}:span:s")
    monkeypatch.setattr(module, "_early", lambda db, root: left.append(db.pttl(f"{root}:copying")) or ())
    copied(place, tmp_path / "copy")
    assert [55_000 < one <= 60_000 for one in left] == [True, True]


def test_what_is_large_in_redis_is_read_before_the_moment_of_the_copy(place, server):
    server.hset(f"{ROOT}:total:t", "0", "1.5")
    server.hset(f"{ROOT}:span:s", "1", "2")
    server.set(f"{ROOT}:epoch:aa", "\x07")
    server.set(f"{ROOT}:epoch:bb:few", "abcd")
    server.set(f"{ROOT}:bins", 15)
    server.set("{other}:epoch:aa", "x")
    with redis.Redis.from_url(place.where) as raw:
        raw.set(f"{ROOT}:copying", "t", px=5000)
        found = sorted(module._early(raw, ROOT))
    assert 55_000 < server.pttl(f"{ROOT}:copying") <= 60_000
    assert [(key.decode().removeprefix(ROOT), content, bits) for key, content, bits in found] == [
        (":epoch:aa", [b"\x07"], 3),
        (":epoch:bb:few", [b"abcd"], 2),
        (":span:s", [b"1", b"2"], 0),
        (":total:t", [b"0", b"1.5"], 0),
    ]


def test_a_backup_of_redis_that_lost_its_mark_is_none(place, server, tmp_path, monkeypatch):
    server.hset(f"{ROOT}:span:s", "0", "1")
    during(monkeypatch, lambda: server.delete(f"{ROOT}:copying"))
    with pytest.raises(
        LedgerError, match="the copy of this Redis took too long, or another one came between"
    ):
        copied(place, tmp_path / "copy")


def test_labels_counted_while_a_backup_of_redis_reads_are_in_it_whole(place, server, tmp_path, monkeypatch):
    with closing(RedisLedger(place.where)) as ledger:
        assert accept(ledger, [make_label(i) for i in range(5)]) == [True] * 5
        ledger.sweep(NOW)

        def count():
            assert accept(ledger, [make_label(i) for i in range(5, 9)]) == [True] * 4
            ledger.sweep(NOW)

        during(monkeypatch, count)
        copied(place, tmp_path / "copy")
    with staged(place, tmp_path / "copy") as ledger:
        assert ledger.sums()["m", "1"].labels.sum() == 9
        assert ledger.verify() == []
        assert accept(ledger, [make_label(i) for i in range(10)]) == [False] * 9 + [True]
