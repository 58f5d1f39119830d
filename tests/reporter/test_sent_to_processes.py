"""A reporter goes to processes that are spawned, and counts there as here."""

from __future__ import annotations

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from real_servers import SharedWatch

from calib_serve import Artifact, Keyring, LogitMap, Reporter
from calib_serve.errors import InputError
from calib_serve.receipts import LiveKeyring
from calib_serve.watch.policy import parse_policy

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


def test_the_copy_has_the_same_artifact_and_keys_even_where_the_folder_has_changed(tmp_path: Path) -> None:
    ARTIFACT.save(tmp_path / "artifact")
    ring = Keyring.new()
    made = Reporter(tmp_path / "artifact", model="m", version="1", keyring=ring)
    sent = pickle.dumps(made)
    Artifact((LogitMap.temperature(9.0),), method="temperature", classes=3).save(tmp_path / "artifact")
    copy = pickle.loads(sent)
    np.testing.assert_array_equal(copy.artifact.probs(PROBS), ARTIFACT.probs(PROBS))
    (receipt, _) = copy.served(PROBS)
    assert ring.verify(receipt).model == "m"


@pytest.mark.parametrize("what", ["registry", "keyring", "policy"])
def test_what_is_of_this_process_cannot_be_sent(tmp_path: Path, what: str) -> None:
    Keyring.new().save(tmp_path / "keys.json")
    things = {
        "registry": CollectorRegistry(),
        "keyring": LiveKeyring(tmp_path / "keys.json"),
        "policy": parse_policy("500/day"),
    }
    own: dict[str, Any] = {"keyring": Keyring.new(), what: things[what]}
    here = Reporter(3, model="m", version="1", **own)
    with pytest.raises(InputError, match="make it in that process"):
        pickle.dumps(here)
