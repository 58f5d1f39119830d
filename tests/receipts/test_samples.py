"""The sample log is bounded, joins late labels, and refitting on it brings ECE down or does nothing."""

import time

import numpy as np
import pytest
from command_line import calib_serve

from calib_serve.artifact import Artifact, Head, LogitMap
from calib_serve.core.bins import Bins
from calib_serve.monitor.checks import samples_check
from calib_serve.receipts import Label, Receipt
from calib_serve.receipts.samples import SampleLog, read_samples
from calib_serve.scores import softmax

pytestmark = pytest.mark.store


def nonces(count, start=0):
    rng = np.random.default_rng(start)
    return [rng.bytes(10) for _ in range(count)]


def label(nonce, value, version="1"):
    return Label(Receipt("k", "m", version, 0.0, nonce, 0, 0.5), value)


def overconfident(rng, count, sharp=3.0):
    """Logits of 4 classes that say ``sharp`` times too much, and labels."""
    true = rng.normal(size=(count, 4)) * 1.5
    labels = np.array([rng.choice(4, p=p) for p in softmax(true)])
    return true * sharp, labels


def test_predictions_and_late_labels_are_joined_by_receipt_over_processes(tmp_path):
    names, rng = nonces(50), np.random.default_rng(0)
    z = rng.normal(size=(50, 4))
    one, two = SampleLog(tmp_path, rate=1.0), SampleLog(tmp_path, rate=1.0)
    one.predicted("m", "1", names, z, times=np.arange(50.0))
    one.close()
    two.labelled([label(n, i % 4) for i, n in reversed(list(enumerate(names)))][:30])
    two.labelled([label(b"x" * 10, 1), label(names[0], 3, version="2")])
    two.close()
    found = read_samples(tmp_path, model="m", version="1")
    np.testing.assert_array_equal(found.times, np.arange(20.0, 50.0))
    np.testing.assert_allclose(found.logits, z[20:], rtol=1e-3)
    np.testing.assert_array_equal(found.labels, np.arange(20, 50) % 4)
    assert found.predictions == 50
    assert len(read_samples(tmp_path, model="m", version="1", since=40.0).labels) == 10


def test_two_programs_with_other_rates_in_one_folder_are_said(tmp_path):
    now = 1_000_000.0
    reporter, watch = (SampleLog(tmp_path, rate=rate, clock=lambda: now) for rate in (0.5, 0.1))
    names = nonces(100)
    reporter.predicted("m", "1", names, np.zeros((100, 2)), times=np.full(100, now))
    reporter.flush()
    assert samples_check(watch).run() is None
    watch.labelled([label(name, 0) for name in names])
    watch.take_back("m", "1", names[:1])
    watch.flush()
    reporter.flush()
    assert "at the rate 0.5, and this one at 0.1" in samples_check(watch).run()
    assert "at the rate 0.1, and this one at 0.5" in reporter.trouble
    now += 301
    again = SampleLog(tmp_path, rate=0.1, clock=lambda: now)
    for log in (watch, again):
        log.labelled([label(name, 0) for name in names])
        log.flush()
        assert samples_check(log).run() is None


def test_what_is_kept_is_bounded_in_bytes_and_days(tmp_path):
    now = 1_000_000.0
    log = SampleLog(tmp_path, rate=1.0, days=1, max_bytes=100_000, clock=lambda: now)
    for step in range(40):
        now += 60
        log.predicted("m", "1", nonces(100, step), np.zeros((100, 20)), times=np.full(100, now))
        log.flush()
    assert sum(shard.stat().st_size for shard in tmp_path.iterdir()) <= 100_000
    kept = read_samples(tmp_path, model="m", version="1").predictions
    assert 0 < kept < 4000
    now += 86_401 * 2
    log.flush()
    assert list(tmp_path.iterdir()) == []


def test_what_is_read_later_has_more_at_the_end_and_none_in_between(tmp_path):
    """The evidence of a refit goes on only if earlier samples stay where they were."""
    now = 1000.0
    log = SampleLog(tmp_path, rate=1.0, clock=lambda: now)
    names = nonces(30)
    log.predicted("m", "1", names, np.arange(60.0).reshape(30, 2), times=np.arange(30.0))
    log.flush()
    read = []
    for order in ([7, 3, 20], [1, 29], [0, 15]):  # labels come late, and out of order
        now += 60
        log.labelled([label(names[i], 0) for i in order])
        log.flush()
        read.append(read_samples(tmp_path, model="m", version="1").times.tolist())
    assert read == [[3, 7, 20], [3, 7, 20, 1, 29], [3, 7, 20, 1, 29, 0, 15]]


def fill(folder, count, sharp, seed=0):
    rng = np.random.default_rng(seed)
    z, y = overconfident(rng, count, sharp)
    names = nonces(count, seed)
    log = SampleLog(folder, rate=1.0)
    log.predicted("m", "1", names, z, times=time.time() - np.arange(count, 0, -1.0))
    log.labelled([label(n, int(k)) for n, k in zip(names, y, strict=True)])
    log.close()


def refit(tmp_path, *more):
    arguments = ["refit", str(tmp_path / "old"), "--samples", str(tmp_path / "log"), "--model", "m:1"]
    options = ["-o", str(tmp_path / "new"), "--method", "temperature"]
    return calib_serve(*arguments, *options, *more)


def test_refit_brings_ece_down_after_drift_and_keeps_the_head(tmp_path):
    head = Head((np.eye(4, dtype="f4"),), (np.zeros(4, "f4"),))
    old = Artifact(
        (head, LogitMap.temperature(1.0)), method="temperature", classes=4, class_names=tuple("abcd")
    )
    old.save(tmp_path / "old")
    fill(tmp_path / "log", 1500, sharp=3.0)
    result = refit(tmp_path)
    assert result.exit_code == 0, result.output
    assert "on the latest 450 of 1500 samples" in result.stdout, result.stdout
    new = Artifact.load(tmp_path / "new")
    z, y = overconfident(np.random.default_rng(9), 4000)
    eces = []
    for artifact in (old, new):
        p = artifact.probs(z)
        eces.append(Bins.tally(p.max(axis=1), p.argmax(axis=1) == y).ece())
    assert eces[0] > 0.15
    assert eces[1] < 0.03
    assert isinstance(new.steps[0], Head)
    assert new.class_names == old.class_names
    assert new.data["refit_of"] == old.fingerprint
