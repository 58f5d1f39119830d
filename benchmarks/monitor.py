"""What does watching cost a worker? Processor time a served prediction, and memory over a million of them.

    python benchmarks/monitor.py

What runs for every served prediction is measured: the observer of a TorchServe worker, which counts the
prediction, signs its receipt, and hands the counts to the emitter, which sends them once a second; and a
Reporter as it is made by default, with its keyring in a file, which counts into a Prometheus registry or is
counted by a real ``calib-serve watch``. Of the Reporter, it is the time of the thread that serves, and apart
from it that of the whole process, whose other thread counts. Then the processor time of a new process that
imports ``Reporter``, beside one that imports numpy. The unit is a bare HMAC-SHA256 of a receipt's
bytes, measured in the same run, in turns: what no signed receipt can do without. Writes
benchmarks/results/monitor.json.
"""

from __future__ import annotations

import argparse
import base64
import hmac
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import peers
from prometheus_client import CollectorRegistry

from calib_serve import Reporter
from calib_serve.receipts import Keyring
from calib_serve.torchserve._channel import Emitter
from calib_serve.torchserve._observer import Observer

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


def costs(seconds: dict[str, list[float]]) -> dict[str, dict]:
    """Microseconds an item, and how many HMACs that is, turn by turn."""
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


def measure(observer: Observer, rounds: int) -> dict[str, dict]:
    served, body = predictions(), receipt_bytes()
    calls = {HMAC: lambda: authenticate(body)}
    calls |= {row(batch): lambda batch=batch: serve(observer, served, batch) for batch in BATCHES}
    return costs(peers.alternate(calls, rounds=rounds))


def report(reporter: Reporter, probs: list[np.ndarray]) -> None:
    for p in probs:
        reporter.served(p)


def probabilities(batch: int) -> list[np.ndarray]:
    """Rows of a classifier of ten classes, as they come: one alone, or several."""
    p = np.random.default_rng(1).dirichlet(np.full(10, 0.2), N).astype(np.float32)
    return list(p) if batch == 1 else np.array_split(p, N // batch)


def measure_reporters(rounds: int) -> dict[str, dict]:
    """Of the thread that serves, and of the whole process until all is counted."""
    body = receipt_bytes()
    with tempfile.TemporaryDirectory() as folder, running_watch(Path(folder)) as (url, keyring):
        homes = {"a registry": {"registry": CollectorRegistry()}, "calib-serve watch": {"watch": url}}
        found: dict[str, dict] = {}
        for home, options in homes.items():
            own = {"model": "digits", "version": "1.0", "keyring": keyring, "registry": CollectorRegistry()}
            with Reporter(10, **{**own, **options}) as reporter:
                calls: dict[str, Callable[[], object]] = {HMAC: lambda: authenticate(body)}
                whole = dict(calls)
                for batch in BATCHES:
                    probs = probabilities(batch)
                    name = f"Reporter.served, {batch} a call, counted by {home}"

                    def serve_all(reporter: Reporter = reporter, probs: list = probs) -> None:
                        report(reporter, probs)
                        while reporter.flush():
                            time.sleep(0.05)

                    calls[name] = lambda reporter=reporter, probs=probs: report(reporter, probs)
                    calls[f"{name}: wait"] = reporter.flush
                    whole[f"{name}: the whole process"] = serve_all
                rows = costs(peers.alternate(calls, rounds=rounds, clock=time.thread_time))
                rows |= costs(peers.alternate(whole, rounds=rounds))
                found |= {name: cost for name, cost in rows.items() if "wait" not in name and name != HMAC}
    return found


@contextmanager
def running_watch(folder: Path) -> Iterator[tuple[str, Path]]:
    """A real ``calib-serve watch`` of the model, and its keyring."""
    keyring = folder / "keyring.json"
    KEYRING.save(keyring)
    port = str(peers.free_port())
    command = [sys.executable, "-m", "calib_serve", "watch", "digits:1.0=10", "--keyring", str(keyring)]
    process = subprocess.Popen([*command, "--ledger", str(folder / "ledger.db"), "--port", port])
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with suppress(OSError), urllib.request.urlopen(f"{url}/healthz"):
                break
            time.sleep(0.1)
        yield url, keyring
    finally:
        process.terminate()
        process.wait()


def import_ratio(rounds: int) -> float:
    """Processor time of importing a Reporter, over numpy's own; the least of all rounds."""
    took: dict[str, list[float]] = {"pass": [], "import numpy": [], "from calib_serve import Reporter": []}
    with tempfile.TemporaryDirectory() as folder:
        own = peers.compiled(Path(folder))
        for _ in range(rounds):
            for line, times in took.items():
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run([sys.executable, "-c", line], env=own, check=True)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    python, numpy, ours = map(min, took.values())
    return (ours - python) / (numpy - python)


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
    rows |= measure_reporters(asked.rounds)
    for name, cost in rows.items():
        print(f"{name:80} {cost['median_us']:8.3f} us  {cost['hmacs']:6.2f} HMACs")
    print(f"{asked.predictions} predictions: {grown} KiB more")
    imported = import_ratio(asked.rounds)
    print(f"import of Reporter: {imported:.2f} times numpy's")
    result = {
        "cost": rows,
        "import": imported,
        "memory": {"predictions": asked.predictions, "grown_kib": grown},
    }
    peers.save("monitor", result, asked)


if __name__ == "__main__":
    main()
