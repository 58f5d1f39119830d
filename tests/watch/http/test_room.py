"""A scrape has a limit of series: versions in use come first, and what is left out is told."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from calib_serve.artifact import Clause, Contract
from calib_serve.receipts import Keyring
from calib_serve.watch.batch import ServedPrediction
from calib_serve.watch.http.exporter import export
from calib_serve.watch.http.room import Room
from calib_serve.watch.intake import Classes
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.service import Watch, Watched

VERSIONS = [("m", str(i)) for i in range(12)]
A_VERSION = 300  # series, more than a version without segments has


def make_watch(folder, versions=VERSIONS, contract=None, **options):
    return Watch(
        Keyring.new(),
        SqliteLedger(folder / "l.db"),
        models={version: Watched(Classes(2), contract=contract) for version in versions},
        maturity=0.0,
        **options,
    )


def serve(watch, versions, *, segment="", count=1):
    watch.predictions(
        [ServedPrediction(*v, predicted=1, confidence=0.8, segment=segment) for v in versions] * count
    )


class Scrape:
    def __init__(self, registry):
        self.samples = [one for family in registry.collect() for one in family.samples]

    def versions(self, name="calib_predictions_total"):
        return {(s.labels["model"], s.labels["version"]) for s in self.samples if s.name == name}

    def left_out(self):
        told = (s for s in self.samples if s.name == "calib_versions_left_out")
        return {s.labels["series"]: s.value for s in told}

    def sum(self, name, version):
        of = [s.value for s in self.samples if s.name == name and s.labels.get("version") == version[1]]
        return sum(of)


def scraped(watch, *, most):
    registry = CollectorRegistry()
    export(watch, registry, max_series=most)
    return lambda: Scrape(registry)


def test_all_is_told_while_it_fits(tmp_path):
    with make_watch(tmp_path) as watch:
        serve(watch, VERSIONS[:3], segment="north")
        found = scraped(watch, most=50_000)()
        assert found.versions() == set(VERSIONS)
        assert found.versions("calib_segment_predictions_total") == set(VERSIONS[:3])
        assert found.left_out() == {"all": 0, "segments": 0, "windows": len(VERSIONS) - found_windows(found)}
        watch.checks.run()
        assert watch.checks.reasons()["series"] is None


def found_windows(found):
    return len(found.versions("calib_window_predictions"))


@pytest.mark.parametrize("fit", [1, 4])
def test_versions_in_use_come_first_and_the_rest_is_told(tmp_path, fit):
    with make_watch(tmp_path) as watch:
        scrape = scraped(watch, most=fit * A_VERSION)
        used = VERSIONS[-fit:]
        serve(watch, used, segment="north", count=3)
        found = scrape()
        assert set(used) <= found.versions()
        assert len(found.samples) <= (fit + 1) * A_VERSION
        assert found.left_out()["all"] == len(VERSIONS) - len(found.versions()) > 0
        assert [found.sum("calib_predictions_total", v) for v in used] == [3] * fit  # with its segments
        assert found.versions("calib_segment_predictions_total") == set()
        watch.checks.run()
        assert "segments" in watch.checks.reasons()["series"]
        assert watch.checks.status == "degraded"


def test_a_contract_takes_the_room_of_its_clauses(tmp_path):
    contract = Contract(tuple(Clause("act", 0.98, above=0.9, segment=str(i)) for i in range(20)))
    with make_watch(tmp_path, contract=contract) as watch:
        serve(watch, VERSIONS)
        most = len(VERSIONS) * A_VERSION
        found = scraped(watch, most=most)()
        assert 0 < len(found.versions()) < len(VERSIONS)
        told = [one for one in found.samples if "version" in one.labels]
        assert len(told) <= most
        assert found.versions("calib_contract_promise")
        assert found.left_out()["all"] == len(VERSIONS) - len(found.versions())


def test_sums_go_on_where_they_stood_when_a_version_comes_back(tmp_path):
    clock = [0.0]
    with make_watch(tmp_path) as watch:
        a, b = VERSIONS[:2]
        serve(watch, [a], count=5)
        watch.counted_at = {a: clock[0]}
        collector = scraped(watch, most=A_VERSION)
        assert collector().sum("calib_predictions_total", a) == 5
        serve(watch, [b], count=2)
        watch.counted_at = {}
        assert a in collector().versions()
        registry = CollectorRegistry()
        watch.counted_at = {b: 1e12}  # a is idle by now
        export(watch, registry, max_series=A_VERSION)
        assert Scrape(registry).sum("calib_predictions_total", b) == 2
        serve(watch, [a], count=2)
        watch.counted_at = {a: 1e12}
        registry = CollectorRegistry()
        export(watch, registry, max_series=A_VERSION)
        assert Scrape(registry).sum("calib_predictions_total", a) == 7
        assert watch.publication.rollbacks == 0


def test_a_process_that_told_of_all_does_not_find_the_ledger_behind_when_it_tells_of_some(tmp_path):
    path, told = tmp_path / "l.db", {}
    for most in (50_000, A_VERSION, 50_000):
        models = dict.fromkeys(VERSIONS, 2)
        with Watch.open(models, keyring=Keyring.new(), ledger=path, maturity=0.0, writer="w") as watch:
            serve(watch, VERSIONS, segment="north")
            found = scraped(watch, most=most)()
            told = {version: found.sum("calib_predictions_total", version) for version in found.versions()}
            assert watch.publication.rollbacks == 0
    assert told == dict.fromkeys(VERSIONS, 3)


def test_segments_fill_the_room_that_versions_leave(tmp_path):
    two = VERSIONS[:2]
    with make_watch(tmp_path, two) as watch:
        for i in range(4):
            serve(watch, two, segment=f"s{i}")
        # 4 segments of 15 bins and 7 series are 420 of a version.
        found = scraped(watch, most=2 * A_VERSION + 420)()
        assert found.versions() == set(two)
        assert len(found.versions("calib_segment_predictions_total")) == 1
        assert found.left_out()["segments"] == 1


def test_those_chosen_stay_while_they_are_in_use():
    now = [0.0]
    room, sizes = Room(clock=lambda: now[0]), dict.fromkeys(VERSIONS, 1)
    counted = dict.fromkeys(VERSIONS[5:8], 0.0)
    first = room.choose(sizes, counted, most=3)
    assert set(first) == set(VERSIONS[5:8])
    counted |= dict.fromkeys(VERSIONS, 10.0)
    assert set(room.choose(sizes, counted, most=3)) == set(first)
    assert room.crowded_out(sizes, counted) == len(VERSIONS) - 3
    now[0] = 7200.0
    counted |= {VERSIONS[0]: 7000.0}
    assert VERSIONS[0] in room.choose(sizes, counted, most=3)
    assert room.crowded_out(sizes, counted) == 0
    assert room.choose(sizes, counted, most=0) == []
