"""How long is it from the first drifted label to the promoted version, and what do users lose meanwhile?

The digits' network, calibrated, on a real TorchServe with two workers; a few connections predict and label
all the time, with the images of the test split; after some seconds these are turned and noisy
(``demo.digits.shifted``). ``Rounds`` does all else: drift, refit, shadow, promotion. Seconds count from the
first drifted label that was acknowledged; a request that is not answered with 200 is lost, and a label that
is not accepted. The NLL of the confidences of being right, before and after the promotion, is of drifted
labels. Writes benchmarks/results/promotion.json.

    python benchmarks/promotion.py [--quick] [--runs 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import httpx  # noqa: E402
import numpy as np  # noqa: E402
import peers  # noqa: E402

from calib_serve import Keyring  # noqa: E402
from calib_serve.demo import offline  # noqa: E402
from calib_serve.demo.digits import shifted  # noqa: E402
from calib_serve.fit.output import fit_temperature  # noqa: E402
from calib_serve.fuse.torchserve import Batching, pack, pack_feedback  # noqa: E402
from calib_serve.promotion import Host, Limits, PromotionLog, Rounds  # noqa: E402
from calib_serve.serve.properties import Ports  # noqa: E402
from calib_serve.serve.server import Server  # noqa: E402
from calib_serve.watch.ledger import open_ledger  # noqa: E402

CALM, MOST = 5.0, 300.0  # seconds before the drift, and in which it must be over


class Users:
    """They predict and label; ``rows``: (when, version, confidence, right, drifted) of each label."""

    def __init__(
        self, server: Server, keyring: Keyring, calm: tuple, drifted: tuple, connections: int
    ) -> None:
        self.server, self.keyring, self.sets = server, keyring, (calm, drifted)
        self.rows: list[tuple[float, str, float, bool, bool]] = []
        self.lost_requests = self.lost_labels = 0
        self.requests = 0
        self.drifting, self.stop = threading.Event(), threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(k,)) for k in range(connections)]

    def run(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        with self.server.client(timeout=30) as http:
            while not self.stop.is_set():
                self.some(http, rng, drifted=self.drifting.is_set())

    def some(self, http: httpx.Client, rng: np.random.Generator, *, drifted: bool) -> None:
        images, labels = self.sets[drifted]
        items, told = [], []
        for k in rng.integers(0, len(images), 20):
            self.requests += 1
            try:
                reply = http.post("/predictions/digits", json=images[k].tolist()).raise_for_status().json()
            except httpx.HTTPError:
                self.lost_requests += 1
                continue
            version = self.keyring.verify(reply["receipt"]).version
            items.append({"receipt": reply["receipt"], "label": int(labels[k])})
            told.append((version, reply["confidence"], reply["predicted"] == labels[k]))
        try:
            answer = http.post("/predictions/calibration_feedback", json=items).raise_for_status().json()
            self.lost_labels += len(items) - answer["accepted"]
        except httpx.HTTPError:
            self.lost_labels += len(items)
        now = time.time()
        self.rows += [(now, version, c, bool(right), drifted) for version, c, right in told]

    def __enter__(self) -> Users:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


def one(deployed: offline.Deployed, folder: Path, seed: int, connections: int) -> dict[str, object]:
    """A server, a drift, and what came of it."""
    split, rng = deployed.digits, np.random.default_rng(seed)
    artifact = fit_temperature(deployed.classifier.logits(split.calibration.images), split.calibration.labels)
    store, run = folder / "store", folder / "run"
    run.mkdir(parents=True)
    batching = Batching(workers=2, batch_size=8, delay=5)
    pack(deployed.model, artifact, store, name="digits", input_shape=(1, 8, 8), batching=batching)
    pack_feedback(store, arl=100_000, maturity="0")
    keyring = Keyring.new()
    keyring.save(run / "keyring.json")
    server = Server(
        store,
        ["digits.mar", "calibration_feedback.mar"],
        folder=run,
        ports=Ports.free(),
        settings={"enable_model_api": "true"},
        samples=run / "samples",
        sample_rate=1.0,
        sample_seconds=1.0,
    )
    calm = (split.test.images, split.test.labels)
    worse = (shifted(split.test.images, degrees=40, noise=0.3, rng=rng), split.test.labels)
    times: dict[str, float] = {}
    with server, Users(server, keyring, calm, worse, connections) as users:
        time.sleep(CALM)
        users.drifting.set()
        host = Host.of(run)
        log = PromotionLog(run / "promotions.jsonl")
        rounds = Rounds(
            host,
            "digits",
            log,
            ledger=open_ledger(host.ledger),
            samples=run / "samples",
            limits=Limits(method="temperature"),
        )
        end = time.monotonic() + MOST
        while "promoted" not in times and time.monotonic() < end:
            if (step := rounds.step()) is not None:
                times.setdefault(step.step, step.time)
            time.sleep(0.5)
        time.sleep(3)
    drifted = [row for row in users.rows if row[4]]
    began = drifted[0][0]
    after = [row for row in drifted if row[1].endswith("-p2")]
    before = [row for row in drifted if not row[1].endswith("-p2")]
    return {
        "seconds": {name: at - began for name, at in times.items()},
        "labels_until": {name: sum(row[0] <= at for row in drifted) for name, at in times.items()},
        "requests": users.requests,
        "requests_lost": users.lost_requests,
        "labels": len(users.rows),
        "labels_lost": users.lost_labels,
        "nll": {"before": nll(before), "after": nll(after)},
    }


def nll(rows: list[tuple[float, str, float, bool, bool]]) -> float | None:
    """Of being right."""
    if not rows:
        return None
    c = np.clip([row[2] for row in rows], 1e-6, 1 - 1e-6)
    right = np.array([row[3] for row in rows])
    return float(-np.log(np.where(right, c, 1 - c)).mean())


def main() -> None:
    """All runs, a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--connections", type=int, default=4)
    asked = peers.arguments(parser, runs=1)
    with tempfile.TemporaryDirectory() as scratch:
        deployed = offline.deploy(Path(scratch), seed=0)
        runs = []
        for seed in range(asked.runs):
            runs.append(one(deployed, Path(scratch) / str(seed), seed, asked.connections))
            print(runs[-1], flush=True)
    seconds = [run["seconds"]["promoted"] for run in runs if "promoted" in run["seconds"]]
    told = {
        "promoted": len(seconds),
        "runs": len(runs),
        "seconds_to_promoted": {
            "median": statistics.median(seconds) if seconds else None,
            "worst": max(seconds, default=None),
        },
        "requests": sum(run["requests"] for run in runs),
        "requests_lost": sum(run["requests_lost"] for run in runs),
        "labels": sum(run["labels"] for run in runs),
        "labels_lost": sum(run["labels_lost"] for run in runs),
    }
    print(told)
    peers.save("promotion", {"summary": told, "each": runs}, asked)


if __name__ == "__main__":
    main()
