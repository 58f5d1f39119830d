"""One file of each format is kept as it was written, and read from then on; see ``kept_hosts``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from kept_hosts import BATCH, LABELS_AFTER, Host, V, said, send
from ledgers import revoked

from calib_serve.ledger.recovery import recent_recovery
from calib_serve.receipts import Keyring, Shadow
from calib_serve.receipts.samples import read_samples

pytestmark = pytest.mark.store


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def alike(found: object, told: object) -> bool:
    """As JSON, but for the last digits of numbers."""
    if isinstance(told, dict):
        return (
            isinstance(found, dict)
            and found.keys() == told.keys()
            and all(alike(found[k], told[k]) for k in told)
        )
    if isinstance(told, list):
        return isinstance(found, (list, tuple)) and len(found) == len(told) and all(map(alike, found, told))
    return found == (pytest.approx(told, rel=1e-9) if isinstance(told, float) else told)


def test_ledger_and_states_go_on_where_they_were(host: Host) -> None:
    counted, told = host.told["counted"], host.told
    for said_of in (told["before"], told["after"]):
        del said_of["clauses"]["calibration"]  # of a kind that is watched no more
        for one in said_of["incidents"]:
            del one["trend"]  # said no more
    with host.watch() as watch:
        assert watch.ledger.check() == []
        assert send(watch, counted, [0] * len(counted)) == ["duplicate"] * len(counted)
        watch.predictions(BATCH, once=b"batch-1")
        assert alike(json.loads(json.dumps(said(watch))), told["before"])
        assert send(watch, told["open"][:20], LABELS_AFTER) == [None] * 20
        watch.feed.tick()
        assert alike(json.loads(json.dumps(said(watch))), told["after"])
        assert recent_recovery(watch.ledger, now=host.now) is None


def test_a_keyring_and_the_receipts_that_it_signed(host: Host) -> None:
    ring = Keyring.load(host.folder / "keyring.json")
    day = 86_400.0
    start = 1_790_000_000.0
    assert ring.demoted == {"k1": start - day}
    assert (ring.active, ring.keys["k2"]) == ("k2", bytes(range(32, 64)))
    receipts = [ring.verify(one, now=host.now) for one in (*host.told["counted"], *host.told["open"])]
    assert [one.key_id for one in receipts] == ["k1"] * 50 + ["k2"] * 70
    first = receipts[0]
    assert (first.model, first.version, first.predicted, first.segment) == (*V, 0, "south")
    assert (first.time, first.inclusion, first.wanted) == (start, 1.0, True)
    assert first.shadow == Shadow(0, 0.75, bytes.fromhex("0a1b2c3d"))
    assert first.confidence == pytest.approx(np.exp(2) / (np.exp(2) + 1 + np.exp(0.5)))
    assert first.group == receipts[1].group != receipts[2].group


def test_what_a_source_sent_is_taken_back(host: Host) -> None:
    with host.watch() as watch:
        before = watch.ledger.sums()[V].labels.sum()
        assert revoked(watch.ledger, "lab") == {V: 45}
        assert watch.ledger.sums()[V].labels.sum() == before - 45
        assert set(send(watch, host.told["counted"], [0] * 85)) == {"duplicate"}


def test_ids(host: Host) -> None:
    with host.watch() as watch:
        labels = [{"id": "order-3", "label": 0}, {"id": "order-30", "label": 0}]
        assert [one.reason for one in watch.labels(labels)] == [None, "unknown_id"]


def test_samples(host: Host) -> None:
    found = read_samples(host.folder / "samples", model=V[0], version=V[1])
    assert (found.predictions, len(found.labels)) == (100, 85)
    np.testing.assert_allclose(np.unique(found.logits[:, 0]), [2.0, 2.25, 2.5, 2.75, 3.0])
