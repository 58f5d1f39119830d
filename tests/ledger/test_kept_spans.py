"""Kept sums of spans: what is kept equals what is read anew, to the last bit, whoever wrote it."""

from __future__ import annotations

import contextlib
import math
import random
import threading
from pathlib import Path

import numpy as np
import pytest
from ledgers import NOW, accept, entries, make_label, sweep
from sqlalchemy import event

from calib_serve.core.errors import InputError
from calib_serve.ledger import Ledger
from calib_serve.receipts import DAY
from calib_serve.receipts.sums import Key, Sums

pytestmark = pytest.mark.store

VERSIONS = (("m", "1"), ("m", "2"))
WINDOWS = (300.0, 3600.0, DAY, 7 * DAY, 30 * DAY, math.inf)


def everything(ledger: Ledger, now: float) -> list[object]:
    """All that windows are made of, in bytes."""
    found: list[object] = []
    with ledger.moment() as moment:
        for version in VERSIONS:
            for seconds in WINDOWS:
                since = math.floor((now - seconds) / 300) * 300.0 if math.isfinite(seconds) else -math.inf
                spans = moment.spans(version, since)
                for until in (math.inf, now - 7200.0, now - 3 * DAY):
                    found.append(plain(spans.slices(since, until)))
                    found.append(plain(spans.slices(since, until, young=True)))
                    found.append(spans.whole(since, until).vector.tobytes())
                found.append(spans.labelled_until(since, now - DAY))
                found.append([(*one[:3], one.sums.vector.tobytes()) for one in spans.dated(since, math.inf)])
            found.append(plain(moment.spans(version).all_time()))
        # Of one version, so that it is kept while others change.
        together = moment.together(VERSIONS[0]).steps(-math.inf, math.inf)
        apart = moment.spans(VERSIONS[0], -math.inf).steps(-math.inf, math.inf)
        assert [one[:2] for one in together] == [one[:2] for one in apart]
        for (*_, one), (*_, other) in zip(together, apart, strict=True):
            np.testing.assert_allclose(one.vector, other.vector, rtol=1e-12, atol=1e-12)
    found.append(ledger.published())
    return found


def plain(sums: dict[Key, Sums]) -> dict[Key, bytes]:
    return {key: one.vector.tobytes() for key, one in sums.items()}


def one_step(draw: random.Random, ledger: Ledger, numbers: list[int], now: float) -> None:
    """Do one of the things that change sums."""
    model, version = draw.choice(VERSIONS)
    made = now - draw.choice([0.0, 1.0, 60.0, 2.0, 40.0, 390.0]) * draw.random() * DAY
    what = draw.choices(
        ["label", "predictions", "roll_up", "sweep", "revoke", "drop", "restored"],
        [6, 4, 4, 3, 1, 0.3, 0.3],
    )[0]
    if what == "label":
        numbers.append(len(numbers) + 1)
        more = {"confidence": draw.random(), "label": draw.randint(0, 1), "version": version, "when": made}
        label = make_label(numbers[-1], **more)
        delay, segment = draw.random() * (now - made), draw.choice(["", "a", "b"])
        ledger.accept(entries([label], [segment], delay=delay, source=draw.choice(["desk", ""])))
    elif what == "predictions":
        sums = Sums.served([draw.random() for _ in range(3)])
        ledger.add({Key(model, version, draw.choice("ab")): sums}, time=made)
    elif what == "roll_up":
        ledger.roll_up()
    elif what == "sweep":
        sweep(ledger, now)
    elif what == "revoke":
        ledger.revoke("desk", since=now - 2 * DAY)
    elif what == "drop":
        with contextlib.suppress(InputError):  # of nothing
            ledger.drop((model, version))
    else:
        ledger.restored()


@pytest.mark.parametrize("seed", range(4))
def test_kept_sums_equal_those_read_anew_to_the_last_bit_whatever_happens(url: str, seed: int) -> None:
    draw, numbers, now = random.Random(seed), list[int](), [NOW]
    mine, other = (Ledger(url, clock=lambda: now[0], retention=400 * DAY) for _ in range(2))
    for turn in range(40):
        now[0] += draw.choice([0.0, 1.0, 400.0, 5000.0, DAY])
        one_step(draw, draw.choice([mine, other]), numbers, now[0])
        if turn % 2 or draw.random() < 0.5:
            anew = Ledger(url, clock=lambda: now[0])
            assert everything(mine, now[0]) == everything(anew, now[0])
            anew.close()
    assert len(numbers) > 5
    mine.close()
    other.close()


def test_a_transaction_reads_its_own_sums_and_one_that_fails_leaves_nothing(ledger: Ledger) -> None:
    accept(ledger, [make_label(1)])
    ledger.roll_up()
    before = everything(ledger, NOW)

    def fails() -> None:
        with ledger.transaction():
            ledger.add({Key("m", "1"): Sums.served([0.5])}, time=NOW)
            assert everything(ledger, NOW) != before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert everything(ledger, NOW) == before


def test_a_change_that_commits_after_a_later_one_was_seen_is_not_missed(
    postgres_database: str,
) -> None:
    first, second, reader = (Ledger(postgres_database) for _ in range(3))
    for ledger, version in ((first, "1"), (second, "2")):
        ledger.add({Key("m", version): Sums.served([0.5])}, time=NOW)
    everything(reader, NOW)
    began, seen = threading.Event(), threading.Event()

    def slow() -> None:
        with first.transaction():
            first.add({Key("m", "1"): Sums.served([0.5])}, time=NOW)
            began.set()
            seen.wait(30)

    thread = threading.Thread(target=slow)
    thread.start()
    began.wait(30)
    second.add({Key("m", "2"): Sums.served([0.5])}, time=NOW)
    everything(reader, NOW)  # the later one is seen
    seen.set()
    thread.join()
    assert everything(reader, NOW) == everything(first, NOW)
    with reader.moment() as moment:
        assert moment.spans(("m", "1")).all_time()[Key("m", "1")].predictions.sum() == 2
    for ledger in (first, second, reader):
        ledger.close()


def test_a_look_reads_rows_of_what_changed_alone(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.db")
    labels = [make_label(i, when=NOW - i * 3000.0, confidence=i / 300) for i in range(300)]
    accept(ledger, labels)
    ledger.roll_up()
    first = everything(ledger, NOW)
    accept(ledger, [make_label(1000, when=NOW)])
    ledger.roll_up()
    asked: list[str] = []
    event.listen(ledger.database._engine, "before_cursor_execute", lambda *of: asked.append(of[2]))
    with ledger.moment() as moment:
        moment.spans(("m", "1"), NOW - 9 * DAY)
    rows = [one for one in asked if "FROM tally" in one]
    assert rows
    assert all("start = " in one and "width = " in one for one in rows), "no range of spans is read again"
    assert everything(ledger, NOW) != first
    ledger.close()


def test_a_look_in_another_thread_does_not_take_back_what_was_kept(ledger: Ledger) -> None:
    accept(ledger, [make_label(i) for i in range(20)])
    errors: list[BaseException] = []
    counts: dict[int, list[float]] = {}

    def look(number: int) -> None:
        try:
            for _ in range(30):
                with ledger.moment() as moment:
                    found = moment.spans(("m", "1"), NOW - DAY).whole(NOW - DAY, math.inf)
                counts.setdefault(number, []).append(float(found.labels.sum()))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for i in range(20, 60, 4):
        accept(ledger, [make_label(i + j) for j in range(4)])
        ledger.roll_up()
    for thread in threads:
        thread.join()
    assert not errors
    assert all(of == sorted(of) for of in counts.values()), "labels only come"


def test_what_is_not_there_is_not_dropped_and_a_scrape_is_read_on(ledger: Ledger) -> None:
    accept(ledger, [make_label(1)])
    with pytest.raises(InputError, match="nothing of m typo"):
        ledger.drop(("m", "typo"))
    assert ledger.published().segments
