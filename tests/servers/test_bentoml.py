"""BentoML by ``bentoml serve``: two workers that answer in batches."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from example_servers import Site, answers, site_of
from live_server import total, until
from server_checks import (
    Predict,
    Reply,
    check_a_killed_worker_loses_no_more_than_it_had_not_sent,
    check_a_row_without_a_number_spoils_no_other,
    check_predictions_and_labels_are_counted_once,
    check_the_watch_may_be_away,
    check_the_watch_may_die_at_work,
    check_what_is_lost_is_said,
    check_what_was_served_is_counted_at_the_end,
)
from server_environments import server_environ, server_python

pytestmark = [pytest.mark.server, pytest.mark.nightly]
PORT = 3000


@contextmanager
def started(folder: Path) -> Iterator[Site]:
    programs, made = server_python("bentoml").parent, site_of("bentoml", folder, PORT)
    own = {"BENTOML_HOME": str(folder / "home"), "BENTOML_DO_NOT_TRACK": "True"}
    environ = server_environ("bentoml", **made.keys(), **own)
    command = [programs / "bentoml", "serve", "calibrated:Digits", "--host", "127.0.0.1", "--port", str(PORT)]
    with made.watch, made.serving(command, answers(made.url(PORT, "readyz")), environ=environ):
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with started(tmp_path_factory.mktemp("bentoml")) as made:
        yield made


@pytest.fixture
def site(shared: Site) -> Site:
    return shared.mark()


def predict_by(site: Site) -> Predict:
    def predict(x: np.ndarray) -> list[Reply]:
        answer = httpx.post(site.url(PORT, "classify"), json={"rows": x.tolist()}, timeout=60)
        assert answer.status_code == 200, answer.text
        return [Reply(**one) for one in answer.json()]

    return predict


def workers(site: Site) -> list[psutil.Process]:
    """The processes that run the service."""
    return psutil.Process(site.processes[-1].pid).children()


def test_each_prediction_and_each_label_is_counted_once(site: Site) -> None:
    check_predictions_and_labels_are_counted_once(site, predict_by(site))
    assert len(workers(site)) == 2


def test_a_row_without_a_number_spoils_no_other(site: Site) -> None:
    check_a_row_without_a_number_spoils_no_other(site, predict_by(site))
    own = site.url(PORT, "metrics")
    until(lambda: total(httpx.get(own, timeout=30).text, "calib_invalid_outputs_total") == 1, seconds=60)


def test_predictions_go_on_without_a_watch_and_are_counted_later(site: Site) -> None:
    check_the_watch_may_be_away(site, predict_by(site))


def test_a_watch_that_dies_at_work_counts_each_once(site: Site) -> None:
    check_the_watch_may_die_at_work(site, predict_by(site))


def test_a_killed_worker_loses_no_more_than_it_had_not_sent(site: Site) -> None:
    check_a_killed_worker_loses_no_more_than_it_had_not_sent(site, predict_by(site), workers)


@pytest.mark.last
def test_what_was_served_before_the_end_is_counted(site: Site) -> None:
    """The last test: it ends the server of all."""
    check_what_was_served_is_counted_at_the_end(site, predict_by(site), signal.SIGTERM)


def test_what_is_lost_at_the_end_is_said(tmp_path: Path) -> None:
    with started(tmp_path) as site:
        check_what_is_lost_is_said(site.mark(), predict_by(site), signal.SIGTERM)
