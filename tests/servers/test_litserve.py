"""LitServe by ``python calibrated.py``: two worker processes that answer in batches."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from example_servers import Site, answers, site_of
from server_checks import (
    Predict,
    Reply,
    check_a_killed_worker_loses_no_more_than_it_had_not_sent,
    check_predictions_and_labels_are_counted_once,
    check_the_watch_may_be_away,
    check_what_was_served_is_counted_at_the_end,
    workers_of,
)
from server_environments import server_environ, server_python

pytestmark = [pytest.mark.server, pytest.mark.nightly]
PORT = 8000


@contextmanager
def started(folder: Path) -> Iterator[Site]:
    python, made = server_python("litserve"), site_of("litserve", folder, PORT)
    environ = server_environ("litserve", **made.keys())
    ready = answers(made.url(PORT, "health"))
    with made.watch, made.serving([python, "calibrated.py"], ready, environ=environ):
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with started(tmp_path_factory.mktemp("litserve")) as made:
        yield made


@pytest.fixture
def site(shared: Site) -> Site:
    return shared.mark()


def predict_by(site: Site) -> Predict:
    def predict(x: np.ndarray) -> list[Reply]:
        (row,) = x
        answer = httpx.post(site.url(PORT, "predict"), json={"x": row.tolist()}, timeout=60)
        assert answer.status_code == 200, answer.text
        return [Reply(**answer.json())]

    return predict


def test_each_prediction_and_each_label_is_counted_once(site: Site) -> None:
    check_predictions_and_labels_are_counted_once(site, predict_by(site))
    assert len(workers_of(site)) == 2


def test_predictions_go_on_without_a_watch_and_are_counted_later(site: Site) -> None:
    check_the_watch_may_be_away(site, predict_by(site))


def test_a_killed_worker_loses_no_more_than_it_had_not_sent(site: Site) -> None:
    check_a_killed_worker_loses_no_more_than_it_had_not_sent(site, predict_by(site))


def test_what_was_served_before_the_end_is_counted(tmp_path: Path) -> None:
    with started(tmp_path) as site:
        check_what_was_served_is_counted_at_the_end(site, predict_by(site), signal.SIGINT)
