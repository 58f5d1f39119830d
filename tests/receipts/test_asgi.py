"""The watch inside an app of yours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastapi
import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from calib_serve import Keyring, Reporter, Watch
from calib_serve.web import create_app

pytestmark = pytest.mark.store

HOSTS = ["testserver"]


def test_an_app_serves_predictions_labels_metrics_and_the_page(tmp_path: Path) -> None:
    ring, registry = Keyring.new(), CollectorRegistry()
    with (
        Watch.open({("pets", "1"): 3}, keyring=ring, ledger=tmp_path / "ledger.db") as watch,
        Reporter(3, model="pets", version="1", keyring=ring, watch=watch, registry=registry) as reporter,
    ):
        app = fastapi.FastAPI()
        app.mount("/calibration", create_app(watch, hosts=HOSTS))

        @app.get("/predict")
        async def predict() -> dict[str, Any]:
            return {"receipt": reporter.served([0.7, 0.2, 0.1])[0]}

        @app.get("/calibrations")
        async def other() -> str:
            return "mine"

        with TestClient(app) as client:
            receipt = client.get("/predict").json()["receipt"]
            reporter.flush()
            items = {"items": [{"receipt": receipt, "label": 0}] * 2}
            found = client.post("/calibration/v1/labels", json=items).json()
            assert (found["accepted"], found["refused"]) == (1, 1)
            text = client.get("/calibration/metrics").text
            (row,) = [line for line in text.splitlines() if line.startswith("calib_feedback_total{")]
            assert row.endswith(" 1.0")
            page = client.get("/calibration")
            assert page.status_code == 200
            assert str(page.url).endswith("/calibration/"), "its links are relative"
            assert 'href="static/look.css"' in page.text
            assert client.get("/calibration/static/look.css").status_code == 200
            assert client.get("/calibrations").json() == "mine"
            assert client.get("/metrics").status_code == 404
