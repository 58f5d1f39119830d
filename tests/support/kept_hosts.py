"""A host that watched a model: its ledger, keyring and samples, kept in git.

    python tests/support/kept_hosts.py

writes it once more, which is right only where the number of a format begins anew.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from calib_serve.artifact import Artifact, Clause, Contract, LogitMap
from calib_serve.ledger import Ledger, upgrade_ledger
from calib_serve.monitor import Detector
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import DAY, Keyring, Shadow
from calib_serve.receipts.batch import ServedPrediction
from calib_serve.receipts.samples import SampleLog
from calib_serve.receipts.sums import Sums

KEPT = Path(__file__).parents[1] / "kept" / "host"
V = ("pets", "1")
CONTRACT = Contract((Clause(0.8, above=0.7),))
START = 1_790_000_000.0
TAG = bytes.fromhex("0a1b2c3d")
BATCH = [
    ServedPrediction(*V, 0, 0.75 + (i % 5) / 32, id=f"order-{i}", shadow=Shadow(0, 0.875, TAG))
    for i in range(20)
]


class Host:
    """The files of one, unpacked in ``folder``; ``told`` by the program that wrote them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: dict[str, Any] = json.loads((KEPT / "told.json").read_text())
        self.now = float(self.told["closed"]) + 60
        with tarfile.open(KEPT / "files.tar.gz") as files:
            files.extractall(folder, filter="data")

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        """What ``calib-serve watch`` would be over these files, at the time of the host."""
        with tempfile.TemporaryDirectory() as other:  # as its format is the first one
            upgrade_ledger(self.folder / "ledger.db", Path(other) / "before.db")
        with watching(self.folder, lambda: self.now) as watch:
            yield watch


@contextmanager
def watching(folder: Path, clock: Any) -> Iterator[Watch]:
    """A watch over the files of a folder."""
    ledger = Ledger(folder / "ledger.db", clock=clock)
    artifact = Artifact((LogitMap.temperature(1.0),), method="t", classes=3, contract=CONTRACT)
    watch = Watch(
        Keyring.load(folder / "keyring.json"),
        ledger,
        models={V: Watched.of(artifact)},
        detector=lambda: Detector(arl=1000, bins=ledger.bins),
        maturity=0.0,
        samples=SampleLog(folder / "samples", rate=1.0, clock=clock),
    )
    try:
        yield watch
    finally:
        watch.close()


def numbers(sums: Sums) -> list[float]:
    """What sums say, without the names of their fields."""
    labels = sums.feedback
    found = (
        sums.predictions, sums.predictions_confidence, labels.count, labels.confidence, labels.correct,
    )  # fmt: skip
    return [float(one.sum()) for one in found]


def said(watch: Watch) -> dict[str, Any]:
    """What a watch says of its version."""
    (state,) = watch.ledger.followers.states("detector", V)
    evidence = watch.ledger.followers.progress()[V].log_evidence
    return {
        "sums": numbers(watch.ledger.sums()[V]),
        "segments": {key.name: numbers(sums) for key, sums in watch.ledger.slices().items()},
        "waiting": sum(watch.ledger.followers.waiting().values()),
        "detector": {
            "labels": json.loads(state.value.partition(b"\n")[0])["labels"],
            "log_evidence": evidence,
        },
        "incidents": [one.as_dict() for one in watch.incidents()],
        "clauses": {one.clause.name: one.labels for one in watch.contract_states(V)},
        "shadows": [[one.tag, one.labels, one.gain] for one in watch.shadow_states(V)],
    }


LABELS_AFTER = [0, 1] * 10


def send(watch: Watch, receipts: list[str], labels: list[int], source: str = "lab") -> list[str | None]:
    """Why each label was refused; None where it was counted."""
    rows = [{"receipt": one, "label": label} for one, label in zip(receipts, labels, strict=True)]
    return [one.reason for one in watch.labels(rows, source=source)]


def write(folder: Path) -> dict[str, Any]:
    """Watch a model: 120 predictions, 85 labels of two sources, a drift; what is to be said of it."""
    now = [START]
    keys = {"k1": bytes(range(32)), "k2": bytes(range(32, 64))}
    times = {"k1": START - DAY}
    old = Keyring("k1", keys, times)
    old.save(folder / "keyring.json")
    receipts: list[str] = []
    for ring in (old, Keyring("k2", keys, times)):
        ring.save(folder / "keyring.json")
        with watching(folder, lambda: now[0]) as watch:
            for i in range(50):
                logits = (2.0 + (i % 5) / 4, 0.0, 0.5)
                confidence = float(np.exp(logits)[0] / np.exp(logits).sum())
                item = ServedPrediction(
                    *V, 0, confidence, "north" if i % 3 else "south", f"visit {i // 2}", logits,
                    shadow=Shadow(0, 0.75, TAG),
                )  # fmt: skip
                receipts += map(str, watch.predictions([item]))
                now[0] += 1
            if ring is not old:
                receipts += map(str, watch.predictions(BATCH, once=b"batch-1"))
            now[0] += 10
            if ring is old:
                send(watch, receipts[:40], [0 if i % 4 else 1 for i in range(40)], "desk")
            else:
                send(watch, receipts[40:80], [1] * 40, "lab")  # all wrong: a drift
            watch.feed.tick()
            if ring is not old:
                send(watch, receipts[80:85], [0] * 5, "lab")  # they wait for the detector
    with watching(folder, lambda: now[0]) as watch:
        told = {"before": said(watch)}
    told |= {
        "closed": now[0],
        "counted": receipts[:85],
        "open": receipts[85:],
        "sources": {"desk": 40, "lab": 45},
    }
    with tempfile.TemporaryDirectory() as other:  # a copy of it goes on: so must whoever reads these files
        copy = Path(shutil.copytree(folder, Path(other) / "copy"))
        with watching(copy, lambda: now[0] + 60) as watch:
            send(watch, receipts[85:105], LABELS_AFTER)
            watch.feed.tick()
            told["after"] = said(watch)
    return told


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        told = write(Path(made))
        shutil.rmtree(KEPT, ignore_errors=True)
        KEPT.mkdir(parents=True)
        (KEPT / "told.json").write_text(json.dumps(told, indent=1) + "\n")
        with tarfile.open(KEPT / "files.tar.gz", "w:gz") as files:
            for path in sorted(Path(made).iterdir()):
                if not path.name.endswith(("-wal", "-shm")):  # empty
                    files.add(path, path.name)
    with suppress(BrokenPipeError):
        sys.stdout.write(f"{KEPT}\n")
