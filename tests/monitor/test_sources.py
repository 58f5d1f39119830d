"""Who labelled what: slices by source, what one may send, and which says something else than the rest."""

import time

import numpy as np
import pytest
from real_watch import RING, make_watch, talk_to
from sizes import sized

from calib_serve.monitor.label_signs import source_gaps
from calib_serve.receipts.sums import Sums
from calib_serve.web import Token

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
    found = watch.ledger.slices("source")
    assert {key.name: sums.labels.sum() for key, sums in found.items()} == {"lab": 3, "crowd": 2}
    assert sum(found.values(), Sums.zeros()) == watch.ledger.sums()[V]
    watch.close()


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
