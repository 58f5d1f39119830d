"""What a TorchServe leaves behind is where its successor goes on: docs/torchserve.md."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import real_servers
from live_server import inputs, serve, small_store, total

pytestmark = [pytest.mark.server, pytest.mark.nightly]


def test_watch_takes_late_labels_of_torchserve_and_counts_none_again(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    store = small_store(tmp_path / "models")
    with contextmanager(serve)(
        store, ["digits.mar", "calibration_feedback.mar"], tmp_path / "serving"
    ) as old:
        counted, late = (
            {"receipt": old.predict(x.tolist()).json()["receipt"], "label": 3} for x in inputs(2)
        )
        assert old.label([counted]).json()["accepted"] == 1
        ledger = old.server.folder / "ledger.sqlite"
    shutil.copy(tmp_path / "serving" / "keyring.json", tmp_path / "keys.json")
    watch = real_servers.Server(tmp_path, "--ledger", str(ledger), models=("digits:1.0=10",))
    with watch:
        answer = httpx.post(
            f"{watch.url}/v1/labels", json={"items": [counted, late, late]}, timeout=60
        ).json()
        text = httpx.get(f"{watch.url}/metrics", timeout=60).text
    assert [item.get("reason") for item in answer["items"]] == ["duplicate", None, "duplicate"]
    # The ledger's labels go on, TorchServe's predictions do not: its workers have published these.
    assert total(text, "calib_feedback_total", model="digits") == 2
    assert total(text, "calib_predictions_total", model="digits") == 0
