"""What labels cost over several processes and stores, and what ledgers take to remember them; for labels.py.

Each process signs its receipts first; all begin together, and each says its CPU seconds and when it began and
ended. A rate by CPU is what the processes would do with a core each and a store that never kept them waiting;
a rate by the clock is what this machine did, and means little where others use its cores.
"""

from __future__ import annotations

import contextlib
import hmac
import multiprocessing
import random
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peers

from calib_serve.nonces import PER_EPOCH, Nonces
from calib_serve.receipts import Keyring, Label, Receipt
from calib_serve.watch.intake import Classes, Intake
from calib_serve.watch.ledger import Entry, Key, Ledger, open_ledger

REQUEST = 500  # labels of one request
A_MONTH = 30 * 100_000_000  # predictions of 100 million a day


@contextlib.contextmanager
def redis_server(folder: Path, *more: str) -> Iterator[str]:
    """A Redis of this run's own, which writes every label to its disk before it answers."""
    if not (program := shutil.which("redis-server")):
        sys.exit("there is no redis-server here")
    port = peers.free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", *more]
    durable = ["--appendonly", "yes", "--appendfsync", "always"]
    server = subprocess.Popen([program, *options, *durable], stdout=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def redis_cluster(folder: Path) -> Iterator[str]:
    """Three such nodes as a Redis Cluster."""
    with contextlib.ExitStack() as nodes:
        addresses = []
        for name in "012":
            (folder / name).mkdir()
            url = nodes.enter_context(redis_server(folder / name, "--cluster-enabled", "yes"))
            addresses.append(url.removeprefix("redis://").removesuffix("/0"))
        made = ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"]
        subprocess.run(made, check=True, capture_output=True, timeout=120)
        time.sleep(3)  # until every node has heard of all slots
        yield f"redis+cluster://{addresses[0]}"


def over_processes(labels: int, rounds: int) -> dict[str, Any]:
    """One and two processes on one store, on stores of their own, and on one in partitions."""
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as redis_folder,
        redis_server(Path(redis_folder)) as redis,
        tempfile.TemporaryDirectory() as cluster_folder,
        redis_cluster(Path(cluster_folder)) as cluster,
    ):
        for turn in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                files = [f"{folder}/{name}.db" for name in "abcd"]
                parts = [f"{folder}/{name}.db?parts=4" for name in "ef"]
                for name, stores in {
                    "one process, one file": files[:1],
                    "two processes, one file": files[1:2] * 2,
                    "two processes, two files": files[2:4],
                    "one process, one Redis": [redis],
                    "two processes, one Redis": [redis] * 2,
                    "one process, four partitions": parts[:1],
                    "two processes, four partitions": parts[1:] * 2,
                    "one process, a Redis Cluster": [cluster],
                    "two processes, a Redis Cluster": [cluster] * 2,
                }.items():
                    found.setdefault(name, []).append(together(stores, labels, redis=redis, turn=turn))
    rates = {name: _medians(runs) for name, runs in found.items()}
    for name, alone in (
        ("two processes, one file", "one process, one file"),
        ("two processes, two files", "one process, one file"),
        ("two processes, one Redis", "one process, one Redis"),
        ("two processes, four partitions", "one process, four partitions"),
        ("two processes, a Redis Cluster", "one process, a Redis Cluster"),
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


def together(stores: list[str], labels: int, *, redis: str, turn: int) -> dict[str, float]:
    """One process for each of the stores, at once; labels a second of them all."""
    spawn = multiprocessing.get_context("spawn")
    begin, told = spawn.Barrier(len(stores)), spawn.Queue()
    workers = [
        spawn.Process(target=_work, args=(store, f"w{i}", labels, begin, told))
        for i, store in enumerate(stores)
    ]
    before = _server_cpu(redis)
    for one in workers:
        one.start()
    runs = [told.get() for _ in workers]
    for one in workers:
        one.join()
    wall = max(run["ended"] for run in runs) - min(run["began"] for run in runs)
    server = (_server_cpu(redis) - before) / (labels * len(stores)) if stores[0] == redis else 0.0
    return {
        "per_cpu_second": sum(labels / run["cpu"] for run in runs),
        "per_wall_second": labels * len(stores) / wall,
        "cpu_us_a_label": 1e6 * statistics.mean(run["cpu"] for run in runs) / labels,
        "hmac_us": 1e6 * statistics.mean(run["hmac"] for run in runs),
        "hmacs": statistics.mean(run["cpu"] / labels / run["hmac"] for run in runs),
        "store_cpu_us_a_label": 1e6 * server,
    }


def _work(store: str, writer: str, labels: int, begin: Any, told: Any) -> None:
    ring = Keyring.new()
    facts = {"model": "digits", "version": "1.0"}
    items = [
        {"receipt": ring.sign(**facts, predicted=i % 10, confidence=0.9), "label": i % 10}
        for i in range(labels)
    ]
    ledger = open_ledger(store, writer=writer)
    intake = Intake(ring, ledger, models={("digits", "1.0"): Classes(10)}, detect=False)
    begin.wait()
    began, cpu = time.time(), time.process_time()
    for at in range(0, labels, REQUEST):
        assert all(one.accepted for one in intake.take(items[at : at + REQUEST]))
    cpu, ended = time.process_time() - cpu, time.time()
    ledger.close()
    told.put({"cpu": cpu, "began": began, "ended": ended, "hmac": _hmac_of(items[0]["receipt"])})


def _hmac_of(receipt: str, times: int = 20_000) -> float:
    """CPU seconds of the HMAC-SHA256 that a receipt needs, over as many bytes as it has."""
    key, body = bytes(32), receipt.encode()
    began = time.process_time()
    for _ in range(times):
        hmac.digest(key, body, "sha256")
    return (time.process_time() - began) / times


def _server_cpu(address: str) -> float:
    import redis

    with redis.Redis.from_url(address) as server:
        cpu = server.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def remembered(epochs: int) -> dict[str, Any]:
    """Bytes that a store keeps of receipts that were counted, by the share of predictions with a label."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder)) as redis:
        for name, share, many in (("dense", 1.0, max(epochs // 10, 1)), ("1 % sparse", 0.01, epochs)):
            for kind, where in (("SQLite", f"{folder}/{many}.db"), ("Redis", redis)):
                ledger = open_ledger(where)
                labels = _count(ledger, share, many)
                ledger.close()
                taken = _file_bytes(where) if kind == "SQLite" else _redis_bytes(redis)
                predictions = many * PER_EPOCH
                found[f"{kind}, {name}"] = {
                    "predictions": predictions,
                    "labels": labels,
                    "bytes_a_prediction": taken / predictions,
                    "bytes_a_label": taken / labels,
                    "gb_of_a_month": taken / predictions * A_MONTH / 1e9,
                }
    return found


def _count(ledger: Ledger, share: float, epochs: int) -> int:
    drawn, rng, now, rows, labels = Nonces(), random.Random(0), time.time(), [], 0
    for i in range(epochs * PER_EPOCH):
        nonce = drawn.draw()
        if rng.random() < share:
            label = Label(Receipt("k", "m", "1", now, nonce, 1, 0.9), 1)
            rows.append(Entry(label, now, (Key("m", "1"),)))
        if len(rows) == REQUEST or (rows and i == epochs * PER_EPOCH - 1):
            labels += ledger.accept(rows, detect=False).count("counted")
            rows.clear()
    return labels


def _file_bytes(path: str) -> int:
    """Pages of the epochs' table and index, where SQLite tells; else the length of what is in them."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        try:
            asked = "SELECT sum(pgsize) FROM dbstat WHERE name LIKE 'epochs%'"
            return int(file.execute(asked).fetchone()[0])
        except sqlite3.Error:
            asked = "SELECT sum(length(bits) + length(epoch) + 3 * 8) FROM epochs"
            return int(file.execute(asked).fetchone()[0])


def _redis_bytes(address: str) -> int:
    """By MEMORY USAGE, of all keys that remember receipts; empties the store."""
    import redis

    with redis.Redis.from_url(address) as server:
        keys = [*server.scan_iter("*:epoch*", count=1000), *server.scan_iter("*:bits")]
        taken = sum(int(server.memory_usage(key, samples=0) or 0) for key in keys)
        server.flushall()
    return taken
