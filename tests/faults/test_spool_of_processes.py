"""Processes that share a spool and are killed, forked, or out of room: all is counted once, or kept."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from calib_serve.receipts.destination import Batch
from calib_serve.receipts.outbox import Outbox

pytestmark = pytest.mark.server

WORKER = """
import os, resource, sys, time
from prometheus_client import CollectorRegistry
from calib_serve import Keyring, Reporter
spool, what = sys.argv[1:]
reporter = Reporter(3, model="m", version="1", keyring=Keyring.new(), watch="http://127.0.0.1:9",
                    spool=spool, registry=CollectorRegistry(), flush_seconds=0.02)
served = 0
def serve(n):
    global served
    for _ in range(n):
        reporter.served([[0.1, 0.8, 0.1]])
        reporter.served([[0.1, 0.8, 0.1]], id=f"{os.getpid()}-{served}")
        served += 2
"""

KILLED = """
while True:
    serve(20)
    print(served, flush=True)
    time.sleep(0.005)
"""

FORKED = """
serve(300)
time.sleep(0.3)
child = os.fork()
serve(200)
time.sleep(0.3)
reporter.close()
print(served if child else served - 600, flush=True)
if child:
    os.waitpid(child, 0)
"""


class Home:
    """A watch that counts each batch once under its name."""

    sample_rate = 0.0

    def __init__(self) -> None:
        self.counted = dict[str, int]()

    def count(self, batch: Batch) -> list[str]:
        self.counted.setdefault(batch.name, sum(batch.counts))
        return [""] * len(batch.items)


def counted(spool: Path) -> int:
    """What the next process sends; it finds nothing damaged, and leaves nothing."""
    failed, home = list[Any](), Home()
    box = Outbox(home, lambda *what, **_: failed.append(what), model="m", version="1", spool=spool)  # type: ignore[arg-type]
    assert box.send(at_once=True)
    assert not failed
    assert not [one for one in spool.rglob("*") if one.is_file()]
    return sum(home.counted.values())


def worker(spool: Path, what: str) -> subprocess.Popen[str]:
    code = textwrap.dedent(WORKER) + what
    command = [sys.executable, "-c", code, str(spool), "x"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_workers_that_are_killed_while_they_write_leave_all_but_their_last_moment(tmp_path: Path) -> None:
    rng, served, before = random.Random(0), 0, 0
    for _ in range(3):
        with worker(tmp_path / "s", KILLED) as one, worker(tmp_path / "s", KILLED) as other:
            for process in (one, other):
                assert process.stdout is not None
                until = time.monotonic() + 0.5 + rng.random()
                lines = [(time.monotonic(), int(process.stdout.readline()))]
                while lines[-1][0] < until:
                    lines.append((time.monotonic(), int(process.stdout.readline())))
                process.send_signal(signal.SIGKILL)
                rest = process.stdout.read().split()
                served += max([lines[-1][1], *map(int, rest[:-1])]) + 40
                before += max([n for at, n in lines if at < lines[-1][0] - 0.4], default=0)
    found = counted(tmp_path / "s")
    assert 0 < before <= found <= served


def test_a_fork_sends_its_own_and_its_parent_its_own(tmp_path: Path) -> None:
    with worker(tmp_path / "s", FORKED) as one:
        assert one.stdout is not None
        assert sum(map(int, one.stdout.read().split())) == counted(tmp_path / "s") == 1400
    assert one.returncode == 0
