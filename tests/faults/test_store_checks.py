"""Hosts whose clocks differ: what is said of them is true."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from real_watch import RING, make_watch, talk_to

from calib_serve.watch.service import Watch

pytestmark = pytest.mark.store

ONE = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}


def test_receipts_from_ahead_and_another_host_s_clock_are_said(tmp_path: Path) -> None:
    watch, ahead = make_watch(tmp_path), make_watch(tmp_path, clock=lambda: time.time() + 3600)
    with talk_to(watch) as client, talk_to(ahead) as theirs:
        (item,) = theirs.post("/v1/predictions", json=[ONE]).json()["items"]
        outcome = client.post("/v1/labels", json=[{"receipt": item["receipt"], "label": 1}]).json()
        assert outcome["refused"] == 1
        watch.checks.run()
        assert "dated 3600 s ahead" in client.get("/healthz").json()["checks"]["receipts"]
        ahead.ledger.writer = "another"
        other = Watch(RING, ahead.ledger, models=ahead.models, clock=ahead._clock)
        other.checks.run()
        watch.checks.run()
        assert "3600 s behind that of watch another" in client.get("/healthz").json()["checks"]["clock"]
        assert client.get("/healthz").json()["status"] == "degraded"
    watch.ledger.close(), ahead.ledger.close()
