"""A store that freezes, and hosts whose clocks differ: what is said of them is true."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cut_proxy import cut_after_commit
from real_watch import RING, make_watch, talk_to

from calib_serve.artifact import Clause, Contract
from calib_serve.ledger import Ledger
from calib_serve.ledger.failover import accept_timeline, note_timeline
from calib_serve.monitor import checks
from calib_serve.monitor.checks import counting_checks
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import DAY
from calib_serve.receipts.classes import Classes

pytestmark = pytest.mark.store

PROMISED = Contract((Clause(0.9, above=0.8),))
ONE = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}


def test_receipts_from_ahead_and_another_host_s_clock_are_said(tmp_path: Path) -> None:
    watch, ahead = make_watch(tmp_path), make_watch(tmp_path, clock=lambda: time.time() + 3600)
    with talk_to(watch) as client, talk_to(ahead) as theirs:
        (item,) = theirs.post("/v1/predictions", json=[ONE]).json()["items"]
        outcome = client.post("/v1/labels", json=[{"receipt": item["receipt"], "label": 1}]).json()
        assert outcome["refused"] == 1
        watch.checks.run()
        assert "dated 3600 s ahead" in client.get("/healthz").json()["checks"]["receipts"]
        another = counting_checks(ahead.ledger, ahead.intake, program="another", ttl=30 * DAY)
        another[0].run()
        watch.checks.run()
        assert "3600 s behind that of another" in client.get("/healthz").json()["checks"]["clock"]
        assert client.get("/healthz").json()["status"] == "degraded"
    watch.ledger.close(), ahead.ledger.close()


def test_a_round_that_hangs_and_a_write_that_was_refused_lately_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, watch = [time.monotonic()], make_watch(tmp_path)
    monkeypatch.setattr(checks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watch.checks.run()
    watch.checks.start()
    for seconds, hangs in ((75.0, False), (1.0, True)):
        now[0] += seconds
        said = watch.checks.reasons()["rounds"]
        assert said == ("no round of checks ended for 76 s" if hangs else None)
        assert watch.checks.status == ("degraded" if hangs else "ready")
    watch.ledger.refused = now[0], "the disk is full"
    for seconds, status in ((14.0, "failing"), (1.0, "ready")):
        now[0] += seconds
        watch.checks.run()
        assert watch.checks.status == status
    watch.close()


NAMED = Watched(Classes(2, ("cat", "dog")))


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({}, None),
        ({"models": {("m", "1"): Watched(Classes(2)), ("m", "2"): NAMED}}, None),
        ({"maturity": 3600.0}, "--maturity: 3600s, and this program auto"),
        ({"segments": ["b", "a"]}, "--segments: a,b, and this program 32"),
        ({"models": {("m", "1"): Watched(Classes(3))}}, "classes of m 1: 3, and this program 2"),
        ({"models": {("m", "1"): Watched(Classes(2, ("dog", "cat")))}}, "class names of m 1: "),
        ({"models": {("m", "1"): replace(NAMED, contract=PROMISED)}}, "contract of m 1: "),
    ],
)
def test_programs_on_one_ledger_that_were_given_other_options_or_versions_say_so(
    url: str, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], says: str | None
) -> None:
    watches = []
    for pid, given in ((1, {}), (2, other)):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        watches.append(Watch(RING, Ledger(url), **{"models": {("m", "1"): NAMED}, **given}))
    monkeypatch.undo()
    for watch in (*watches, watches[0]):
        watch.checks.run("ledger", "options")
    found = watches[0].checks.reasons()["options"]
    assert (found is None) if says is None else (found is not None and says in found)
    assert watches[1].checks.reasons(public=True)["options"] in (None, "InputError: see the program's log")
    for watch in watches:
        watch.ledger.close()


def test_of_a_batch_whose_commit_was_not_answered_it_is_said_that_its_fate_is_unknown(
    postgres_database: str,
) -> None:
    with cut_after_commit(postgres_database) as (address, cut):
        ledger = Ledger(address)
        watch = Watch(RING, ledger, models={("m", "1"): Watched(Classes(3))})

        def unanswered(ask: Callable[[], Any]) -> Any:
            cut.set()
            try:
                return ask()
            finally:
                cut.clear()

        with talk_to(watch) as client:

            def send(**headers: str) -> Any:
                return client.post("/v1/predictions", json=[ONE] * 10, headers=headers)

            assert send().status_code == 200
            keyed = unanswered(lambda: send(**{"idempotency-key": "a"}))
            assert keyed.status_code == 503
            assert "not known whether the batch was counted" in keyed.json()["detail"]
            again = [send(**{"idempotency-key": "a"}) for _ in range(2)]
            assert [one.status_code for one in again] == [200, 200]
            assert ledger.sums()["m", "1"].predictions.sum() == 20

            labels = [{"receipt": one["receipt"], "label": 1} for one in again[0].json()["items"]]
            refused = unanswered(lambda: client.post("/v1/labels", json=labels))
            assert refused.status_code == 503
            assert "each is counted once" in refused.json()["detail"]
            client.post("/v1/labels", json=labels)
            assert ledger.sums()["m", "1"].labels.sum() == 10
            text = client.get("/metrics").text
            assert 'calib_batches_unknown_total{batch="predictions"} 1.0' in text
            assert 'calib_batches_unknown_total{batch="labels"} 1.0' in text
        ledger.close()


def test_another_timeline_is_said_until_somebody_knows_of_it_and_the_first_one_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "l.db")
    for timeline, said in (("", False), ("1", False), ("1", False), ("2", True), ("2", True), ("3", True)):
        monkeypatch.setattr(ledger.database, "timeline", lambda _, now=timeline: now)
        with ledger.transaction() as connection:
            assert (f"on timeline {timeline}," in str(note_timeline(ledger.database, connection))) == said
    with ledger.transaction() as connection:
        accept_timeline(connection)
        assert note_timeline(ledger.database, connection) is None
    ledger.close()
