"""Sums on their way to a watch: what differs is sent, once, whatever happens to either side."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from real_watch import RING, make_watch, talk_to

from calib_serve import Artifact
from calib_serve.artifact import Clause, Contract, LogitMap
from calib_serve.core.bins import bin_index
from calib_serve.core.errors import ServerError, Unanswered
from calib_serve.ledger import Ledger
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import client as module
from calib_serve.receipts.batch import ServedPrediction, ServedSums
from calib_serve.receipts.counters import RegistrySink, SeriesCounts
from calib_serve.receipts.destination import Batch, Remote, Served, Within
from calib_serve.receipts.outbox import Outbox
from calib_serve.receipts.samples import SampleLog, read_samples

pytestmark = pytest.mark.store

V = ("m", "1")


class Home:
    """A watch that is away for so many calls, and then takes all; it is asked here, not mocked: it counts."""

    def __init__(self, watch: Watch, away: int = 0) -> None:
        self.watch, self.away, self.calls, self.answers = watch, away, 0, True

    def count(self, batch: Batch) -> list[str]:
        self.calls += 1
        if self.calls <= self.away:
            raise Unanswered("nobody is there")
        found = Within(self.watch).count(batch)
        if not self.answers:
            raise Unanswered("the answer was lost")
        return found


class Taking:
    """Takes all, and keeps it to be looked at."""

    def __init__(self) -> None:
        self.sums: list[ServedSums] = []
        self.times: list[float] = []

    def count(self, batch: Batch) -> list[str]:
        self.sums += batch.items
        self.times.append(batch.time)
        return [""] * len(batch.items)


@pytest.fixture
def watch(tmp_path: Path):
    with make_watch(tmp_path) as watch:
        yield watch


def drawn(n: int, seed: int = 0) -> list[tuple[int, float]]:
    rng = np.random.default_rng(seed)
    return list(zip(rng.integers(0, 3, n).tolist(), rng.random(n).tolist(), strict=True))


def numbers(watch: Watch) -> dict[tuple[str, str], tuple[float, float]]:
    """Predictions and their confidences, by kind and slice."""
    return {
        (key.kind, key.name): (sums.predictions.sum(), round(sums.predictions_confidence.sum(), 6))
        for key, sums in watch.ledger.slices(None, version=V).items()
    }


def outbox(home: object, failed: list[str] | None = None, **more: object) -> Outbox:
    told = [] if failed is None else failed
    return Outbox(home, lambda stage, times=1: told.extend([stage] * times), model="m", version="1", **more)  # type: ignore[arg-type]


@given(
    confidences=st.lists(
        st.floats(0, 1) | st.builds(lambda k, n: k / n, st.integers(0, 15), st.just(15)), min_size=1
    ),
    bins=st.integers(1, 30),
)
def test_what_is_added_up_before_it_is_sent_lies_in_the_bins_of_all_else(
    confidences: list[float], bins: int
) -> None:
    want = np.bincount(bin_index(confidences, bins=bins), minlength=bins).tolist()
    pairs = [(0, c) for c in confidences]
    registry = CollectorRegistry()
    series = SeriesCounts(RegistrySink(registry), model="m", version="1", bins=bins)
    series.put(pairs)
    series.settle()
    of_bin = ({"model": "m", "version": "1", "bin": str(b)} for b in range(bins))
    assert [registry.get_sample_value("calib_predictions_total", labels) for labels in of_bin] == want
    home = Taking()
    waiting = outbox(home, bins=bins)
    waiting.put(pairs)
    assert waiting.send(at_once=True)
    assert {int(bin_index(one.low, bins=bins)): one.count for one in home.sums} == {
        b: n for b, n in enumerate(want) if n
    }
    assert all(len(set(bin_index([one.low, one.high], bins=bins))) == 1 for one in home.sums)


def test_sums_count_as_their_predictions_one_by_one_do(tmp_path: Path) -> None:
    contract = Contract((Clause(0.8, above=0.615),))
    artifact = Artifact((LogitMap.temperature(1.0),), method="t", classes=3, contract=contract)
    pairs, segments = drawn(3000), ["north" if i % 3 else "south" for i in range(3000)]
    found = []
    for name in ("one by one", "sums"):
        watch = Watch(RING, Ledger(tmp_path / f"{name}.db"), models={V: Watched.of(artifact)})
        if name == "sums":
            clauses = lambda c, k, s: [one.id for one in contract.counts(c, k, s)]  # noqa: E731
            box = outbox(Home(watch), clauses=clauses)
            box.put(pairs, segments)
            assert len(box) == 3000
            assert box.send()
        else:
            watch.predictions(
                [ServedPrediction(*V, k, c, s) for (k, c), s in zip(pairs, segments, strict=True)]
            )
        found.append(numbers(watch))
        watch.close()
    assert found[0] == found[1]
    assert {kind for kind, _ in found[0]} == {"segment", "class", "clause"}


def test_a_watch_that_is_away_or_whose_answer_is_lost_counts_once_when_it_is_back(watch: Watch) -> None:
    home, failed = Home(watch, away=3), []
    box = outbox(home, failed)
    for i in range(4):
        box.put(drawn(100, i))
        assert box.send(at_once=True) == (i == 3)
    assert numbers(watch)["segment", ""][0] == 400
    assert failed == ["watch"] * 3
    home.answers = False
    box.put(drawn(50))
    assert not box.send(at_once=True)
    box.put(drawn(50))
    assert not box.send(at_once=True)
    home.answers = True
    assert box.send(at_once=True)
    assert len(box) == 0
    assert numbers(watch)["segment", ""][0] == 500


def test_what_waits_grows_with_what_differs_and_not_with_the_traffic(watch: Watch) -> None:
    now, failed = [1_700_000_000.0], list[str]()
    box = outbox(Home(watch, away=10**9), failed, clock=lambda: now[0], most=200)
    for _ in range(120):  # an hour, in which half a million predictions are made
        box.put(drawn(4000))
        box.send()
        now[0] += 30
    assert len(box) < 4000 * 120, "beyond the bound they are not counted"
    assert len(box) + failed.count("queue") == 4000 * 120
    small = outbox(Home(watch, away=10**9), clock=lambda: now[0])
    for _ in range(120):
        small.put(drawn(4000))
        small.send()
        now[0] += 30
    assert len(small) == 4000 * 120
    assert sum(len(one.items) for one in small._named) + len(small._sums) <= 3 * 15 * 14


def test_sums_are_of_the_five_minutes_in_which_they_were_made() -> None:
    now, home = [0.0], Taking()
    box = outbox(home, clock=lambda: now[0])
    for now[0] in (299.0, 300.0, 599.0, 600.0):
        box.put([(1, 0.5)])
        box.settle()
    assert box.send(at_once=True)
    assert (home.times, [one.count for one in home.sums]) == ([0.0, 300.0, 600.0], [1, 2, 1])


def test_what_cannot_be_counted_is_told_and_does_not_block_the_rest(watch: Watch) -> None:
    failed: list[str] = []
    box = outbox(Home(watch), failed)
    box.put([(1, 0.9), (7, 0.9)])  # there are three classes
    assert box.send()
    assert failed == ["refused"]
    assert numbers(watch)["segment", ""][0] == 1

    class Refusing:
        def count(self, _: Batch) -> list[str]:
            raise ServerError("this is no watch")

    failed.clear()
    box = outbox(Refusing(), failed)
    box.put(drawn(10))
    assert box.send()
    assert failed == ["watch"] * 10


def test_a_batch_that_a_process_sent_with_more_than_its_spool_says_counts_once(
    watch: Watch, tmp_path: Path
) -> None:
    home = Home(watch, away=1)
    box = outbox(home, spool=tmp_path / "spool")
    box.put(drawn(10))
    assert not box.send(at_once=True)
    (path,) = (tmp_path / "spool").rglob("*.db")
    before = path.read_bytes()
    box.put(drawn(7))
    assert box.send(at_once=True)
    assert not path.exists()
    path.write_bytes(before)  # as where the process died before it wrote again
    other = outbox(home, spool=tmp_path / "spool")
    other.put(drawn(5))
    assert other.send(at_once=True)
    assert numbers(watch)["segment", ""][0] == 22


@pytest.mark.parametrize(
    "wrong",
    [
        {"low": 0.5, "high": 0.9},  # two bins
        {"low": 0.91, "high": 0.9},
        {"confidence": 5.0},
        {"count": 0},
        {"confidence": -1.0},
        {"predicted": 3},
        {"segment": "x" * 64},
        {"high": 1.5},
    ],
)
def test_sums_that_cannot_be_are_refused_alone(watch: Watch, wrong: dict[str, object]) -> None:
    one = {"model": "m", "version": "1", "predicted": 1, "segment": "", "low": 0.89, "high": 0.9}
    one |= {"count": 2, "confidence": 1.79}
    found = watch.served([ServedSums(**{**one, **wrong}), ServedSums(**one)], time=time.time(), once=b"a")
    assert [bool(why) for why in found] == [True, False]
    assert numbers(watch)["segment", ""][0] == 2


def test_many_equal_confidences_are_counted_though_their_sum_is_rounded_as_often(watch: Watch) -> None:
    failed: list[str] = []
    box = Outbox(Home(watch), lambda stage, **_: failed.append(stage), model="m", version="1")
    box.put([(1, 0.8)] * 500_000)
    assert not box._came, "so many do not wait one by one"
    assert box.send(at_once=True)
    assert (numbers(watch)["segment", ""][0], failed) == (500_000, [])


def test_over_http_sums_need_a_key_and_another_batch_under_it_is_a_conflict(watch: Watch) -> None:
    one = {
        "model": "m",
        "version": "1",
        "predicted": 1,
        "low": 0.9,
        "high": 0.9,
        "count": 2,
        "confidence": 1.8,
    }
    with talk_to(watch) as client:

        def send(key: str | None, **more: object) -> int:
            body = {"time": time.time(), "items": [{**one, **more}]}
            headers = {} if key is None else {"idempotency-key": key}
            return client.post("/v1/sums", json=body, headers=headers).status_code

        assert [send(None), send("a", low=2.0), send("a", nonsense=1)] == [400] * 3
        assert [send("a"), send("a"), send("a", count=3, confidence=2.7)] == [200, 200, 409]
    assert numbers(watch)["segment", ""][0] == 2


def test_over_http_ids_logits_and_the_rate_of_samples_reach_the_other_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, now = SampleLog(tmp_path / "s", rate=0.5), time.time()
    with make_watch(tmp_path, samples=samples) as watch, talk_to(watch) as client:

        def exchange(url: str, body: bytes, headers: dict[str, str], *, seconds: float) -> object:
            found = client.post(url.removeprefix("http://watch"), content=body, headers=headers)
            return found.status_code, found.content, seconds

        monkeypatch.setattr(module, "exchange", exchange)
        remote, logits = Remote("http://watch/"), np.array([0.5, 2.0, -1.0], np.float16).tobytes()
        tokens = [RING.sign(model="m", version="1", predicted=1, confidence=0.5 + i / 100) for i in range(40)]
        ones = tuple(Served(one, f"order-{i}", logits * (i > 0)) for i, one in enumerate(tokens))
        assert remote.sample_rate == 1.0
        assert remote.count(Batch(f"{'a' * 32}-1", now, ones)) == [""] * 40
        assert remote.sample_rate == 0.5
        sums = ServedSums("m", "1", 1, "north", 0.88, 0.9, 2, 1.78)
        assert remote.count(Batch(f"{'a' * 32}-2", now, (sums,))) == [""]
        labels = [{"id": f"order-{i}", "label": i % 3} for i in range(40)]
        assert all(one.accepted for one in remote.labels(labels))
        samples.flush()
        kept = read_samples(tmp_path / "s", model="m", version="1")
        assert 0 < len(kept.labels) < 39
        assert set(map(tuple, kept.logits.tolist())) == {(0.5, 2.0, -1.0)}
        assert {name: n for name, (n, _) in numbers(watch).items() if name[0] == "segment"} == {
            ("segment", ""): 40,
            ("segment", "north"): 2,
        }
