"""One drift is one incident, however often the detector alarms while it lasts, and none is lost."""

import numpy as np
import pytest

from calib_serve.ledger import Ledger
from calib_serve.monitor import Detector, incidents
from calib_serve.monitor.incidents import IncidentLog

pytestmark = pytest.mark.store

V, W = ("m", "1"), ("m", "2")
NOW = 1_700_000_000.0


class Stream:
    """Labels through a detector into the log, in batches, one label a second."""

    def __init__(self, ledger, version=V, *, arl=1e6):
        self.log, self.version, self.detector = IncidentLog(ledger), version, Detector(arl=arl)
        self.rng, self.now, self.alarms = np.random.default_rng(0), NOW, 0

    def labels(self, count, gap, *, batch=100):
        """``gap``: confidence minus accuracy."""
        for at in range(0, count, batch):
            n = min(batch, count - at)
            c = self.rng.uniform(0.6, 0.9, n)
            y = self.rng.random(n) < c - gap
            first, times = self.detector.labels + 1, self.now + np.arange(n)
            alarms = self.detector.update(c, y, time=times)
            self.now += n
            self.alarms += len(alarms)
            self.log.observe(self.version, list(c - y), alarms, first=first, now=self.now)
        return [one for one in self.log.latest() if (one.model, one.version) == self.version]


@pytest.fixture
def stream(tmp_path):
    ledger = Ledger(tmp_path / "l.db")
    yield Stream(ledger)
    ledger.close()


def test_one_drift_with_many_alarms_is_one_incident_which_recovery_closes(stream):
    stream.labels(1000, 0.0)
    began = stream.now
    (one,) = stream.labels(3000, 0.2)
    assert stream.alarms > 3
    assert (one.open, one.alarms, one.direction) == (True, stream.alarms, "overconfident")
    assert one.gap == pytest.approx(0.2, abs=0.03)
    assert abs(one.onset - began) < 200
    assert one.labels == pytest.approx(3000, abs=200)
    (one,) = stream.labels(5000, 0.0)
    assert one.closed_by == "recovery"
    assert one.closed < stream.now


@pytest.mark.parametrize(("apart", "most"), [(False, 1), (True, 2)])
def test_a_small_drift_that_lasts_is_hardly_ever_said_to_be_over(tmp_path, apart, most):
    """By three times the labels of the latest alarm, seven and three incidents of these were closed."""
    closed = 0
    for seed in range(4):
        rng, detector = np.random.default_rng(seed), Detector()
        ledger = Ledger(tmp_path / f"{seed}.db")
        log = IncidentLog(ledger)
        for first in range(1, 30_000, 1000):
            c = rng.uniform(0.6, 0.95, 1000)
            gap = np.where(c > 0.775, 0.1, -0.09) if apart else 0.05
            y = rng.random(1000) < c - gap
            log.observe(V, list(c - y), detector.update(c, y), first=first, now=NOW)
        assert len(log.latest()) >= 1
        closed += sum(not one.open for one in log.latest())
        ledger.close()
    assert closed <= most


def test_the_list_is_of_the_last_ones_and_of_those_that_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr(incidents, "_MOST", 40)
    ledger = Ledger(tmp_path / "l.db")
    lasting = Stream(ledger, W)
    (still,) = lasting.labels(100, 0.5)
    stream = Stream(ledger)
    for _ in range(60):
        (*_, one) = stream.labels(100, 0.5)
        stream.log.close(one.id, by="Ada", now=stream.now)
    found = stream.log.latest()
    assert len(found) == 41
    assert found[0].id == still.id
    assert found[0].open
    assert len({one.id for one in found}) == 41
    ledger.close()
