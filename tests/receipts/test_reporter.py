"""What a reporter says and counts in one process, with a real ``calib-serve watch`` or a real registry."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from live_server import total, until
from prometheus_client import CollectorRegistry, generate_latest
from real_servers import Server, SharedWatch

from calib_serve import Artifact, Keyring, Reporter, Watch
from calib_serve.artifact import LogitMap, ModelFacts
from calib_serve.core.errors import InputError, ServerError
from calib_serve.ledger import Ledger
from calib_serve.receipts.batch import ServedReceipt
from calib_serve.receipts.samples import is_sampled, read_samples
from calib_serve.scores import LabelWords

MODEL = {"model": "digits", "version": "1.0"}
P = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.34, 0.33, 0.33]])


@pytest.fixture
def ring() -> Keyring:
    return Keyring.new()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def counted(
    registry: CollectorRegistry, name: str = "calib_predictions_total", **labels: str
) -> dict[str, float]:
    """The series of a counter by bin, but those at 0."""
    return {
        one.labels.get("bin", one.labels.get("stage", "")): one.value
        for family in registry.collect()
        for one in family.samples
        if one.name == name and one.value and labels.items() <= one.labels.items()
    }


def errors(registry: CollectorRegistry) -> dict[str, float]:
    return counted(registry, "calib_monitor_errors_total")


def test_each_prediction_is_signed_and_counted_in_the_bin_that_its_label_will_be(
    ring: Keyring, registry: CollectorRegistry
) -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(5) / 2, 2000)
    p[0] = [0.6, 0.4, 0, 0, 0]  # on an edge
    p[1] = [1, 0, 0, 0, 0]
    with Reporter(5, **MODEL, keyring=ring, registry=registry) as reporter:
        receipts = [*reporter.served(p[:1500]), *(one for row in p[1500:] for one in reporter.served(row))]
    found = [ring.verify(str(one)) for one in receipts]
    assert [(one.predicted, one.confidence) for one in found] == [(row.argmax(), row.max()) for row in p]
    assert len({one.nonce for one in found}) == 2000
    # Right-closed bins, the first of which holds 0, written out.
    b = np.clip(np.ceil(p.max(axis=1) * 15).astype(int) - 1, 0, 14)
    assert counted(registry) == {str(k): n for k, n in enumerate(np.bincount(b, minlength=15).tolist()) if n}
    sums = counted(registry, "calib_predictions_confidence_total")
    assert sums == pytest.approx({str(k): p.max(axis=1)[b == k].sum() for k in np.unique(b).tolist()})
    assert not errors(registry)


def test_rows_that_are_no_prediction_have_no_receipt_and_are_counted_as_invalid(
    ring: Keyring, registry: CollectorRegistry
) -> None:
    rows = [[0.5, 0.5, 0.0], [np.nan] * 3, [np.inf, 0, 0], [1 + 5e-7, 0, 0], [-1.0, -1.0, -1.0]]
    with Reporter(3, **MODEL, keyring=ring, registry=registry) as reporter:
        reporter._seen = 1000  # later than the first calls, in which wrong rows are refused
        receipts = reporter.served(rows, segment=list("abcde"))
    assert [one is not None for one in receipts] == [True, False, False, True, False]
    assert ring.verify(str(receipts[3])).confidence == 1.0
    assert ring.verify(str(receipts[3])).segment == "d"
    assert counted(registry, "calib_invalid_outputs_total") == {"": 3.0}
    assert sum(counted(registry).values()) == 2


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda r: r.served([[1.0, 2.0, -3.0]]), "add up to 1"),
        (lambda r: r.served([0.5, 0.5]), r"\(n, 3\)"),
        (lambda r: r.served(P, segment=["a"]), "one segment"),
        (lambda r: r.served(P, logits=np.zeros((3, 4))), "shape of probs"),
        (lambda r: r.label("receipt", 1), "watch="),
        (lambda r: r.served_labels(P), "multi-label"),
    ],
)
def test_what_a_caller_has_wrong_is_said_at_once(
    wrong: Any, told: str, ring: Keyring, registry: CollectorRegistry
) -> None:
    with (
        Reporter(3, **MODEL, keyring=ring, registry=registry) as reporter,
        pytest.raises(InputError, match=told),
    ):
        wrong(reporter)
    assert not counted(registry)


@pytest.mark.parametrize("useless", [{"token": "t"}, {"spool": "s"}, {"workers": 4}])
def test_an_option_that_would_do_nothing_is_refused(
    useless: dict[str, Any], ring: Keyring, registry: CollectorRegistry
) -> None:
    with pytest.raises(InputError, match=next(iter(useless))):
        Reporter(3, **MODEL, keyring=ring, registry=registry, **useless)


def test_the_keyring_of_the_environment_is_followed_when_it_changes(
    tmp_path: Path, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keyring.json"
    Keyring.create(path)
    monkeypatch.setenv("CALIB_SERVE_KEYRING", str(path))
    with Reporter(3, **MODEL, registry=registry) as reporter:
        (before,) = reporter.served(P[0])
        changed = Keyring.edit(path, lambda ring: ring.rotated())
        until(lambda: changed.verify(str(reporter.served(P[0])[0])).key_id == changed.active)
        assert changed.verify(str(before)).key_id != changed.active
        path.write_text("{")
        until(lambda: reporter.served(P[0]) and errors(registry).get("keyring"))
        assert reporter.served(P[0]) != [None]


def test_threads_lose_and_repeat_nothing(ring: Keyring, registry: CollectorRegistry) -> None:
    kept: list[str] = []
    with Reporter(3, **MODEL, keyring=ring, registry=registry, flush_seconds=0.001) as reporter:

        def serve() -> None:
            for _ in range(500):
                kept.extend(map(str, reporter.served(P)))
                kept.extend(map(str, reporter.served(P[0])))

        threads = [threading.Thread(target=serve) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({ring.verify(one).nonce for one in kept}) == 16_000
    assert sum(counted(registry).values()) == 16_000


OWN = {"model": "", "version": "1"}
"""A model of the test's own, at the watch that all share."""


@pytest.fixture
def watch(shared_watch: SharedWatch, monkeypatch: pytest.MonkeyPatch) -> SharedWatch:
    monkeypatch.setitem(OWN, "model", shared_watch.model())
    return shared_watch


def home(
    server: Server, registry: CollectorRegistry, of: Mapping[str, str] = OWN, **options: Any
) -> Reporter:
    keyring = server.folder / "keys.json"
    return Reporter(3, **of, keyring=keyring, watch=server.url, registry=registry, **options)


@pytest.mark.server
def test_a_watch_counts_predictions_and_labels_each_once(
    watch: SharedWatch, registry: CollectorRegistry
) -> None:
    with home(watch, registry) as reporter:
        receipts = [one for _ in range(1000) for one in reporter.served(P, segment=["a", "b", ""])]
        assert reporter.flush() == 0
        assert watch.total(OWN["model"]) == 3000
        page = httpx.get(watch.url, params=OWN, timeout=60).text
        assert len(re.findall(r"segment=[ab]&[^>]*>[ab]</a></th><td[^>]*>1,000<", page)) == 2
        assert not sum(counted(registry).values()), "it is counted in one place"
        items = [{"receipt": one, "label": 0} for one in receipts]
        first, again = reporter.labels(items), reporter.labels(items)
        assert all(one.accepted for one in first)
        assert {one.reason for one in again} == {"duplicate"}
        outcome = reporter.label(receipts[0], 7)
        assert (outcome.accepted, outcome.reason) == (False, "bad_label")
    assert watch.total(OWN["model"], "calib_feedback_total") == 3000
    assert not errors(registry)


@pytest.mark.server
def test_predictions_wait_for_a_watch_that_is_down_and_are_counted_once(
    tmp_path: Path, registry: CollectorRegistry
) -> None:
    server = Server(tmp_path)
    with home(server, registry, MODEL) as reporter:
        began = time.perf_counter()
        for _ in range(100):
            assert None not in reporter.served(P)
        assert time.perf_counter() - began < 20, "it waits for nothing"
        assert reporter.flush() == 300
        with pytest.raises(ServerError):
            reporter.label(reporter.served(P)[0], 1)
        with server:
            until(lambda: reporter.flush() == 0)
            server.stop()
            reporter.served(P)
            assert reporter.flush() == 3
            server.start()
            until(lambda: reporter.flush() == 0)
            text = httpx.get(f"{server.url}/metrics").text
            assert total(text, "calib_predictions_total") == 306
    assert errors(registry)["watch"] >= 1


@pytest.mark.server
def test_what_does_not_fit_or_is_refused_is_counted_and_logged_and_what_is_unknown_waits_there(
    watch: SharedWatch, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    with home(watch, registry, most=2, flush_seconds=60) as reporter:
        assert None not in reporter.served(P) + reporter.served(P)
        assert reporter.flush() == 0
        assert watch.total(OWN["model"]) == 4  # of two sums out of three
        assert errors(registry) == {"queue": 2.0}
    keys = watch.folder / "keys.json"
    with (
        Reporter(4, **OWN, keyring=keys, watch=watch.url, registry=registry) as reporter,
        caplog.at_level(logging.WARNING),
    ):
        reporter.served([[0, 0, 0, 1.0]] * 3)  # the watch knows three classes
        assert reporter.flush() == 0
    assert errors(registry)["refused"] == 3
    assert "3 predictions were refused" in caplog.text
    assert watch.total(OWN["model"]) == 4
    unknown = {"model": "unknown", "version": "1", "keyring": watch.folder / "keys.json", "watch": watch.url}
    with Reporter(3, **unknown, registry=registry) as other:
        (first, *_) = other.served(P)
        assert other.flush() == 0
        assert other.label(first, 0).accepted
    assert errors(registry)["refused"] == 3
    ledger = Ledger(watch.folder / "ledger.db")
    assert ledger.held.counts() == {("unknown", "1"): 4}
    ledger.close()


@pytest.mark.store
def test_a_watch_of_this_process_counts_and_keeps_samples(
    tmp_path: Path, ring: Keyring, registry: CollectorRegistry
) -> None:
    models = {("digits", "1.0"): 3}
    with (
        Watch.open(
            models, keyring=ring, ledger=tmp_path / "l.db", samples=tmp_path / "s", sample_rate=1
        ) as watch,
        Reporter(3, **MODEL, keyring=ring, watch=watch, registry=registry) as reporter,
    ):
        receipts = reporter.served(P, logits=np.log(P))
        assert reporter.flush() == 0
        assert watch.ledger.sums()["digits", "1.0"].predictions.sum() == 3
        assert all(one.accepted for one in reporter.labels([{"receipt": r, "label": 0} for r in receipts]))
        watch.samples.flush()  # type: ignore[union-attr]
    found = read_samples(tmp_path / "s", **MODEL)
    assert sorted(found.logits.tolist()) == [
        pytest.approx(row, abs=1e-2) for row in sorted(np.log(P).tolist())
    ]


def test_what_is_no_watch_is_refused_by_its_type(ring: Keyring, registry: CollectorRegistry) -> None:
    with pytest.raises(InputError, match=r"or a Watch of this process, got Keyring: give watch=URL"):
        Reporter(3, **MODEL, keyring=ring, watch=ring, registry=registry)  # type: ignore[arg-type]


@pytest.mark.store
def test_who_signs_asks_for_labels_and_a_watch_says_that_its_budget_is_not_that_of_others(
    tmp_path: Path, ring: Keyring, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    own = {**MODEL, "keyring": ring, "registry": registry}
    kept = {"keyring": ring, "ledger": tmp_path / "l.db", "label_budget": "0.5"}
    with Watch.open({("digits", "1.0"): 3, ("digits", "2.0"): 3}, **kept) as watch:
        with Reporter(3, **own, watch=watch) as reporter:
            assert {one.wanted for one in reporter.served([[0.9, 0.05, 0.05]] * 50)} == {True, False}
            assert reporter.flush() == 0
        assert not caplog.text
        with Reporter(3, **own | {"version": "2.0"}) as elsewhere:
            (receipt, *_) = elsewhere.served(P)
        watch.predictions([ServedReceipt(receipt)], once=b"1")
        watch.predictions([ServedReceipt(receipt)], once=b"1")
        assert caplog.text.count("which others sign") == 1


@pytest.mark.store
def test_logits_make_no_work_for_a_watch_that_keeps_none(
    tmp_path: Path, ring: Keyring, registry: CollectorRegistry
) -> None:
    with (
        Watch.open({("digits", "1.0"): 3}, keyring=ring, ledger=tmp_path / "l.db") as watch,
        Reporter(3, **MODEL, keyring=ring, watch=watch, registry=registry, flush_seconds=3600) as reporter,
    ):
        for _ in range(10):
            reporter.served(P, logits=np.log(P))
        assert reporter._outbox._ones == 0  # all are added up
        reporter.served(P, logits=np.log(P), id=["a", "b", "c"])
        assert reporter._outbox._ones == 3
        assert reporter.flush() == 0
        assert watch.ledger.sums()["digits", "1.0"].predictions.sum() == 33


@pytest.mark.server
def test_a_watch_elsewhere_says_which_logits_it_keeps_and_gets_no_others(
    tmp_path: Path, registry: CollectorRegistry
) -> None:
    none, some = Server(tmp_path), Server(tmp_path, "--samples", str(tmp_path / "s"), "--sample-rate", "0.5")
    ring = Keyring.load(tmp_path / "keys.json")
    with none, home(none, registry, MODEL, flush_seconds=3600) as reporter:
        reporter.served(P, logits=np.log(P))
        assert reporter._outbox._ones == 3  # it may keep them all
        assert reporter.flush() == 0
        reporter.served(P, logits=np.log(P))
        assert reporter._outbox._ones == 0  # they are added up
        assert reporter.flush() == 0
    with some, home(some, registry, MODEL, flush_seconds=3600) as reporter:
        reporter.served(P)
        assert reporter.flush() == 0  # the answer to sums says it, too
        receipts = [one for _ in range(100) for one in reporter.served(P, logits=np.log(P))]
        chosen = sum(is_sampled(ring.verify(str(one)).nonce, 0.5) for one in receipts)
        assert reporter._outbox._ones == chosen
        assert 100 < chosen < 200
        assert reporter.flush() == 0
        assert all(one.accepted for one in reporter.labels([{"receipt": r, "label": 0} for r in receipts]))
        assert total(httpx.get(f"{some.url}/metrics").text, "calib_predictions_total") == 309
        assert some.stop() == 0
    assert len(read_samples(tmp_path / "s", **MODEL).labels) == chosen
    assert not errors(registry)


@pytest.mark.store
def test_decisions_about_labels_are_counted_by_a_watch_as_well(
    tmp_path: Path, ring: Keyring, registry: CollectorRegistry
) -> None:
    def tagger(labels: int) -> Artifact:
        facts = ModelFacts(outputs="label_probabilities")
        return Artifact((), method="none", classes=labels, model=facts)

    own = {**MODEL, "keyring": ring, "registry": registry}
    with (
        Watch.open({("digits", "1.0"): tagger(2)}, keyring=ring, ledger=tmp_path / "l.db") as watch,
        Reporter(tagger(2), **own, watch=watch) as reporter,
        Reporter(tagger(33), **own, watch=watch) as wide,
    ):
        rows = reporter.served_labels([[0.9, 0.2], [np.nan, 0.5]])
        assert [len(row) for row in rows] == [2, 0]
        assert reporter.flush() == 0
        assert watch.ledger.sums()["digits", "1.0"].predictions.sum() == 2
        assert reporter.label(rows[0][0].receipt, True).accepted
        (row,) = wide.served_labels(np.full((1, 33), 0.5))
        assert (len(row), wide.flush()) == (32, 0)  # all are counted, and so many signed


def test_an_answer_of_a_language_model_is_calibrated_and_signed(
    ring: Keyring, registry: CollectorRegistry
) -> None:
    """As parsed JSON, and as an object of a client, which has ``model_dump``."""
    words = LabelWords({"yes": ["yes"], "no": ["no"]})
    artifact = Artifact(
        (LogitMap.temperature(2.0),), method="temperature", classes=2, class_names=words.names
    )
    top = [{"token": " yes", "logprob": np.log(0.8)}, {"token": "no", "logprob": np.log(0.2)}]
    response = {"choices": [{"logprobs": {"content": [{**top[0], "top_logprobs": top}]}}]}

    class Completion:
        def model_dump(self) -> Mapping[str, Any]:
            return response

    reporter = Reporter(artifact, keyring=ring, registry=registry, **MODEL)
    for given in (response, Completion()):
        probs, receipt = reporter.answered(given, words)
        assert probs == pytest.approx([2 / 3, 1 / 3])  # odds of 4, to the power of 1 / 2
        assert receipt is not None
        assert ring.verify(receipt).predicted == 0
    other = {"choices": [{"logprobs": {"content": [{"token": "perhaps", "logprob": 0.0}]}}]}
    probs, receipt = reporter.answered(other, words)
    assert np.isnan(probs).all()
    assert receipt is None
    reporter.flush()
    counted = generate_latest(registry).decode()
    assert total(counted, "calib_predictions_total") == 2
    assert total(counted, "calib_invalid_outputs_total") == 1
    beside = Artifact((LogitMap.temperature(4.0),), method="temperature", classes=2)
    with Reporter(artifact, keyring=ring, shadow=beside, **MODEL) as shadowed:
        _, receipt = shadowed.answered(response, words)
        assert (shadow := ring.verify(str(receipt)).shadow) is not None
        assert shadow.confidence == pytest.approx(4**0.25 / (1 + 4**0.25))
    with pytest.raises(InputError, match="words are of no, yes"):
        reporter.answered(response, LabelWords({"no": ["no"], "yes": ["yes"]}))
    reporter.close()
