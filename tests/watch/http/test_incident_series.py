"""What a scrape says of an open incident, which the texts of alerts read."""

import math

import pytest

from calib_serve.receipts import Keyring
from calib_serve.watch.drift import Alarm
from calib_serve.watch.drift.alarm import ShiftedBin
from calib_serve.watch.http.exporter import Requests, WatchCollector
from calib_serve.watch.intake import Classes
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.service import Watch, Watched

V = ("digits", "1.0")


@pytest.fixture
def watch(tmp_path):
    models = {version: Watched(Classes(10)) for version in (V, ("digits", "2.0"))}
    opened = Watch(Keyring.new(), SqliteLedger(tmp_path / "l.db"), models=models, maturity=0.0)
    yield opened
    opened.close()


def scraped(watch):
    """The rows of each family, by its name."""
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in WatchCollector(watch, Requests()).collect()
    }


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
    assert told["calib_incidents_open"] == {V: 1, ("digits", "2.0"): 0}
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


def test_an_onset_that_is_not_known_is_not_published(watch):
    drifted(watch, since=math.nan)
    told = scraped(watch)
    assert not told["calib_incident_onset_timestamp_seconds"]
    assert told["calib_incident_gap"] == {V: pytest.approx(0.12)}


def test_the_age_of_the_oldest_window_is_that_of_this_scrape(watch):
    (age,) = scraped(watch)["calib_windows_age_seconds"].values()
    assert 0 <= age < 60
