"""What a scrape tells: versions up to a cap, windows within a bounded time, and incidents that are open."""

import pytest

from calib_serve.ledger import Ledger
from calib_serve.monitor import Alarm
from calib_serve.monitor.drift.detector import ShiftedBin
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import Keyring
from calib_serve.receipts.batch import ServedPrediction
from calib_serve.receipts.classes import Classes
from calib_serve.web.exporter import Requests, WatchCollector

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
    """The rows of each family, by its name."""
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in WatchCollector(watch, Requests(), **options).collect()
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
    collector = WatchCollector(watch, Requests(), max_versions=3)
    assert collector.trouble() is None
    told = scraped(watch, max_versions=3)
    assert predictions(told) == {**dict.fromkeys(VERSIONS[:3], 1), REST: 5}
    assert told["calib_versions_left_out"] == {(): 3}
    for name in ("calib_segment_predictions", "calib_window_predictions", "calib_maturity_seconds"):
        assert {key[:2] for key in told[name]} <= set(VERSIONS[:3])
    list(collector.collect())
    assert "3 versions" in collector.trouble()
    assert scraped(watch, max_versions=6)["calib_versions_left_out"] == {(): 0}


def drifted(watch, *, since):
    bins = tuple(
        ShiftedBin(b, b / 15, (b + 1) / 15, 50, 0.9, right, 5.0) for b, right in ((13, 0.7), (9, 0.95))
    )
    alarm = Alarm(
        label=100,
        time=2000.0,
        since_label=1,
        since_time=since,
        direction="overconfident",
        bins=bins,
        gap=0.12,
        evidence=20.0,
        threshold=10.0,
    )
    with watch.ledger.transaction():
        (opened,) = watch.feed.incidents.observe(V, [0.12] * 100, [alarm], first=1, now=2000.0)
    return opened


def test_gap_onset_and_bins_of_an_open_incident_and_nothing_once_it_is_closed(watch):
    none = scraped(watch)
    assert not none["calib_incident_gap"]
    opened = drifted(watch, since=1000.0)
    told = scraped(watch)
    assert told["calib_incidents_open"] == {**dict.fromkeys(VERSIONS, 0), V: 1}
    assert told["calib_incident_gap"] == {V: pytest.approx(0.12)}
    assert told["calib_incident_onset_timestamp_seconds"] == {V: 1000.0}
    assert told["calib_incident_bin_gap"] == {
        (*V, "13"): pytest.approx(0.2),
        (*V, "9"): pytest.approx(-0.05),
    }
    watch.close_incident(opened.id, by="a person")
    closed = scraped(watch)
    for name in ("gap", "onset_timestamp_seconds", "bin_gap"):
        assert not closed[f"calib_incident_{name}"]
