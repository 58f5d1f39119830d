"""What a scrape tells: versions up to a cap, windows within a bounded time, and incidents that are open."""

import time

import numpy as np
import pytest
from ledgers import accept, make_label

from calib_serve.core.bins import Bins
from calib_serve.ledger import Ledger
from calib_serve.monitor.drift.detector import Alarm, ShiftedBin
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import Keyring
from calib_serve.receipts.batch import ServedPrediction
from calib_serve.receipts.classes import Classes
from calib_serve.web.exporter import WatchCollector

pytestmark = pytest.mark.store

VERSIONS = [("digits", f"{i}.0") for i in range(1, 7)]
V = VERSIONS[0]
REST = ("other", "other")


@pytest.fixture
def watch(tmp_path):
    models = {version: Watched(Classes(10)) for version in VERSIONS}
    opened = Watch(Keyring.new(), Ledger(tmp_path / "l.db"), models=models, maturity=0.0)
    yield opened
    opened.close()


def serve(watch, versions, **more):
    watch.predictions([ServedPrediction(*v, predicted=1, confidence=0.8, **more) for v in versions])


def scraped(watch, **options):
    return by_family(WatchCollector(watch, **options))


def by_family(collector):
    """The rows of each family, by its name."""
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in collector.collect()
    }


def predictions(told):
    found = {}
    for (model, version, *_), n in told["calib_predictions"].items():
        found[model, version] = found.get((model, version), 0) + n
    return found


def test_versions_beyond_the_cap_are_told_as_one_and_none_is_lost(watch):
    serve(watch, VERSIONS, segment="north")
    serve(watch, VERSIONS[4:])
    assert predictions(scraped(watch)) == dict.fromkeys(VERSIONS[:4], 1) | dict.fromkeys(VERSIONS[4:], 2)
    collector = WatchCollector(watch, max_versions=3)
    assert collector.trouble() is None
    told = scraped(watch, max_versions=3)
    assert predictions(told) == {**dict.fromkeys(VERSIONS[:3], 1), REST: 5}
    assert told["calib_versions_left_out"] == {(): 3}
    for name in ("calib_slice_gap", "calib_window_predictions", "calib_maturity_seconds"):
        assert {key[:2] for key in told[name]} <= set(VERSIONS[:3])
    list(collector.collect())
    assert "3 versions" in collector.trouble()
    assert scraped(watch, max_versions=6)["calib_versions_left_out"] == {(): 0}


def drifted(watch, *, since):
    bins = tuple(
        ShiftedBin(50, 0.9, right, 5.0, bin=b, low=b / 15, high=(b + 1) / 15)
        for b, right in ((13, 0.7), (9, 0.95))
    )
    alarm = Alarm(
        label=100,
        since_label=1,
        since_time=since,
        direction="overconfident",
        bins=bins,
        gap=0.12,
        evidence=20.0,
    )
    with watch.ledger.transaction():
        (opened,) = watch.feed.incidents.observe(V, [0.12] * 100, [alarm], first=1, now=2000.0)
    return opened


def test_the_gap_of_an_open_incident_and_nothing_once_it_is_closed(watch):
    none = scraped(watch)
    assert not none["calib_incident_gap"]
    opened = drifted(watch, since=1000.0)
    told = scraped(watch)
    assert told["calib_incidents_open"] == {**dict.fromkeys(VERSIONS, 0), V: 1}
    assert told["calib_incident_gap"] == {V: pytest.approx(0.12)}
    watch.close_incident(opened.id, by="a person")
    assert not scraped(watch)["calib_incident_gap"]


def test_a_version_has_fewer_series_than_its_budget_and_one_scrape_shows_all_of_them(tmp_path):
    """15 bins, ten classes, three segments, two senders, a reference; of the windows those that are read."""
    reference = Bins.tally([0.8] * 500, [1] * 500)
    models = {V: Watched(Classes(10), reference)}
    watch = Watch(Keyring.new(), Ledger(tmp_path / "l.db"), models=models, maturity=0.0)
    assert series(watch) < 100, "before the first prediction"
    rng = np.random.default_rng(0)
    items = [
        ServedPrediction(*V, int(k % 10), float(rng.uniform(0.3, 1)), segment="abc"[k % 3])
        for k in range(900)
    ]
    receipts = watch.predictions(items)
    labels = [{"receipt": str(one), "label": int(rng.integers(0, 10))} for one in receipts]
    watch.labels(labels[:450], source="lab")
    watch.labels(labels[450:], source="desk")
    assert series(watch) < 190
    collector = WatchCollector(watch)
    for asked, whole, shorter in (("24h", {"24h"}, {"5m", "1h"}), ("7d", {"24h", "7d"}, {"5m", "1h"})):
        collector.ask(asked)
        told = by_family(collector)
        for name in ("predictions", "accuracy", "gap", "ece", "noise_floor", "coverage", "verdict"):
            assert {key[2] for key in told[f"calib_window_{name}"]} == whole, name
        for name in ("provisional", "debiased_ece_high", "confidence_psi"):
            assert {key[2] for key in told[f"calib_window_{name}"]} == whole | shorter, name
        assert {key[3] for key in told["calib_window_sums"]} == whole
        for window in whole:
            for name in ("predictions", "feedback"):
                bins = [n for key, n in told["calib_window_sums"].items() if key[3:5] == (window, name)]
                assert (sum(bins), len(bins)) == (900, 11), "the four lowest bins have nothing"
    watch.close()


def test_weights_are_told_where_they_are_no_count_and_of_empty_bins_the_last(watch):
    told = scraped(watch)["calib_window_sums"]
    assert {key[2] for key in told} == {"14"}
    assert not any(told.values())
    assert "feedback_weight" not in {key[4] for key in told}
    of = {"model": V[0], "version": V[1], "when": time.time(), "confidence": 0.5}
    accept(watch.ledger, [make_label(0, **of), make_label(1, **of, inclusion=1 / 3)])
    told = scraped(watch)["calib_window_sums"]
    assert {key[2]: n for key, n in told.items() if key[4] == "feedback_weight" and key[:2] == V} == {
        "7": 4.0,
        "14": 0.0,
    }


def series(watch):
    """The number of series of one version."""
    families = WatchCollector(watch).collect()
    return sum(one.labels.get("version") == V[1] for family in families for one in family.samples)


def test_windows_follow_their_sums_at_once(watch):
    collector = WatchCollector(watch)

    def served():
        (family,) = (one for one in collector.collect() if one.name == "calib_window_predictions")
        return {
            (one.labels["model"], one.labels["version"]): one.value
            for one in family.samples
            if one.labels["window"] == "24h"
        }

    for _ in VERSIONS:  # a scrape makes one at least, and more as far as a fifth of a second goes
        told = served()
    assert told == dict.fromkeys(VERSIONS, 0)
    serve(watch, VERSIONS[2:3])
    assert served() == dict.fromkeys(VERSIONS, 0) | {VERSIONS[2]: 1}
