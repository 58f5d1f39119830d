"""Who labelled what: slices by source, what one may send, and which says something else than the rest."""

import time

import numpy as np
import pytest
from ledgers import make_label, open_one
from real_watch import RING, make_watch, talk_to
from sizes import sized

from calib_serve.watch.http import Token
from calib_serve.watch.ledger import Key, Sums
from calib_serve.watch.slices import OTHER, SOURCES, Slices
from calib_serve.watch.sources import source_gaps

pytestmark = pytest.mark.store

V = ("m", "1")


def receipts(count, confidence=0.9, **more):
    facts = {"model": "m", "version": "1", "predicted": 1, "confidence": confidence, "time": time.time() - 5}
    return [RING.sign(**facts | more) for _ in range(count)]


def labels(count, label=1, **more):
    return [{"receipt": one, "label": label} for one in receipts(count, **more)]


def test_labels_are_counted_by_the_name_of_their_token(tmp_path):
    watch = make_watch(tmp_path)
    tokens = [Token.read(f"{name} label,scrape {name * 16}") for name in ("lab", "crowd")]
    with talk_to(watch, tokens=tokens) as client:
        for name, n in (("lab", 3), ("crowd", 2)):
            sent = client.post("/v1/labels", json=labels(n), headers={"authorization": f"Bearer {name * 16}"})
            assert sent.json()["accepted"] == n
        text = client.get("/metrics", headers={"authorization": f"Bearer {'lab' * 16}"}).text
    found = watch.ledger.slices("source")
    assert {key.name: sums.labels.sum() for key, sums in found.items()} == {"lab": 3, "crowd": 2}
    assert sum(found.values(), Sums.zeros()) == watch.ledger.sums()[V]
    assert 'calib_source_labels_total{model="m",source="lab",version="1"} 3.0' in text
    watch.close()


def test_sources_are_bounded_and_keep_their_slice_after_a_restart(tmp_path):
    slices = Slices({V: 3}, known=lambda _, kind: [Key(*V, "old", kind)])
    (one,) = (make_label(1).receipt for _ in range(1))
    found = [slices.of_label(one, source=f"client {i}")[-1].name for i in range(100)]
    assert len(set(found) - {OTHER}) == SOURCES - 1
    assert slices.of_label(one, source="old")[-1] == Key(*V, "old", "source")
    assert {key.kind for key in slices.of_label(one)} == {"segment", "class"}


@pytest.fixture
def ledger(store):
    ledger = open_one(*store)
    yield ledger
    ledger.close()


def drawn(rng, n, *, low=0.4, lie=0.0):
    """Labels of a calibrated model, some of the right ones told as wrong."""
    c = rng.uniform(low, 1.0, n)
    y = (rng.random(n) < c) & (rng.random(n) >= lie)
    return c, Sums.labelled(c, y)


def test_sources_that_say_the_same_do_not_differ_whatever_they_label():
    rng = np.random.default_rng(0)
    seen = []
    for _ in range(sized(ci=100, nightly=1000)):
        parts = [drawn(rng, 2000), drawn(rng, 1000, low=0.8), drawn(rng, 500, low=0.6)]
        whole = sum((one for _, one in parts), Sums.served(np.concatenate([c for c, _ in parts])))
        found = source_gaps(whole, {str(i): one for i, (_, one) in enumerate(parts)})
        assert not any(one.differs for one in found)
        seen += [one.low <= 0 <= one.high for one in found]
    assert 0.92 < np.mean(seen) < 0.98


def test_a_source_that_lies_is_told_by_name():
    rng = np.random.default_rng(1)
    parts = {"a": drawn(rng, 3000), "b": drawn(rng, 3000), "liar": drawn(rng, 1000, lie=0.2)}
    whole = sum(
        (one for _, one in parts.values()), Sums.served(np.concatenate([c for c, _ in parts.values()]))
    )
    first, *others = source_gaps(whole, {name: one for name, (_, one) in parts.items()})
    assert (first.name, first.differs) == ("liar", True)
    assert first.difference == pytest.approx(0.2 * 0.7, abs=0.04)
    assert not any(one.differs for one in others) or abs(first.difference) > abs(others[0].difference)


def test_a_source_that_differs_is_on_the_metrics_and_on_the_page(tmp_path):
    watch = make_watch(tmp_path, maturity=0.0)
    for name, wrong in (("lab", 0), ("crowd", 0), ("<liar>", 250)):
        sent = labels(1000 - wrong, confidence=0.99) + labels(wrong, label=0, confidence=0.99)
        assert sum(one.accepted for one in watch.labels(sent, source=name)) == 1000
    with talk_to(watch) as client:
        text, page = client.get("/metrics").text, client.get("/").text
    (line,) = (
        one for one in text.splitlines() if one.startswith("calib_source_gap_difference{") and "liar" in one
    )
    assert float(line.split()[-1]) == pytest.approx(0.25, abs=0.01)
    assert 'kind="source"' not in text
    assert "&lt;liar&gt;" in page
    assert "says something else" in page
    watch.close()
