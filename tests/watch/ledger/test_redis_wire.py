"""What is written for the scripts of a Redis ledger, number by number, and read back."""

from __future__ import annotations

import json

import pytest

from calib_serve.receipts import DAY
from calib_serve.watch.ledger import Key, Once, Sums
from calib_serve.watch.ledger.entries import Noted, Place, Shadowed
from calib_serve.watch.ledger.redis_wire import (
    batch_as,
    batch_of,
    bits_of,
    escaped,
    fields,
    less_labels,
    packed,
    published,
    rows_and_sums,
    seen_as,
    unpacked,
)

NORTH = Key("m", "1", "north")
THIRD = Key("m", "1", "3", "class")
SHADOW = Shadowed(0.25, True, False, "0a0b0c0d")


def row(*, time=7205.5, arrived=7300.0, writer="w", shadow=None, confidence=0.75, correct=True):
    nonce = bytes(range(10))
    more = (confidence, correct, 3, 0.5, 8, (NORTH, THIRD), shadow)
    return Noted(writer, "m", "1", time, nonce, arrived, *more)


def test_sums_are_told_by_the_names_that_hold_them_and_their_numbers_that_are_not_0():
    sums = Sums(2, Sums.zeros(2).with_values({("calib_feedback_total", 1): 2.0}).vector)
    (at,) = fields(sums)
    assert fields(sums) == {at: 2.0}
    assert fields(Sums.zeros(2)) == {}
    assert rows_and_sums({Place(NORTH): sums, Place(THIRD, 3600.0, 300.0): sums}, writer="w") == {
        "rows": [
            {"name": '["w", "m", "1", "segment", "north"]'},
            {"name": '["m", "1", "class", "3", 3600.0, 300.0]', "start": 3600.0},
        ],
        "sums": [[(at, 2.0)], [(at, 2.0)]],
    }


def test_labels_to_be_taken_back_are_told_by_all_names_that_may_hold_them():
    told = less_labels([row(), row()], bins=2, now=7300.0)
    spans = ("7200.0, 300.0", "7200.0, 3600.0", "0.0, 86400.0")
    assert [one["names"] for one in told["rows"]] == [
        ['["w", "m", "1", "segment", "north"]'],
        [f'["m", "1", "segment", "north", {span}]' for span in spans],
        ['["w", "m", "1", "class", "3"]'],
        [f'["m", "1", "class", "3", {span}]' for span in spans],
    ]
    assert [(one["kind"], one["old"]) for one in told["rows"]] == [(":total:", False), (":span:", False)] * 2
    assert told["waiting"] == [('["m", "1"]', packed(row()))] * 2
    labelled = Sums.labelled([0.75] * 2, [1] * 2, weight=2.0, delay=94.5, bins=2)
    for one in told["rows"]:
        assert dict(one["sums"]) == pytest.approx(fields(labelled))
        assert [n for _, n in one["labels"]] == [2.0]
        assert one["labels"][0][0] == told["bins"][1][0]  # of the second bin
    everything = {at for bin_ in told["bins"] for at in bin_} | set(told["whole"])
    assert len(told["bins"]) == 2
    assert everything >= set(fields(labelled))


@pytest.mark.parametrize(("beyond", "old"), [(0, False), (0.5, True)])
def test_spans_older_than_the_widest_is_kept_may_be_gone(beyond, old):
    told = less_labels([row()], bins=2, now=7500.0 + 400 * DAY + beyond)
    assert [one["old"] for one in told["rows"]] == [False, old] * 2


def test_a_receipt_is_remembered_by_its_epoch_and_bit_and_one_of_version_1_by_its_name():
    assert seen_as(bytes(range(8)) + b"\x01\x02") == {"epoch": "0001020304050607", "bit": 258}
    assert seen_as(bytes(range(12))) == {"nonce": "000102030405060708090a0b"}


def test_the_bits_of_an_epoch_are_counted_in_both_of_its_forms():
    assert bits_of(b"r:epoch:0:few", b"\xff\xff\x00\x01\x00\x02") == 3
    assert bits_of(b"r:epoch:0", b"\xff\x01\x00\x80") == 10
    assert bits_of(b"r:epoch:0", b"") == bits_of(b"r:epoch:0:few", b"") == 0


def test_a_batch_is_remembered_for_its_day_with_its_content_time_and_note():
    once = Once.of(b"\x01", b"\x02", time=1000.5, note=b"\x03", earlier=b"\x04")
    told = batch_as(once)
    assert told == {"once": "01", "earlier": "04", "known": '["02", 1000.5, "03"]', "left": 86_400_000.0}
    again = Once.of(b"\x01", b"other", time=2000.0, earlier=b"\x04")
    assert batch_of(again, told["known"].encode()) == Once(b"\x01", b"\x02", 1000.5, 87_400.5, b"\x03")
    assert batch_of(again, b"") == Once(b"\x04")


def test_a_row_of_the_journal_is_kept_in_this_order_and_read_as_it_was():
    plain = '"w", "m", "1", 7205.5, 7300.0, 0.75, true, 3, 0.5, 8, [["segment", "north"], ["class", "3"]]'
    kept = f'["00010203040506070809", {plain}]'
    assert packed(row()) == kept
    assert unpacked(kept.encode()) == row()
    shadowed = f'["00010203040506070809", {plain}, [0.25, true, false, "0a0b0c0d"]]'
    assert packed(row(shadow=SHADOW)) == shadowed
    assert unpacked(shadowed.encode()) == row(shadow=SHADOW)


def test_where_it_is_kept_what_was_published_names_the_consumer_and_the_version():
    assert published("one", ("m", "1")) == 'published/["one", "m", "1"]'
    assert json.loads(published("a/b", ("é", "1")).partition("/")[2]) == ["a/b", "é", "1"]


def test_no_sign_of_a_root_is_one_of_a_pattern(redis_url):
    import redis

    root = "{a*?[b]\\^-}"
    assert escaped("a*?[b]\\") == "a\\*\\?\\[b\\]\\\\"
    with redis.Redis.from_url(redis_url, decode_responses=True) as server:
        names = [f"{root}:wire", "{axx[b]\\^-}:wire", "{a*?b\\^-}:wire", "{a*?[b]^-}:wire"]
        server.mset(dict.fromkeys(names, 1))
        assert list(server.scan_iter(f"{escaped(root)}:wire")) == [f"{root}:wire"]
        server.delete(*names)
