"""A reporter goes to processes that are spawned, and counts there as here."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import pytest
from real_servers import SharedWatch

from calib_serve import Artifact, Reporter
from calib_serve.artifact import LogitMap

ARTIFACT = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3)
PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])


def serve_there(reporter: Reporter) -> None:
    """What a spawned worker does with it; nothing else, as a server's worker."""
    assert all(reporter.served(PROBS))


@pytest.mark.server
def test_a_spawned_worker_counts_what_it_served_when_it_ends(shared_watch: SharedWatch) -> None:
    options: dict[str, Any] = {"keyring": shared_watch.folder / "keys.json", "watch": shared_watch.url}
    model = shared_watch.model()
    with Reporter(ARTIFACT, model=model, version="1", **options) as reporter:
        reporter.served(PROBS)  # its thread runs, and locks are in use
        spawned = multiprocessing.get_context("spawn").Process(target=serve_there, args=(reporter,))
        spawned.start()
        spawned.join(120)
        assert spawned.exitcode == 0
    assert shared_watch.total(model) == 4
