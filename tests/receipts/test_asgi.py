"""The watch inside ASGI apps: Starlette's and FastAPI's, and one that is a bare function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastapi
import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry

from calib_serve import Keyring, Reporter, Watch
from calib_serve.core.errors import InputError
from calib_serve.web.asgi import WatchMiddleware

pytestmark = pytest.mark.store

HOSTS = ["testserver"]


def test_an_app_serves_predictions_labels_metrics_and_the_page(tmp_path: Path) -> None:
    ring, registry = Keyring.new(), CollectorRegistry()
    with (
        Watch.open({("pets", "1"): 3}, keyring=ring, ledger=tmp_path / "ledger.db") as watch,
        Reporter(3, model="pets", version="1", keyring=ring, watch=watch, registry=registry) as reporter,
    ):
        app = fastapi.FastAPI()
        app.add_middleware(WatchMiddleware, watch=watch, hosts=HOSTS)

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


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI app without any framework."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})


def test_any_asgi_app_takes_it_and_tokens_guard_it(tmp_path: Path) -> None:
    with Watch.open({("pets", "1"): 3}, keyring=Keyring.new(), ledger=tmp_path / "ledger.db") as watch:
        app = WatchMiddleware(bare, watch=watch, path="/a/b", hosts=HOSTS, tokens=["t" * 32])
        client = TestClient(app)
        assert client.get("/a").text == "/a"
        assert client.get("/a/b/metrics").status_code == 401
        assert client.get("/a/b/metrics", headers={"Authorization": "Bearer " + "t" * 32}).status_code == 200
        with pytest.raises(InputError, match="begins with /"):
            WatchMiddleware(bare, watch=watch, path="calibration/")


def test_it_is_found_where_a_proxy_or_a_mount_puts_a_path_before_it(tmp_path: Path) -> None:
    with Watch.open({("pets", "1"): 3}, keyring=Keyring.new(), ledger=tmp_path / "ledger.db") as watch:
        app = WatchMiddleware(bare, watch=watch, path="/a/b", hosts=HOSTS)
        client = TestClient(app, root_path="/api")  # as uvicorn --root-path /api
        for path in ("/api/a/b/metrics", "/a/b/metrics"):  # with the root, and of servers that leave it out
            assert "calib_predictions_total" in client.get(path).text
        assert client.get("/api/a").text == "/api/a"
