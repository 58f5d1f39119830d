"""What a label costs in each database: by one process and two, and the bytes that are kept of it.

Labels go through the intake, 500 a request, durable before they are acknowledged. PostgreSQL runs on this
host with what it comes with, so that its commits are on disk as well. ``benchmarks/labels.py`` reports it.
"""

from __future__ import annotations

import contextlib
import hmac
import multiprocessing
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peers
import psutil
import psycopg
from sqlalchemy import schema

from calib_serve.ledger import Ledger
from calib_serve.ledger.intake import Intake
from calib_serve.ledger.schema import LABEL
from calib_serve.receipts import Keyring
from calib_serve.receipts.classes import Classes

REQUEST = 500  # labels of one request


@contextlib.contextmanager
def postgresql() -> Iterator[tuple[str, psutil.Process]]:
    """A PostgreSQL of this run's own, and its process."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not (
        programs := found[-1].parent
        if found
        else shutil.which("initdb") and Path(shutil.which("initdb") or "").parent
    ):
        sys.exit("there is no PostgreSQL here")
    owner = [] if os.getuid() else ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        if owner:
            shutil.chown(folder, "postgres")
        data, port = f"{folder}/data", peers.free_port()
        made = [f"{programs}/initdb", "-D", data, "-U", "labels", "-A", "trust"]
        subprocess.run([*owner, *made], check=True, capture_output=True, cwd=folder)
        options = ["-p", str(port), "-k", folder, "-c", "listen_addresses=127.0.0.1"]
        server = subprocess.Popen(
            [*owner, f"{programs}/postgres", "-D", data, *options],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
        )  # fmt: skip
        try:
            ready = [f"{programs}/pg_isready", "-h", "127.0.0.1", "-p", str(port)]
            while subprocess.run(ready, check=False, capture_output=True).returncode:
                time.sleep(0.05)
            yield f"postgresql://labels@127.0.0.1:{port}/postgres", psutil.Process(server.pid)
        finally:
            server.send_signal(signal.SIGINT)  # at once: it would wait for its clients
            server.wait()


def over_processes(labels: int, rounds: int) -> dict[str, Any]:
    """One and two processes on one ledger, and on ledgers of their own."""
    found: dict[str, Any] = {}
    with postgresql() as (address, server):
        for turn in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                files = [f"{folder}/{name}.db" for name in "abcd"]
                for name, stores in {
                    "one process, one file": files[:1],
                    "two processes, one file": files[1:2] * 2,
                    "two processes, two files": files[2:4],
                    "one process, PostgreSQL": [address],
                    "two processes, PostgreSQL": [address] * 2,
                }.items():
                    found.setdefault(name, []).append(together(stores, labels, server=server, turn=turn))
    rates = {name: _medians(runs) for name, runs in found.items()}
    for name, alone in (
        ("two processes, one file", "one process, one file"),
        ("two processes, two files", "one process, one file"),
        ("two processes, PostgreSQL", "one process, PostgreSQL"),
    ):
        one = rates[alone]
        rates[name] |= {
            f"rise_{clock}": rates[name][f"per_{clock}_second"] / one[f"per_{clock}_second"]
            for clock in ("cpu", "wall")
        }
    return rates


def _medians(runs: list[dict[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    hmacs = [run["hmacs"] for run in runs]
    return found | {"hmacs_range": [min(hmacs), max(hmacs)], "rounds": len(runs)}


def together(stores: list[str], labels: int, *, server: psutil.Process, turn: int) -> dict[str, float]:
    """One process for each of the stores, at once; labels a second of them all."""
    spawn = multiprocessing.get_context("spawn")
    begin, told = spawn.Barrier(len(stores)), spawn.Queue()
    workers = [
        spawn.Process(target=_work, args=(store, f"{turn}.{i}", labels, begin, told))
        for i, store in enumerate(stores)
    ]
    before = processor_seconds(server)
    for one in workers:
        one.start()
    runs = [told.get() for _ in workers]
    for one in workers:
        one.join()
    wall = max(run["ended"] for run in runs) - min(run["began"] for run in runs)
    spent = (processor_seconds(server) - before) / (labels * len(stores)) if "://" in stores[0] else 0.0
    return {
        "per_cpu_second": sum(labels / run["cpu"] for run in runs),
        "per_wall_second": labels * len(stores) / wall,
        "cpu_us_a_label": 1e6 * statistics.mean(run["cpu"] for run in runs) / labels,
        "hmac_us": 1e6 * statistics.mean(run["hmac"] for run in runs),
        "hmacs": statistics.mean(run["cpu"] / labels / run["hmac"] for run in runs),
        "store_cpu_us_a_label": 1e6 * spent,
    }


def _work(store: str, version: str, labels: int, begin: Any, told: Any) -> None:
    ring = Keyring.new()
    facts = {"model": "digits", "version": version}
    items = [
        {"receipt": ring.sign(**facts, predicted=i % 10, confidence=0.9), "label": i % 10}
        for i in range(labels)
    ]
    ledger = Ledger(store)
    intake = Intake(ring, ledger, models={("digits", version): Classes(10)}, detect=False)
    begin.wait()
    began, cpu = time.time(), time.process_time()
    for at in range(0, labels, REQUEST):
        assert all(one.accepted for one in intake.take(items[at : at + REQUEST]).outcomes)
    cpu, ended = time.process_time() - cpu, time.time()
    ledger.close()
    told.put({"cpu": cpu, "began": began, "ended": ended, "hmac": _hmac_of(items[0]["receipt"])})


def beside_bulk(labels: int, rounds: int) -> dict[str, float]:
    """Processor time of labels, times that of the database's own bulk insert of their rows; turn by turn.

    As durable, as many a transaction, into a table with the same primary key and no index: sqlite3's
    ``executemany``, and PostgreSQL's ``COPY``, whose server's time counts on both sides.
    """
    found: dict[str, list[float]] = {"SQLite": [], "PostgreSQL": []}
    with tempfile.TemporaryDirectory() as folder, postgresql() as (address, server):
        for turn in range(rounds):
            for name, where in (("SQLite", f"{folder}/{turn}.db"), ("PostgreSQL", address)):
                ring, version = Keyring.new(), f"bulk {turn}"
                of = {"model": "digits", "version": version, "confidence": 0.9}
                items = [
                    {"receipt": ring.sign(**of, predicted=i % 10), "label": i % 10} for i in range(labels)
                ]
                ledger = Ledger(where)
                intake = Intake(ring, ledger, models={("digits", version): Classes(10)}, detect=False)

                def spent(of_server: bool = name == "PostgreSQL") -> float:
                    return time.process_time() + (processor_seconds(server) if of_server else 0.0)

                ours = spent()
                for at in range(0, labels, REQUEST):
                    intake.take(items[at : at + REQUEST])
                ours = spent() - ours
                with ledger.database.reading() as connection:
                    asked = "select * from label where version_id = (select max(id) from version)"
                    rows = [tuple(row) for row in connection.exec_driver_sql(asked)]
                assert len(rows) == labels
                made = [str(schema.CreateTable(LABEL).compile(ledger.database._engine))]
                ledger.close()
                write = _executemany if name == "SQLite" else _copy
                found[name].append(ours / write(where, made[0].replace("label (", "bulk (", 1), rows, spent))
    return {name: statistics.median(ratios) for name, ratios in found.items()}


def _executemany(where: str, made: str, rows: list[tuple[Any, ...]], spent: Callable[[], float]) -> float:
    with contextlib.closing(sqlite3.connect(f"{where}.bulk", isolation_level=None)) as file:
        file.executescript(f"pragma journal_mode = wal; pragma synchronous = full; {made}")
        began = spent()
        for at in range(0, len(rows), REQUEST):
            file.execute("begin immediate")
            file.executemany(
                f"insert into bulk values ({', '.join('?' * len(rows[0]))})", rows[at : at + REQUEST]
            )
            file.execute("commit")
        return spent() - began


def _copy(where: str, made: str, rows: list[tuple[Any, ...]], spent: Callable[[], float]) -> float:
    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute("drop table if exists bulk")
        connection.execute(made)
        began = spent()
        for at in range(0, len(rows), REQUEST):
            with connection.cursor().copy("copy bulk from stdin") as copy:
                for row in rows[at : at + REQUEST]:
                    copy.write_row(row)
        return spent() - began


def _hmac_of(receipt: str, times: int = 20_000) -> float:
    """CPU seconds of the HMAC-SHA256 that a receipt needs, over as many bytes as it has."""
    key, body = bytes(32), receipt.encode()
    began = time.process_time()
    for _ in range(times):
        hmac.digest(key, body, "sha256")
    return (time.process_time() - began) / times


def processor_seconds(server: psutil.Process) -> float:
    """Processor seconds of a PostgreSQL, also of its processes that have ended."""
    own = server.cpu_times()
    living = [one.cpu_times() for one in server.children()]
    return own.children_user + own.children_system + sum(one.user + one.system for one in (own, *living))


def kept(labels: int) -> dict[str, float]:
    """Bytes that a ledger grows by a label while its row is kept."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, postgresql() as (address, _):
        for name, where in (("SQLite", f"{folder}/l.db"), ("PostgreSQL", address)):
            ring, sizes = Keyring.new(), []
            ledger = Ledger(where)
            intake = Intake(ring, ledger, models={("digits", "1.0"): Classes(10)}, detect=False)
            for _ in range(3):
                for _ in range(labels // REQUEST):
                    tokens = [
                        ring.sign(model="digits", version="1.0", predicted=1, confidence=0.9)
                        for _ in range(REQUEST)
                    ]
                    intake.take([{"receipt": token, "label": 1} for token in tokens])
                ledger.roll_up()
                sizes.append(ledger.database.size())
            ledger.close()
            found[name] = (sizes[2] - sizes[1]) / (labels // REQUEST * REQUEST)
    return found
