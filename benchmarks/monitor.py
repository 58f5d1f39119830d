"""What does watching cost a worker? Processor time a served prediction, and memory over a million of them.

    python benchmarks/monitor.py

What runs for every served prediction is measured, the observer of a TorchServe worker: it counts the
prediction, signs its receipt, and hands the counts to the emitter, which sends them once a second. Its unit
is a bare HMAC-SHA256 of a receipt's bytes, measured in the same run, in turns: what no signed receipt can
do without. Writes benchmarks/results/monitor.json.
"""

from __future__ import annotations

import argparse
import base64
import hmac
import os
import resource
import statistics
from pathlib import Path

import numpy as np
import peers

from calib_serve.receipts import Keyring
from calib_serve.serve.emit import Emitter
from calib_serve.serve.observer import Observer

N = 20_000
BATCHES = (1, 8, 64)
HMAC = "HMAC-SHA256 of a receipt's bytes"
KEY = bytes(range(32))
KEYRING = Keyring("2f8a61c0", {"2f8a61c0": KEY})


def predictions() -> list[tuple[int, float]]:
    """Class id and confidence of a classifier that is mostly sure."""
    rng = np.random.default_rng(0)
    confidence = 1 - 0.75 * rng.beta(1, 4, N)
    return list(zip(rng.integers(0, 10, N).tolist(), confidence.tolist(), strict=True))


def receipt_bytes() -> bytes:
    """What a receipt's signature covers."""
    token = KEYRING.sign(model="digits", version="1.0", predicted=7, confidence=0.9)
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))[:-16]


def authenticate(body: bytes) -> None:
    for _ in range(N):
        hmac.digest(KEY, body, "sha256")


def serve(observer: Observer, served: list[tuple[int, float]], batch: int) -> None:
    for at in range(0, len(served), batch):
        observer.served(served[at : at + batch])


def row(batch: int) -> str:
    return f"a served prediction, {batch} a batch"


def measure(observer: Observer, rounds: int) -> dict[str, dict]:
    """Microseconds an item, and how many HMACs that is, turn by turn."""
    served, body = predictions(), receipt_bytes()
    calls = {HMAC: lambda: authenticate(body)}
    calls |= {row(batch): lambda batch=batch: serve(observer, served, batch) for batch in BATCHES}
    seconds = peers.alternate(calls, rounds=rounds)
    found = {}
    for name, times in seconds.items():
        ratios = [one / unit for one, unit in zip(times, seconds[HMAC], strict=True)]
        found[name] = {
            "median_us": statistics.median(times) / N * 1e6,
            "range_us": [min(times) / N * 1e6, max(times) / N * 1e6],
            "hmacs": statistics.median(ratios),
            "hmacs_range": [min(ratios), max(ratios)],
        }
    return found


def grown_kib(observer: Observer, count: int) -> int:
    """How much larger the process's peak of memory is after ``count`` predictions."""
    served = predictions()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(count // N):
        serve(observer, served, BATCHES[-1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--predictions", type=int, default=1_000_000, help="of the measurement of memory")
    asked = peers.arguments(parser, rounds=3, predictions=2 * N)
    with Path(os.devnull).open("w") as channel:
        emitter = Emitter(write=channel.write)
        observer = Observer(emitter, model="digits", version="1.0", bins=15, keyring=KEYRING)
        rows = measure(observer, asked.rounds)
        grown = grown_kib(observer, asked.predictions)
        observer.flush()
    for name, cost in rows.items():
        print(f"{name:36} {cost['median_us']:8.3f} us  {cost['hmacs']:6.2f} HMACs")
    print(f"{asked.predictions} predictions: {grown} KiB more")
    result = {"cost": rows, "memory": {"predictions": asked.predictions, "grown_kib": grown}}
    peers.save("monitor", result, asked)


if __name__ == "__main__":
    main()
