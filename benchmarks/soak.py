"""Does anything grow? A server at load for ten minutes: memory, ledger, logs, and counts to the last.

Four connections predict without pause, and a label comes home for every prediction, some twice.
Receipts are welcome for half a minute only, so that the ledger has to forget while it counts.
Prints a line every half minute and writes benchmarks/results/soak.json.

    python benchmarks/soak.py [--seconds 600]
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import peers
import psutil
import torch

from calib_serve import Artifact, Keyring
from calib_serve.artifact import LogitMap
from calib_serve.torchserve import pack, pack_feedback
from calib_serve.torchserve.properties import Ports
from calib_serve.torchserve.server import Server

TTL = 30.0  # seconds


class Client(threading.Thread):
    """One connection: predictions, and their labels in twenties; every tenth of these comes twice."""

    def __init__(self, server: Server, end: float, seed: int) -> None:
        super().__init__()
        self.server, self.end = server, end
        self.rng = np.random.default_rng(seed)
        self.predicted = self.accepted = self.duplicates = self.failed = 0

    def run(self) -> None:
        xs = self.rng.normal(size=(64, 16)).round(4).tolist()
        with self.server.client() as http:
            while time.monotonic() < self.end:
                items = []
                for x in xs[:20]:
                    reply = http.post("/predictions/digits", json=x)
                    if reply.status_code != 200:
                        self.failed += 1
                        continue
                    self.predicted += 1
                    items.append({"receipt": reply.json()["receipt"], "label": int(self.rng.integers(10))})
                sent = items + items[::10]
                told = http.post("/predictions/calibration_feedback", json=sent).json()
                self.accepted += told["accepted"]
                self.duplicates += told["refused"]


def rss(server: Server) -> dict[str, float]:
    """Resident MB of the server and of each model's workers."""
    java = psutil.Process(server.pid)
    found = {"java": java.memory_info().rss / 1e6}
    for model in ("digits", "calibration_feedback"):
        pids = server.workers(model)
        found[model] = sum(psutil.Process(pid).memory_info().rss for pid in pids) / 1e6
    return found


def size(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    args = peers.arguments(parser, seconds=20.0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.jit.save(torch.jit.script(torch.nn.Linear(16, 10).eval()), str(folder / "net.pt"))
        artifact = Artifact(
            (LogitMap.temperature(1.5),), method="temperature", classes=10, model={"input_shape": [16]}
        )
        pack(
            folder / "net.pt",
            artifact,
            folder,
            name="digits",
            workers=2,
            threads=1,
            unproven=True,
        )
        pack_feedback(folder, ttl_days=TTL / 86_400)
        run = folder / "run"
        run.mkdir()
        Keyring.new().save(run / "keyring.json")
        models = ["digits.mar", "calibration_feedback.mar"]
        with Server(folder, models, folder=run, settings=Ports.free().as_properties()) as server:
            result = soak(server, run, args.seconds)
    peers.save("soak", result, args)
    print(json.dumps({k: v for k, v in result.items() if k != "samples"}, indent=2))


def soak(server: Server, run: Path, seconds: float) -> dict:
    start = time.monotonic()
    clients = [Client(server, start + seconds, seed) for seed in range(4)]
    for client in clients:
        client.start()
    samples = []
    while any(client.is_alive() for client in clients):
        time.sleep(min(10.0, seconds / 10))
        samples.append(
            {
                "seconds": round(time.monotonic() - start, 1),
                "predicted": sum(c.predicted for c in clients),
                "rss_mb": rss(server),
                "ledger_bytes": size(run, "ledger.sqlite*"),
                "log_bytes": size(run / "logs", "*"),
            }
        )
        if len(samples) % 3 == 1:
            s = samples[-1]
            memory = ", ".join(f"{k} {v:.0f} MB" for k, v in s["rss_mb"].items())
            print(
                f"{s['seconds']:6.0f} s {s['predicted']:8} predictions; {memory}; "
                f"ledger {s['ledger_bytes'] / 1e6:.1f} MB; logs {s['log_bytes'] / 1e6:.1f} MB",
                flush=True,
            )
    time.sleep(3)
    text = server.scrape()
    predicted, accepted = sum(c.predicted for c in clients), sum(c.accepted for c in clients)
    late = [s for s in samples if s["seconds"] > seconds / 3] or samples
    return {
        "seconds": seconds,
        "predicted": predicted,
        "counted_predictions": count(text, "calib_predictions_total"),
        "accepted": accepted,
        "counted_labels": count(text, "calib_feedback_total"),
        "refused": sum(c.duplicates for c in clients),
        "failed": sum(c.failed for c in clients),
        "monitor_errors": count(text, "calib_monitor_errors_total"),
        "rss_growth_mb_after_a_third": {
            key: round(late[-1]["rss_mb"][key] - late[0]["rss_mb"][key], 1) for key in late[0]["rss_mb"]
        },
        "ledger_mb_after_a_third": [round(f(s["ledger_bytes"] for s in late) / 1e6, 2) for f in (min, max)],
        "log_bytes_per_prediction": round(samples[-1]["log_bytes"] / max(predicted, 1), 1),
        "samples": samples,
    }


def count(text: str, name: str) -> float:
    return sum(map(float, re.findall(rf"^{name}\{{.*\}} (\S+)$", text, re.MULTILINE)))


if __name__ == "__main__":
    main()
