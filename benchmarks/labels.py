"""How many labels a second one core verifies and counts, each durable before it is acknowledged.

Receipts are verified, labels checked, and written to a SQLite ledger with synchronous = FULL, with
and without the drift detector, in large requests and in small ones. The stream is calibrated, as most
are; the last row is one so far off that the detector alarms about every 15 labels, which is its worst
case. Times are the process's own CPU seconds, so that what else the machine does does not count, and
wall seconds beside them. Writes benchmarks/results/labels.json.

    python benchmarks/labels.py [--labels 50000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

import peers

from calib_serve.receipts import Keyring
from calib_serve.watch.intake import Classes, Intake
from calib_serve.watch.ledger import SqliteLedger


def rates(items: list[dict], request: int, ring: Keyring, **options) -> tuple[float, float]:
    """Labels a CPU second and a wall second."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = SqliteLedger(Path(folder) / "ledger")
        intake = Intake(ring, ledger, models={("digits", "1.0"): Classes(10)}, **options)
        cpu, wall = time.process_time(), time.perf_counter()
        for at in range(0, len(items), request):
            assert all(outcome.accepted for outcome in intake.take(items[at : at + request]))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        assert ledger.sums()["digits", "1.0"].feedback.n == len(items)
        ledger.close()
    return len(items) / cpu, len(items) / wall


def stream(n: int, ring: Keyring, *, gap: float, seed: int = 0) -> list[dict]:
    """Receipts and labels of a classifier whose accuracy is its confidence minus ``gap``."""
    rng = random.Random(seed)
    items = []
    for i in range(n):
        confidence = 1 - 0.75 * rng.betavariate(1, 4)
        right = rng.random() < confidence - gap
        receipt = ring.sign(model="digits", version="1.0", predicted=i % 10, confidence=confidence)
        items.append({"receipt": receipt, "label": (i if right else i + 1) % 10})
    return items


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = peers.arguments(parser, labels=5_000, rounds=2)
    ring = Keyring.new()
    calibrated, off = (stream(args.labels, ring, gap=gap) for gap in (0.0, 0.7))
    cases = {
        "verified and counted": (calibrated, 5_000, {"detector": None}),
        "and watched for drift": (calibrated, 5_000, {}),
        "and watched, 500 a request": (calibrated, 500, {}),
        "and watched, 50 a request": (calibrated[: args.labels // 10], 50, {}),
        "and alarming all the time": (off[: args.labels // 5], 5_000, {}),
    }
    result: dict = {"goal": "50,000 labels a second on one core, the ledger durable", **vars(args)}
    print(f"{'':38} {'per CPU second':>15} {'per wall second':>16}")
    for name, (items, request, options) in cases.items():
        found = [rates(items, request, ring, **options) for _ in range(args.rounds)]
        cpu, wall = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{name:38} {cpu:15,.0f} {wall:16,.0f}")
        result[name] = {
            "per_cpu_second": cpu,
            "per_wall_second": wall,
            "per_cpu_second_range": [min(c for c, _ in found), max(c for c, _ in found)],
        }
    peers.save("labels", result, args)


if __name__ == "__main__":
    main()
