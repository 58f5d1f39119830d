"""What does it cost to verify and count a label, durable before it is acknowledged?

Receipts are verified, labels checked, and written to a SQLite ledger with synchronous = FULL, in large
requests and in small ones: up to the acknowledgement alone, with the sums that are made of them later, and
with the drift detector that is fed later. The stream is calibrated, as most
are; the last row is one so far off that the detector alarms about every 15 labels, which is its worst
case. The unit is the least work that any label takes, measured in turns with ours: its receipt's HMAC-SHA256
and a row in an SQLite transaction that is as durable. Times are the process's own CPU seconds, so that what
else the machine does does not count, and wall seconds beside them. Then the same by one process and two, on
one SQLite file, two files and one PostgreSQL, in HMACs of the same run (a receipt's, alone); and the bytes
that a ledger keeps of each. Writes benchmarks/results/labels.json.

    python benchmarks/labels.py [--labels 50000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import base64
import hmac
import random
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

import peers
import stores

from calib_serve.ledger import Ledger
from calib_serve.ledger.intake import Intake
from calib_serve.monitor.feed import DriftFeed
from calib_serve.receipts import Keyring
from calib_serve.receipts.classes import Classes


def counted(
    items: list[dict], request: int, ring: Keyring, folder: Path, *, sums: bool = True, drift: bool = True
) -> None:
    """Every label through the intake, ``request`` at a time, and what follows an acknowledgement."""
    ledger = Ledger(folder / "ledger")
    intake = Intake(ring, ledger, models={("digits", "1.0"): Classes(10)}, detect=drift)
    feed = DriftFeed(ledger, maturity=0.0)
    for at in range(0, len(items), request):
        assert all(outcome.accepted for outcome in intake.take(items[at : at + request]).outcomes)
        if drift:
            feed.tick()
    if sums:
        ledger.roll_up()
        assert ledger.sums()["digits", "1.0"].labels.sum() == len(items)
    ledger.close()


def least(items: list[dict], request: int, ring: Keyring, folder: Path) -> None:
    """What no label can do without: its receipt's bytes, their HMAC, and a row in a durable transaction."""
    (key,) = ring.keys.values()
    book = sqlite3.connect(folder / "least")
    book.executescript(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
        "CREATE TABLE seen (receipt BLOB PRIMARY KEY) WITHOUT ROWID"
    )
    for at in range(0, len(items), request):
        with book:
            for item in items[at : at + request]:
                token = item["receipt"]
                raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
                mac = hmac.digest(key, raw[:-16], "sha256")
                book.execute("INSERT INTO seen VALUES (?)", (mac,))
    book.close()


def spent(run, *arguments, **options) -> tuple[float, float]:
    """Processor seconds and seconds by the clock."""
    with tempfile.TemporaryDirectory() as folder:
        cpu, wall = time.process_time(), time.perf_counter()
        run(*arguments, Path(folder), **options)
        return time.process_time() - cpu, time.perf_counter() - wall


def measure(items: list[dict], request: int, ring: Keyring, rounds: int, **options) -> dict[str, float]:
    """Labels a second, and how many times the least work a label takes; turn by turn."""
    pairs = [
        (spent(counted, items, request, ring, **options), spent(least, items, request, ring))
        for _ in range(rounds)
    ]
    found = {}
    for i, clock in enumerate(("cpu", "wall")):
        ratios = [ours[i] / floor[i] for ours, floor in pairs]
        found[f"times_least_{clock}"] = statistics.median(ratios)
        found[f"times_least_{clock}_range"] = [min(ratios), max(ratios)]
        found[f"per_{clock}_second"] = len(items) / statistics.median(ours[i] for ours, _ in pairs)
        found[f"least_per_{clock}_second"] = len(items) / statistics.median(floor[i] for _, floor in pairs)
    return found


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
        "verified and acknowledged": (calibrated, 5_000, {"sums": False, "drift": False}),
        "acknowledged, 50 a request": (calibrated[: args.labels // 10], 50, {"sums": False, "drift": False}),
        "verified and counted": (calibrated, 5_000, {"drift": False}),
        "and watched for drift": (calibrated, 5_000, {}),
        "and watched, 500 a request": (calibrated, 500, {}),
        "and watched, 50 a request": (calibrated[: args.labels // 10], 50, {}),
        "and alarming all the time": (off[: args.labels // 5], 5_000, {}),
    }
    result: dict = vars(args).copy()
    print(f"{'':38} {'least work':>10} {'per CPU second':>15} {'per wall second':>16}")
    for name, (items, request, options) in cases.items():
        result[name] = found = measure(items, request, ring, args.rounds, **options)
        print(
            f"{name:38} {found['times_least_cpu']:9.2f}x"
            f" {found['per_cpu_second']:15,.0f} {found['per_wall_second']:16,.0f}"
        )
    result["processes"] = stores.over_processes(args.labels, args.rounds)
    for name, found in result["processes"].items():
        print(f"{name:38} {found['hmacs']:6.1f} HMACs {found['per_cpu_second']:15,.0f} per CPU second")
    result["bulk"] = stores.beside_bulk(args.labels, args.rounds)
    for name, found in result["bulk"].items():
        print(f"{name:38} {found:.2f} times the database's own bulk insert")
    result["bytes"] = stores.kept(args.labels)
    for name, found in result["bytes"].items():
        print(f"{name:38} {found:.0f} bytes a label")
    peers.save("labels", result, args)


if __name__ == "__main__":
    main()
