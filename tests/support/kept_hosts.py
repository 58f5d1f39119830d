"""The files of hosts that watched a model with earlier versions, and what these versions said of them.

``tests/kept/hosts`` has one for each format of SQLite's ledger, as the program of its time left it: 120
predictions, 85 labels, a batch with a name, a drift; and the same with 20 labels more, which that program
counted in a copy. They are never made again. ``commit`` names the program.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calib_serve.artifact import Artifact, Clause, Contract, LogitMap
from calib_serve.receipts import DAY, Keyring
from calib_serve.watch.drift import Detector
from calib_serve.watch.ids.sqlite import SqliteIds
from calib_serve.watch.journal import LabelJournal
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.samples import SampleLog
from calib_serve.watch.service import Watch, Watched

KEPT = Path(__file__).parents[1] / "kept" / "hosts"
V = ("pets", "1")
CONTRACT = Contract((Clause("act", 0.8, above=0.7), Clause("calibration", 0.1)))


class Host:
    """The files of one, unpacked in ``folder``; ``told`` by the program that wrote them."""

    def __init__(self, number: int, folder: Path) -> None:
        self.folder = folder
        self.told: dict[str, Any] = json.loads((KEPT / f"format-{number}.json").read_text())
        self.now = float(self.told["closed"]) + 60
        with tarfile.open(KEPT / f"format-{number}.tar.gz") as files:
            files.extractall(folder, filter="data")

    @contextmanager
    def watch(self, **options: Any) -> Iterator[Watch]:
        """What ``calib-serve watch`` would be over these files, at the time of the host."""

        def clock() -> float:
            return self.now

        ledger = SqliteLedger(self.folder / "ledger.db", writer="w1", clock=clock)
        artifact = Artifact((LogitMap.temperature(1.0),), method="t", classes=3, contract=CONTRACT)
        watch = Watch(
            Keyring.load(self.folder / "keyring.json"),
            ledger,
            models={V: Watched.of(artifact)},
            detector=lambda: Detector(arl=1000, bins=ledger.bins),
            maturity=0.0,
            clock=clock,
            samples=SampleLog(self.folder / "samples", rate=1.0, clock=clock),
            journal=LabelJournal(self.folder / "journal", ledger, clock=clock),
            ids=SqliteIds(self.folder / "ledger.db.ids", most=1000, ttl=30 * DAY, clock=clock),
            **options,
        )
        try:
            yield watch
        finally:
            watch.close()
