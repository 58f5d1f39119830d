"""Processes that share a ledger publish each label once, whoever starts, dies, freezes or wakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ledgers import open_one
from processes import started

from calib_serve.errors import InputError
from calib_serve.watch.ledger import SqliteLedger, WriterLease

pytestmark = pytest.mark.store


HOLDER = """
import sys, time
from calib_serve.watch.ledger import SqliteLedger, WriterLease

print(repr(WriterLease(SqliteLedger(sys.argv[1])).name), flush=True)
time.sleep(600)
"""


def test_a_process_that_is_started_again_goes_on_under_the_name_of_the_one_that_died(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with started(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "''\n"
        other = SqliteLedger(path)
        assert lease_on(other).name == "2"
        os.kill(first.pid, signal.SIGSTOP)
        third = SqliteLedger(path)
        assert lease_on(third).name == "3", "who stands still keeps its name: the kernel knows that it lives"
        first.kill()
        first.wait()
        again = SqliteLedger(path)
        assert lease_on(again).name == ""
    for ledger in (other, third, again):
        ledger.close()


# --- leases -----------------------------------------------------------------------------------


def lease_on(ledger, seconds: float = 0.6, **options) -> WriterLease:
    if ledger.leases.seconds:
        ledger.leases.seconds = seconds
    return WriterLease(ledger, **options)


def test_names_are_unique_free_again_and_shared_by_those_who_ask_for_it(store) -> None:
    ledgers = [open_one(*store) for _ in range(6)]
    leases = [lease_on(ledger) for ledger in ledgers[:3]]
    assert [ledger.writer for ledger in ledgers[:3]] == ["", "2", "3"]
    leases[1].close()
    assert lease_on(ledgers[3]).name == "2"
    shared = [lease_on(ledger, name="", shared="torchserve:a") for ledger in ledgers[4:]]
    assert {one.name for one in shared} == {"4"}
    with pytest.raises(InputError, match=f"held by process {os.getpid()}"):
        lease_on(ledgers[4], name="2", strict=True)
    for one in (*leases, *shared):
        one.close()
    for ledger in ledgers:
        ledger.close()
