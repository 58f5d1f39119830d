"""A host of every earlier version goes on with today's program, over the files that the old one left."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept_hosts import Host, V

from calib_serve.receipts import Keyring
from calib_serve.watch.anew import begun_anew
from calib_serve.watch.batch import ServedPrediction
from calib_serve.watch.drift import Detector
from calib_serve.watch.feed import DriftFeed, detector_key
from calib_serve.watch.ledger import SqliteLedger, Sums, backup_ledger, restore_ledger, verify_file
from calib_serve.watch.ledger.formats import FORMAT
from calib_serve.watch.revoke import revoke
from calib_serve.watch.samples import read_samples
from calib_serve.watch.service import Watch

EVERY = range(1, FORMAT + 1)
BACKED_UP = range(2, FORMAT + 1)
WITH_JOURNAL = range(3, FORMAT + 1)
NO_LABEL = (0, 1) * 10  # what the old program's own copy was sent, too


@pytest.fixture(params=EVERY, ids="format-{}".format)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    return Host(request.param, tmp_path)


def numbers(sums: Sums) -> list[float]:
    bins = sums.feedback
    return [
        sums.predictions.sum(),
        sums.predictions_confidence.sum(),
        bins.count.sum(),
        bins.confidence.sum(),
        bins.correct.sum(),
    ]


def sent(watch: Watch, receipts: list[str], labels: Any, source: str = "lab") -> list[str | None]:
    rows = [{"receipt": one, "label": int(label)} for one, label in zip(receipts, labels, strict=True)]
    return [one.reason for one in watch.labels(rows, source=source)]


def told_as(watch: Watch, told: dict[str, Any]) -> None:
    """The watch says what the old program did of what it counted."""
    np.testing.assert_allclose(numbers(watch.ledger.sums()[V]), told["sums"], rtol=1e-9)
    segments = {key.name: numbers(sums) for key, sums in watch.ledger.slices("segment").items()}
    assert segments.keys() == told["segments"].keys()
    for name, said in told["segments"].items():
        np.testing.assert_allclose(segments[name], said, rtol=1e-9)


def test_it_counts_what_it_counted_and_no_label_twice(host: Host) -> None:
    counted, told = host.told["counted"], host.told
    for _ in range(2):  # also when it is opened again
        with host.watch() as watch:
            told_as(watch, told["before"])
            assert sent(watch, counted, [0] * len(counted)) == ["duplicate"] * len(counted)
            told_as(watch, told["before"])
            assert watch.ledger.verify() == []
            assert watch.checks.reasons()["ledger"] is None


def test_it_takes_the_labels_that_were_still_to_come_and_then_says_what_the_old_program_said(
    host: Host,
) -> None:
    todo = [*host.told["open"][:10], *host.told["open"][20:30]]
    with host.watch() as watch:
        assert sent(watch, todo, NO_LABEL) == [None] * 20
        assert sent(watch, todo, NO_LABEL) == ["duplicate"] * 20
        after = host.told["after"]
        np.testing.assert_allclose(numbers(watch.ledger.sums()[V]), after["sums"], rtol=1e-9)
        watch.feed.tick()
        assert watch.ledger.waiting() == {}


def test_the_receipts_that_its_keys_signed_are_verified_and_new_ones_are_signed_by_the_active_one(
    host: Host,
) -> None:
    ring = Keyring.load(host.folder / "keyring.json")
    receipts = [ring.verify(one, now=host.now) for one in (*host.told["counted"], *host.told["open"])]
    assert {one.key_id for one in receipts} == {"k1", "k2"}
    assert {(one.model, one.version, one.predicted) for one in receipts} == {(*V, 0)}
    with host.watch() as watch:
        (new,) = watch.predictions([ServedPrediction(*V, 1, 0.75)])
        assert ring.verify(new, now=host.now).key_id == "k2"
        assert sent(watch, [new], [1]) == [None]


def test_a_batch_that_the_old_program_counted_is_not_counted_again(host: Host) -> None:
    with host.watch() as watch:
        logits = [[2.0 + 0.25 * (i % 5), 0.0, 0.5] for i in range(60)]
        confidence = np.exp(logits)[:, 0] / np.exp(logits).sum(axis=1)
        items = [ServedPrediction(*V, 0, float(c)) for c in confidence]
        before = numbers(watch.ledger.sums()[V])
        if host.told["format"] < 3:  # names without a content: whatever comes under one is the same batch
            assert len(watch.predictions(items, once=b"batch-1")) == len(items)
        else:
            with pytest.raises(Exception, match="another batch"):
                watch.predictions(items, once=b"batch-1")
        assert numbers(watch.ledger.sums()[V]) == before


def test_a_detector_goes_on_where_it_was_or_its_new_start_is_said(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """Alike to the last label that both know: the program of before went on in a copy."""
    before, after = host.told["before"]["detector"], host.told["after"]["detector"]
    todo = [*host.told["open"][:10], *host.told["open"][20:30]]
    with host.watch() as watch:
        assert sent(watch, todo, NO_LABEL) == [None] * 20
        watch.feed.tick()
        head, _, _ = (watch.ledger.load(detector_key(V)) or b"").partition(b"\n")
        found = json.loads(head)
        watch.checks.run()
        anew = [one for one in begun_anew(watch.ledger) if one.what == "the drift detector"]
        if before["format"] == found["format"]:
            assert found["labels"] == after["labels"]
            assert watch.feed.evidence[V][0] == pytest.approx(after["log_evidence"], rel=1e-9)
            assert anew == []
            return
        assert found["labels"] == 20  # those of the old one are not in it
        (one,) = anew
        why = f"it is of format {before['format']}, and this program reads 5"
        assert one.why == f"not a detector's state: {why}; start a new detector"
        assert one.time == host.now
        assert "pets 1: the drift detector begins anew" in caplog.text
        said = f"the drift detector of pets 1 began anew: {one.why}"
        assert watch.checks.reasons()["drift"] == said
        assert watch.checks.status == "degraded"
    with host.watch() as again:  # another process says it, too, and for a day
        again.checks.run()
        assert again.checks.reasons()["drift"] == said
        host.now += 86_400.0
        again.checks.run()
        assert again.checks.reasons()["drift"] is None


@pytest.mark.parametrize("number", BACKED_UP)
def test_incidents_stay_and_are_closed_by_hand(number: int, tmp_path: Path) -> None:
    host = Host(number, tmp_path)
    with host.watch() as watch:
        found = [one.as_dict() for one in watch.incidents()]
        (told,) = host.told["before"]["incidents"]
        assert json.loads(json.dumps(found)) == [told]
        alarms, opened = watch.feed.incidents.counts()
        assert (alarms, opened) == ({V: told["alarms"]}, {V: 1})
        assert watch.close_incident(told["id"], by="ann").closed_by == "ann"
        sent(watch, host.told["open"][:10], [0] * 10)
        watch.feed.tick()
        assert watch.incidents()[0].closed == host.now
        assert not [one for one in begun_anew(watch.ledger) if "incidents" in one.what]


def test_alarms_of_before_there_were_incidents_stay_in_the_ledger(tmp_path: Path) -> None:
    host = Host(1, tmp_path)
    with host.watch() as watch:
        assert watch.incidents() == []
        kept = json.loads(watch.ledger.load("watch/alarms") or b"[]")
        assert [one["at"] for one in kept] == [one["at"] for one in host.told["before"]["alarms"]]


@pytest.mark.parametrize("number", WITH_JOURNAL)
def test_a_source_of_before_is_taken_back_exactly(number: int, tmp_path: Path) -> None:
    """Also what the program was killed over: its journal does not say what became of the last batch."""
    host = Host(number, tmp_path)
    with host.watch() as watch:
        pass  # a server that runs settles what the old one left open
    with closing(SqliteLedger(host.folder / "ledger.db", writer="w1", clock=lambda: host.now)) as ledger:
        before = numbers(ledger.sums()[V])
        options = {"source": "lab", "samples": host.folder / "samples", "by": "ann"}
        told = revoke(ledger, host.folder / "journal", **options, clock=lambda: host.now)
        assert told.labels == {V: host.told["sources"]["lab"]}
        assert numbers(ledger.sums()[V])[2] == before[2] - host.told["sources"]["lab"]
        again = revoke(ledger, host.folder / "journal", **options, clock=lambda: host.now)
        assert (sum(again.labels.values()), again.before) == (0, host.told["sources"]["lab"])
    left = read_samples(host.folder / "samples", model=V[0], version=V[1])
    assert left.labels_seen == host.told["sources"]["desk"]
    with host.watch() as watch:  # what was taken back counts no second time
        assert set(sent(watch, host.told["counted"], [0] * 85)) == {"duplicate"}


def test_a_journal_that_begins_after_the_upgrade_holds_the_labels_from_then_on(tmp_path: Path) -> None:
    host = Host(2, tmp_path)
    with host.watch() as watch:
        assert sent(watch, host.told["open"][:3], [0] * 3, source="lab") == [None] * 3
    with closing(SqliteLedger(host.folder / "ledger.db", writer="w1", clock=lambda: host.now)) as ledger:
        told = revoke(ledger, host.folder / "journal", source="lab", by="ann", clock=lambda: host.now)
        assert told.labels == {V: 3}


@pytest.mark.parametrize("number", WITH_JOURNAL)
def test_labels_by_ids_of_before_find_their_predictions(number: int, tmp_path: Path) -> None:
    host = Host(number, tmp_path)
    with host.watch() as watch:
        labels = [{"id": "order-3", "label": 0}, {"id": "order-55", "label": 0}, {"id": "other", "label": 0}]
        found = [one.reason for one in watch.labels(labels)]
        assert found == ["duplicate", None, "unknown_id"]


def test_samples_of_before_are_joined_with_labels_of_after(host: Host) -> None:
    with host.watch() as watch:
        assert sent(watch, host.told["open"][:10], [2] * 10) == [None] * 10
    found = read_samples(host.folder / "samples", model=V[0], version=V[1])
    assert (found.predictions, found.labels_seen, found.damaged) == (120, 95, 0)
    assert sorted(found.labels.tolist())[-10:] == [2] * 10
    np.testing.assert_allclose(np.unique(found.logits[:, 0]), [2.0, 2.25, 2.5, 2.75, 3.0])


@pytest.mark.parametrize("number", BACKED_UP)
def test_a_backup_of_before_is_restored_whole_in_today_s_format(number: int, tmp_path: Path) -> None:
    host = Host(number, tmp_path / "host")
    counted = host.told["counted"]
    place = tmp_path / "restored.db"
    found = restore_ledger(host.folder / "ledger.backup", str(place), recount=True, clock=lambda: host.now)
    assert found.taken == host.told["closed"]
    assert verify_file(place) == []
    shutil.copy(place, host.folder / "ledger.db")
    with host.watch() as watch:
        told_as(watch, host.told["before"])
        assert sent(watch, counted, [0] * 85) == ["duplicate"] * 85
        assert sent(watch, host.told["open"][:5], [0] * 5) == [None] * 5


def test_a_ledger_of_before_is_backed_up_without_opening_it_first(host: Host, tmp_path: Path) -> None:
    where, file = str(host.folder / "ledger.db"), tmp_path / "new.backup"
    before = (host.folder / "ledger.db").read_bytes()
    backup_ledger(where, file, clock=lambda: host.now)
    assert (host.folder / "ledger.db").read_bytes() == before  # the old program may go on
    restore_ledger(file, where, replace=True, recount=True, clock=lambda: host.now)
    with host.watch() as watch:
        told_as(watch, host.told["before"])


def test_the_shadow_of_before_goes_on_and_the_contract_s_evidence_is_said_to_begin_anew(
    tmp_path: Path,
) -> None:
    host = Host(4, tmp_path)
    before, after = host.told["before"], host.told["after"]
    todo = [*host.told["open"][:10], *host.told["open"][20:30]]
    with host.watch() as watch:
        (shadow,) = watch.shadow_states(V)
        (told,) = before["shadows"]
        assert (shadow.tag, shadow.labels, shadow.verdict) == (told["tag"], told["labels"], told["verdict"])
        assert shadow.gain == pytest.approx(told["gain"], rel=1e-12)
        assert sent(watch, todo, NO_LABEL) == [None] * 20
        watch.feed.tick()
        (shadow,), (told,) = watch.shadow_states(V), after["shadows"]
        assert shadow.labels == told["labels"]
        assert dict(shadow.log_evidence) == pytest.approx(told["log_evidence"], rel=1e-9)
        states = watch.contract_states(V)
        assert [one.labels for one in states] == [25, 25]  # 5 that waited, and these; 80 are forgotten
        told_anew = {one.what for one in begun_anew(watch.ledger)}
        assert told_anew == {f"what was known of the clause {one.clause.name!r}" for one in states}
        watch.checks.run()
        assert "so did 1 more in the last day" in (watch.checks.reasons()["drift"] or "")


def test_a_detector_whose_options_were_changed_starts_anew_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By whoever changed them: that is no trouble of a check."""
    host = Host(FORMAT, tmp_path)
    with closing(SqliteLedger(host.folder / "ledger.db", clock=lambda: host.now)) as ledger:
        DriftFeed(ledger, detector=lambda: Detector(arl=5000), maturity=0.0, clock=lambda: host.now).tick()
        assert "its run length, tolerance, bins and block changed, (1000.0, 0.01, 15, 1) to (5" in caplog.text
        assert Detector.restore(ledger.load(detector_key(V)) or b"").labels == 5
        assert begun_anew(ledger) == []
        caplog.clear()
        DriftFeed(ledger, detector=lambda: Detector(arl=5000), maturity=0.0, clock=lambda: host.now).tick()
        assert "changed" not in caplog.text
