"""What does `calib-serve watch` cost where it watches a fleet: many models, versions and segments?

A ledger is filled through its public API: every version has predictions and labels in all its segments and
classes over all time, and in spans of the last two days; one version in ten is busy, with spans over the
whole day. Another process opens a ``Watch`` over it, and measures its background work while nothing comes and
at a given rate of labels (CPU share of one core, by process_time), a scrape of /metrics, the page's list,
one model's page, and its memory. Times are CPU seconds, as other programs share the machine; goals are in
shares of a core and of a scrape's usual interval. Writes benchmarks/results/fleet.json.

    python benchmarks/fleet.py [--models 1000] [--versions 10] [--segments 32] [--redis]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import peers
from prometheus_client import CollectorRegistry, generate_latest
from stores import redis_server

from calib_serve.receipts import Keyring
from calib_serve.watch.http.exporter import export
from calib_serve.watch.http.page import render
from calib_serve.watch.ledger import Key, Sums, open_ledger
from calib_serve.watch.service import Watch

HOUR, CLASSES, MATURITY = 3600.0, 10, 3600.0
BUSY = 10  # one version in so many
TOGETHER = 10  # versions of one transaction


def versions(args: argparse.Namespace) -> list[tuple[str, str]]:
    return [(f"model-{m:04}", str(v)) for m in range(args.models) for v in range(args.versions)]


def fill(args: argparse.Namespace, address: str, now: float) -> dict[str, float]:
    """Predictions and labels of all versions, by ``Ledger.add``; how many, and how long it took."""
    rng = np.random.default_rng(0)
    pool = [some(rng) for _ in range(256)]
    began, rows = time.process_time(), 0
    ledger = open_ledger(address)
    every = versions(args)
    for ages, chosen in ((np.array([30.0, 2.0]), every), (np.linspace(1.5, 24, args.busy), every[::BUSY])):
        for at in range(0, len(chosen), TOGETHER):
            for age in ages.tolist():
                sums = {
                    key: pool[rng.integers(len(pool))]
                    for version in chosen[at : at + TOGETHER]
                    for key in keys(version, args.segments)
                }
                ledger.add(sums, time=now - age * HOUR)
                rows += len(sums)
    counted = sum(float(one.labels.sum()) for one in ledger.sums().values())
    ledger.close()
    return {"rows": rows, "labels": counted, "cpu_s": time.process_time() - began}


def some(rng: np.random.Generator) -> Sums:
    """40 predictions of a calibrated model, 8 of them labelled some minutes later."""
    served = 1 - 0.75 * rng.beta(1, 4, 40)
    c = served[:8]
    right = rng.random(8) < c
    return Sums.served(served) + Sums.labelled(c, right.astype(float), delay=rng.exponential(600, 8))


def keys(version: tuple[str, str], segments: int) -> Iterator[Key]:
    yield from (Key(*version, f"segment-{s:02}") for s in range(segments))
    yield from (Key(*version, str(c), "class") for c in range(CLASSES))


def measure(args: argparse.Namespace, address: str) -> dict[str, Any]:
    """All of it, in a process that has done nothing else."""
    empty, ring = memory(), Keyring.new()
    watch, opened = cpu(
        lambda: Watch.open(
            dict.fromkeys(versions(args), CLASSES), keyring=ring, ledger=address, maturity=MATURITY
        )
    )
    found: dict[str, Any] = {"open_cpu_s": opened}
    with watch:
        registry = CollectorRegistry()
        export(watch, registry)
        found["scrapes"] = [scraped(registry) for _ in range(args.scrapes)]
        found["idle"] = share(args.seconds, lambda until: time.sleep(max(until - time.monotonic(), 0)))
        found["labels"] = at_rate(args, watch, ring)
        found["scrape_after_labels"] = scraped(registry)
        busy, quiet = versions(args)[0], versions(args)[1]
        for name, asked in (("list", {}), ("busy", named(busy)), ("quiet", named(quiet))):
            pages = [cpu(lambda asked=asked: render(watch, **asked)) for _ in range(3)]
            found[f"page_{name}"] = {"cpu_s": [seconds for _, seconds in pages], "bytes": len(pages[0][0])}
        found["memory"] = {"before_mib": empty, "most_mib": memory(most=True), "resident_mib": memory()}
    return found


def named(version: tuple[str, str]) -> dict[str, str]:
    return {"model": version[0], "version": version[1]}


def scraped(registry: CollectorRegistry) -> dict[str, float]:
    began = time.perf_counter()
    text, seconds = cpu(lambda: generate_latest(registry))
    lines = text.split(b"\n")
    told = {
        line.split(b" ")[0].decode(): float(line.split(b" ")[1])
        for line in lines
        if b"_left_out" in line and line[:1] != b"#"
    }
    return {
        "cpu_s": seconds,
        "wall_s": time.perf_counter() - began,
        "bytes": len(text),
        "series": sum(1 for line in lines if line and line[:1] != b"#"),
        "left_out": told,
    }


def share(seconds: float, work: Callable[[float], None]) -> dict[str, float]:
    """Of one core, that all threads of this process but the calling one's ``work`` take."""
    wall, all_, own = time.monotonic(), time.process_time(), time.thread_time()
    work(wall + seconds)
    took = time.monotonic() - wall
    background = (time.process_time() - all_) - (time.thread_time() - own)
    return {"seconds": took, "background_cpu_s": background, "share_of_core": background / took}


def at_rate(args: argparse.Namespace, watch: Watch, ring: Keyring) -> dict[str, float]:
    """Labels of mature predictions of all versions, so many a second; what follows their acknowledgement."""
    every, rng, sent = versions(args), np.random.default_rng(1), 0
    receipts = []
    for i in range(int(args.rate * args.seconds)):
        # Half of the labels are of busy versions.
        model, version = every[:: BUSY if i % 2 else 1][rng.integers(len(every) // (BUSY if i % 2 else 1))]
        c, made = float(rng.uniform(0.5, 1)), time.time() - 2 * HOUR - rng.uniform(0, 600)
        segment = f"segment-{i % args.segments:02}"
        signed = ring.sign(
            model=model, version=version, predicted=i % CLASSES, confidence=c, segment=segment, time=made
        )
        receipts.append({"receipt": signed, "label": (i + (rng.random() > c)) % CLASSES})

    def send(until: float) -> None:
        nonlocal sent
        began = time.monotonic()
        while (now := time.monotonic()) < until:
            due = int(args.rate * (now - began))
            if due - sent >= args.rate // 2:
                outcomes = watch.labels(receipts[sent:due])
                assert all(one.accepted for one in outcomes), next(
                    one for one in outcomes if not one.accepted
                )
                sent = due
            time.sleep(0.1)

    found = share(args.seconds, send)
    return {**found, "labels_per_s": sent / found["seconds"], "waiting": sum(watch.ledger.waiting().values())}


def cpu(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and this thread's CPU seconds."""
    began = time.thread_time()
    return work(), time.thread_time() - began


def memory(*, most: bool = False) -> float:
    """Resident MiB of this process, now or at most so far."""
    if most:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def one_store(args: argparse.Namespace, address: str) -> dict[str, Any]:
    filled = fill(args, address, time.time())
    print("filled", filled, flush=True)
    command = [sys.executable, __file__, *sys.argv[1:], "--measure", address]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    found = json.loads(told.splitlines()[-1])
    print(json.dumps(found, indent=1), flush=True)
    return {"filled": filled, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--versions", type=int, default=10)
    parser.add_argument("--segments", type=int, default=32)
    parser.add_argument("--busy", type=int, default=24, help="spans of a busy version")
    parser.add_argument("--seconds", type=float, default=60.0, help="of idling, and of labels")
    parser.add_argument("--rate", type=float, default=100.0, help="labels a second")
    parser.add_argument("--scrapes", type=int, default=5)
    parser.add_argument("--redis", action="store_true", help="measure over a Redis as well")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = peers.arguments(parser, models=20, versions=2, segments=8, busy=6, seconds=4.0, scrapes=2)
    if args.measure:
        print(json.dumps(measure(args, args.measure)))
        return
    result: dict[str, Any] = vars(args).copy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        result["sqlite"] = one_store(args, str(path)) | {"file_mib": path.stat().st_size / 2**20}
    if args.redis:
        with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder)) as address:
            result["redis"] = one_store(args, address)
    peers.save("fleet", result, args)


if __name__ == "__main__":
    main()
