"""Reporters in processes that fork, end, are ended and die, with a real ``calib-serve watch``."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from real_servers import Server, SharedWatch

pytestmark = pytest.mark.server

MAKE = """
import multiprocessing, os, sys, threading, time
from calib_serve import Reporter
def make(url, keyring, **options):
    return Reporter(3, model=model, version="1", keyring=keyring, watch=url, **options)
P = [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]
url, keyring, model = sys.argv[1:4]
"""

PROGRAMS = {
    # Each serves 20 predictions, by its own way to start and to end.
    "a process that ends by itself": """
reporter = make(url, keyring, flush_seconds=60)
for _ in range(10): reporter.served(P)
""",
    "children by fork, after the parent has served": """
reporter = make(url, keyring, flush_seconds=60)
for _ in range(2): reporter.served(P)
children = []
for _ in range(4):
    if not (child := os.fork()):
        for _ in range(2): reporter.served(P)
        sys.exit()
    children.append(child)
for child in children: os.waitpid(child, 0)
""",
    "forks while threads serve": """
reporter = make(url, keyring, flush_seconds=0.001)
def serve():
    for _ in range(4): reporter.served(P)
threads = [threading.Thread(target=serve) for _ in range(2)]
for thread in threads: thread.start()
for _ in range(2):
    if not (child := os.fork()):
        reporter.served(P)
        sys.exit()
    os.waitpid(child, 0)
for thread in threads: thread.join()
""",
}


def started(program: str, watch: Server, model: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", MAKE + program, watch.url, str(watch.folder / "keys.json"), model]
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", PROGRAMS)
def test_every_prediction_of_a_process_is_counted_once(how: str, shared_watch: SharedWatch) -> None:
    for _ in range(3):
        model = shared_watch.model()
        process = started(PROGRAMS[how], shared_watch, model)
        _, errors = process.communicate(timeout=120)
        assert process.returncode in (0, 1, 3), errors
        # Of a watch that is slow for seconds, a process that ends says what it could not deliver.
        lost = sum(map(int, re.findall(r"(\d+) predictions were never counted", errors)))
        assert shared_watch.total(model) + lost == 20, errors
        if not lost:
            break
    assert lost == 0, "three times it was said that the watch is slow"


def test_a_process_ends_in_time_though_the_watch_hangs_and_says_what_is_lost(tmp_path: Path) -> None:
    server = Server(tmp_path, models=("digits:1=3",))
    with server:
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            process = started("reporter = make(url, keyring)\nreporter.served(P)\n", server, "digits")
            _, errors = process.communicate(timeout=90)
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
    assert time.monotonic() - began < 60
    assert "2 predictions were never counted" in errors


def test_workers_of_prometheus_multiprocess_mode_add_up(tmp_path: Path) -> None:
    program = """
import prometheus_client, prometheus_client.multiprocess
reporter = Reporter(3, model="digits", version="1.0", keyring=keyring)
def serve():
    for _ in range(4): reporter.served(P)
context = multiprocessing.get_context("fork")
children = [context.Process(target=serve) for _ in range(2)]
for child in children: child.start()
for child in children: child.join()
registry = prometheus_client.CollectorRegistry()
prometheus_client.multiprocess.MultiProcessCollector(registry)
found = [one.value for f in registry.collect() for one in f.samples if one.name == "calib_predictions_total"]
assert sum(found) == 16, found
assert len(found) == 15, found
"""
    from calib_serve import Keyring

    Keyring.create(tmp_path / "keys.json")
    folder = tmp_path / "metrics"
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-c", MAKE + program, "", str(tmp_path / "keys.json"), ""],
        check=True,
        timeout=120,
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
    )
