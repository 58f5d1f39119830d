"""FastAPI by uvicorn's command line: one process or several, killed, ended, and without its watch."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from example_servers import Site, answers, rows, site_of
from live_server import total
from server_checks import (
    Predict,
    Reply,
    check_a_killed_worker_loses_no_more_than_it_had_not_sent,
    check_predictions_and_labels_are_counted_once,
    check_the_watch_may_die_at_work,
    check_what_was_served_is_counted_at_the_end,
    served,
)
from sizes import NIGHTLY

pytestmark = pytest.mark.server
PORT = 8000


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = site_of("fastapi", tmp_path / "fastapi", PORT)
    with made.watch:
        yield made


@contextmanager
def uvicorn(site: Site, app: str, *options: str) -> Iterator[None]:
    command = [sys.executable, "-m", "uvicorn", f"{app}:app", "--port", str(PORT), "--no-access-log"]
    environ = site.environ()
    with site.serving([*command, *options], answers(site.url(PORT, "openapi.json")), environ=environ):
        yield


def client(site: Site) -> Predict:
    """A connection a request, so that every worker gets some."""

    def predict(x: np.ndarray) -> list[Reply]:
        answer = httpx.post(site.url(PORT, "predict"), json=x.tolist(), timeout=60)
        assert answer.status_code == 200, answer.text
        return [Reply(*values) for values in zip(*(answer.json()[name] for name in _NAMES), strict=True)]

    return predict


_NAMES = ("predicted", "confidence", "receipt")


def test_workers_count_each_prediction_and_each_label_once_to_the_end(site: Site) -> None:
    with uvicorn(site, "calibrated", "--workers", "2"):
        check_predictions_and_labels_are_counted_once(site, client(site))
        check_a_killed_worker_loses_no_more_than_it_had_not_sent(site.mark(), client(site))
        if NIGHTLY:
            check_the_watch_may_die_at_work(site.mark(), client(site))
        check_what_was_served_is_counted_at_the_end(site.mark(), client(site), signal.SIGTERM)


def test_one_process_serves_predictions_labels_and_metrics(tmp_path: Path) -> None:
    site = site_of("fastapi", tmp_path, PORT)
    with uvicorn(site, "one_process"):
        replies = served(client(site), rows(30), at_once=3)
        items = [{"receipt": reply.receipt, "label": 3} for reply in replies]
        home = site.url(PORT, "calibration/v1/labels")
        first, again = (httpx.post(home, json={"items": items}, timeout=60).json() for _ in "12")
        assert (first["accepted"], again["refused"]) == (30, 30)
        assert httpx.get(site.url(PORT, "calibration/"), timeout=30).status_code == 200
        elsewhere = {"host": "models.example.org"}
        assert httpx.get(site.url(PORT, "calibration/metrics"), headers=elsewhere).status_code == 400
        served(client(site), rows(30, seed=1))
        site.processes[-1].send_signal(signal.SIGTERM)
        site.processes[-1].wait(60)
    with uvicorn(site, "one_process"):
        text = httpx.get(site.url(PORT, "calibration/metrics"), timeout=30).text
        assert total(text, "calib_predictions_total", model="digits", version="1") == 60
        assert total(text, "calib_feedback_total", model="digits", version="1") == 30
