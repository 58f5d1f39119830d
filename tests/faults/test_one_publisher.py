"""Processes that share a ledger publish each label once, whoever starts, dies, freezes or wakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from ledgers import open_one
from processes import started
from real_prometheus import prometheus
from typer.testing import CliRunner

from calib_serve.cli import app as cli
from calib_serve.errors import InputError
from calib_serve.receipts import Keyring
from calib_serve.watch.ledger import SqliteLedger, WriterLease

pytestmark = pytest.mark.store


def labels_of(server) -> dict[str, float]:
    """The labels that it publishes, by writer."""
    found: dict[str, float] = {}
    for line in httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines():
        if line.startswith("calib_feedback_total{"):
            writer = line.partition('writer="')[2].partition('"')[0]
            found[writer] = found.get(writer, 0.0) + float(line.split()[-1])
    return found


@pytest.mark.nightly
@pytest.mark.server
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_two_watches_on_one_ledger_show_prometheus_each_label_once(
    make_server, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    where = request.getfixturevalue("empty_redis") if kind == "redis" else str(tmp_path / "ledger.db")
    one, two = (make_server("--ledger", where) for _ in range(2))
    targets = [(f"127.0.0.1:{server.port}", {}) for server in (one, two)]
    with prometheus(tmp_path, targets) as found:
        found.wait("count(calib_feedback_total) == 30")
        one.label(60), two.label(40)
        assert labels_of(one) | labels_of(two) == {"": 60, "2": 40}
        found.wait("sum(calib_feedback_total) >= 100")
        assert found.number("sum(calib_feedback_total)") == 100
        assert found.risen("calib_feedback_total") == 100
        # Extrapolated by a scrape at first; shown twice, it would come down to 200.
        found.wait("99 < model_version:calib_labels:1h < 150")


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


def test_a_name_that_a_live_process_holds_is_refused_with_who_holds_it(tmp_path: Path) -> None:
    Keyring.new().save(tmp_path / "keys.json")
    ledger = SqliteLedger(tmp_path / "l.db")
    lease = lease_on(ledger, name="a", strict=True)
    options = ["--keyring", str(tmp_path / "keys.json"), "--ledger", str(tmp_path / "l.db")]
    result = CliRunner().invoke(cli, ["watch", "d:1=3", "--writer", "a", *options])
    assert isinstance(result.exception, InputError)
    assert f"'a' of this ledger is held by process {os.getpid()} on " in str(result.exception)
    lease.close(), ledger.close()


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
