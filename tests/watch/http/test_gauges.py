"""Window gauges are renewed within a bounded time, however many versions there are."""

from __future__ import annotations

from calib_serve.receipts import Keyring
from calib_serve.watch.batch import ServedPrediction
from calib_serve.watch.http.gauges import WindowGauges
from calib_serve.watch.intake import Classes
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.service import Watch, Watched


def test_a_scrape_renews_no_more_versions_than_it_has_time_for(tmp_path, monkeypatch):
    versions = [("m", str(i)) for i in range(6)]
    watch = Watch(
        Keyring.new(),
        SqliteLedger(tmp_path / "l.db"),
        models={version: Watched(Classes(2)) for version in versions},
        maturity=0.0,
    )
    gauges, asked = WindowGauges(watch, seconds=0.0), []
    whole = watch.windows
    monkeypatch.setattr(watch, "windows", lambda v, names: asked.append(v) or whole(v, names))
    monkeypatch.setattr("calib_serve.watch.http.gauges._KEEP", 0.0)
    for turn in range(len(versions)):  # those that are not known yet come first
        assert set(gauges.rows(versions)) == set(versions[: turn + 1])
    assert asked == versions
    watch.predictions([ServedPrediction(*version, predicted=1, confidence=0.8) for version in versions])
    for turn in range(len(versions)):
        asked.clear()
        found = gauges.rows(versions)
        assert len(asked) == 1
        counted = sum(v for rows in found.values() for _, v in rows["calib_window_predictions"]) / 3
        assert counted == turn + 1  # the oldest is renewed first
    assert set(gauges.rows(versions[:2])) == set(versions[:2])
    watch.close()
