"""Seeds that an application sets change no draw, and its handlers of signals wait for no lock."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from calib_serve import Keyring, Reporter
from calib_serve.artifact import Artifact, LogitMap
from calib_serve.receipts.nonces import DRAWS

LABELS = 200


def test_an_application_that_seeds_each_request_gets_other_labels_each_time():
    artifact = Artifact(
        (LogitMap.temperature(1.0),), method="t", model={"outputs": "label_logits"}, classes=LABELS
    )
    rng, chosen, seeded = np.random.default_rng(0), np.zeros(LABELS), set()
    with Reporter(
        artifact, model="m", version="1", keyring=Keyring.new(), registry=CollectorRegistry()
    ) as reporter:
        for _ in range(500):
            random.seed(42)
            np.random.seed(42)
            (row,) = reporter.served_labels(rng.random((1, LABELS)))
            chosen[[one.label for one in row]] += 1
            seeded.add(random.random())
    assert len(seeded) == 1, "the application's own generator is as it seeded it"
    # 80 of 500 each, with a standard deviation of 8.2: six of them, for 200 labels, one time in a million.
    assert (abs(chosen - 80) < 50).all()


def test_a_policy_asks_for_its_share_whatever_seed_the_application_sets():
    with Reporter(
        10, model="m", version="1", keyring=Keyring.new(), registry=CollectorRegistry(), policy="0.1"
    ) as one:
        for seed in (42, 2**31 + 11):
            asked = 0
            for _ in range(3000):
                random.seed(seed)
                asked += one.served([0.1] * 10)[0].wanted
            assert abs(asked - 300) < 100  # six standard deviations


def draws(pipe):
    pipe.send([DRAWS.random() for _ in range(4)])


@pytest.mark.store
def test_a_forked_process_draws_otherwise_than_its_parent():
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=draws, args=(theirs,))
    process.start()
    found = ours.recv()
    process.join(30)
    assert found != [DRAWS.random() for _ in range(4)]


HANDLER = """
import faulthandler, signal, time
from prometheus_client import CollectorRegistry
from calib_serve import Keyring, Reporter

faulthandler.dump_traceback_later(40, exit=True)
registry = CollectorRegistry()
one = Reporter(3, model="m", version="1", keyring=Keyring.new(), registry=registry, policy="50/day")
good, bad, calls, receipts = [[0.7, 0.2, 0.1]] * 3, [[0.7, 0.2, float("nan")]], 0, []

def serve(*_):
    global calls
    calls += 1
    receipts.extend(map(str, one.served(good)))
    one.served(bad)

serve()
signal.signal(signal.SIGALRM, serve)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.0007)
end = time.monotonic() + 5
while time.monotonic() < end:
    serve()
signal.setitimer(signal.ITIMER_REAL, 0)
one.flush()
of = {"model": "m", "version": "1"}
total = sum(registry.get_sample_value("calib_predictions_total", {**of, "bin": str(b)}) for b in range(15))
print(total == len(receipts), registry.get_sample_value("calib_invalid_outputs_total", of) * 3 == total,
      len(set(receipts)) == len(receipts), len(receipts) > 1000)
one.close()
"""


@pytest.mark.store
@pytest.mark.parametrize("processes", ["one", "several"])
def test_a_signal_s_handler_that_serves_while_it_serves_neither_hangs_nor_loses(tmp_path, processes):
    # With several, prometheus-client's counters do more under their locks.
    of = {} if processes == "one" else {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", HANDLER]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=os.environ | of, check=False
    )
    assert done.stdout.split() == ["True"] * 4, done.stdout + done.stderr


LET_GO = """
from prometheus_client import CollectorRegistry
from calib_serve import Keyring, Reporter
registry = CollectorRegistry()
for version in "1234":
    reporter = Reporter(3, model="m", version=version, keyring=Keyring.new(), registry=registry)
    reporter.served([[0.2, 0.3, 0.5]] * 6)
"""


@pytest.mark.server
def test_the_end_of_a_process_waits_for_reporters_that_were_let_go() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LET_GO], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
