"""What waited for its version: counted by several watches, each once, at the time when it was served."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from ledgers import NOW, ask, by_clock
from real_watch import RING, talk_to

from calib_serve.core.errors import LedgerError
from calib_serve.ledger import Ledger
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import DAY
from calib_serve.receipts.batch import ServedPrediction, ServedReceipt, ServedSums
from calib_serve.receipts.classes import Classes

pytestmark = pytest.mark.store

V = ("m", "2")
FACTS = {"classes": 10}


@pytest.fixture
def watches(url: str) -> Iterator[list[Watch]]:
    """Two that share a ledger, neither of which knows the version."""
    both = [Watch(RING, Ledger(url), models={("m", "1"): Watched(Classes(10))}) for _ in range(2)]
    yield both
    for one in both:
        one.close()


def burst(watch: Watch, seed: int, rows: int = 250) -> int:
    """Predictions of all classes, bins and some segments, and their labels; the number of rows."""
    items = [
        ServedPrediction(
            *V, (i + seed) % 10, 0.6 + (i * 7 + seed) % 40 / 100, segment=f"s{(i * 3 + seed) % 8}"
        )
        for i in range(rows)
    ]
    receipts = watch.predictions(items)
    watch.labels([{"receipt": one, "label": i % 10} for i, one in enumerate(receipts)])
    return rows


def test_two_watches_count_what_waited_in_one_order_while_traffic_goes_on(
    watches: list[Watch], url: str
) -> None:
    sent = sum(burst(watch, seed) for seed in range(4) for watch in watches)
    began = deadlocks(url)
    failed: list[BaseException] = []
    more = [0, 0]

    def serve(number: int) -> None:
        try:
            for seed in range(8):
                more[number] += burst(watches[number], seed, 100)
                watches[number].ledger.roll_up()
                watches[number].refresh_versions()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    watches[0].register_version(V, FACTS)
    for thread in threads:
        thread.join()
    assert not failed
    for watch in watches:
        watch.refresh_versions()
    assert watches[0].ledger.held.counts() == {}
    sums = watches[1].ledger.sums()[V]
    assert (sums.predictions.sum(), sums.labels.sum()) == (sent + sum(more), sent + sum(more))
    assert deadlocks(url) == began


def deadlocks(url: str) -> int:
    """How many PostgreSQL has ended in this database; 0 of a file."""
    if not url.startswith("postgresql"):
        return 0
    asked = "select deadlocks from pg_stat_database where datname = current_database()"
    ask(url, "select pg_stat_force_next_flush()")
    return int(ask(url, asked)[0].deadlocks)


def test_what_waited_lies_in_the_windows_of_the_time_when_it_was_served(url: str) -> None:
    now = [NOW - 0.9 * DAY]
    with Watch(
        RING, by_clock(Ledger(url), lambda: now[0]), models={("m", "1"): Watched(Classes(10))}, maturity=0.0
    ) as watch:
        watch.served([ServedSums(*V, 1, "", 0.8, 0.8, 50, 40.0)], time=now[0] - 3600, once=b"sums")
        receipts = watch.predictions([ServedPrediction(*V, 1, 0.9)] * 30)
        signed = RING.sign(model="m", version="2", predicted=1, confidence=0.9, time=now[0] - 7200)
        watch.predictions([ServedReceipt(signed), ServedPrediction("m", "1", 1, 0.9)])
        now[0] += 1800
        watch.labels([{"receipt": one, "label": 1} for one in receipts[:20]])
        now[0] = NOW
        watch.register_version(V, FACTS)
        by_age: dict[int, tuple[float, float]] = {}
        for _, start, width, sums in watch.ledger.dated(0.0, NOW + 600, version=V, kind="segment"):
            hours = round((NOW - start - width / 2) / 360) // 10
            before = by_age.get(hours, (0.0, 0.0))
            by_age[hours] = (before[0] + sums.predictions.sum(), before[1] + sums.labels.sum())
        assert {hours: of for hours, of in by_age.items() if any(of)} == {
            22: (50, 0), 21: (30, 20), 23: (1, 0),
        }  # fmt: skip
        hour, day = (watch.window(V, name) for name in ("1h", "24h"))
        assert hour.sums.predictions.sum() == 0
        assert (day.sums.predictions.sum(), day.sums.labels.sum()) == (81, 20)
        arrived = {row.arrived_at for row in ask(url, "select arrived_at from label")}
        assert arrived == {NOW - 0.9 * DAY + 1800}


def test_a_batch_that_is_sent_again_while_another_watch_counts_it_counts_once(watches: list[Watch]) -> None:
    items = [ServedPrediction(*V, 1, 0.9)] * 4
    receipts = watches[0].predictions(items, once=b"a")
    watches[1].register_version(V, FACTS)
    assert watches[0].predictions(items, once=b"a") == receipts  # which does not know the version yet
    watches[0].refresh_versions()
    assert watches[0].ledger.sums()[V].predictions.sum() == 4


def test_a_version_is_named_though_what_waits_for_it_cannot_be_counted_yet(
    watches: list[Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watches[0]
    watch.predictions([ServedPrediction(*V, 1, 0.9)] * 4)

    def fails(*_: object, **__: object) -> None:
        raise LedgerError("another transaction came between")

    with monkeypatch.context() as broken, talk_to(watch) as client:
        broken.setattr(watch.ledger.held, "take", fails)
        named = client.post("/v1/versions", json={"model": "m", "version": "2", **FACTS})
    assert named.status_code == 200
    assert watch.ledger.held.counts() == {V: 4}
    watch.refresh_versions()
    assert watch.ledger.sums()[V].predictions.sum() == 4
