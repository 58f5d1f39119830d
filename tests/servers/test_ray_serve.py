"""Ray Serve by ``serve run``, with a cluster of its own: two replicas that answer in batches."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from example_servers import Site, answers, rows, site_of
from live_server import until
from server_checks import (
    Predict,
    Reply,
    check_a_killed_worker_loses_no_more_than_it_had_not_sent,
    check_a_row_without_a_number_spoils_no_other,
    check_each_answer_until_the_end_is_counted,
    check_predictions_and_labels_are_counted_once,
    check_the_watch_may_be_away,
    check_what_is_lost_is_said,
)
from server_environments import server_environ, server_python

pytestmark = [pytest.mark.server, pytest.mark.nightly]
PORT = 8000


@contextmanager
def started(folder: Path) -> Iterator[Site]:
    programs, made = server_python("ray-serve").parent, site_of("ray-serve", folder, PORT)
    application = {"name": "default", "import_path": "calibrated:app"}
    config = {"http_options": {"host": "127.0.0.1", "port": made.ports[PORT]}, "applications": [application]}
    (folder / "serve.yaml").write_text(json.dumps(config))
    # Little memory for objects, and its token in a home folder of its own.
    own = {"HOME": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    own |= {"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "80000000"}
    environ = server_environ("ray-serve", **made.keys(), **own)
    command = [programs / "serve", "run", "serve.yaml"]
    with made.watch, made.serving(command, answers(made.url(PORT, "-/healthz")), environ=environ):
        until(lambda: httpx.get(made.url(PORT, "-/routes"), timeout=30).json(), seconds=120)
        predict_by(made)(rows(1))  # it waits for a replica
        made.until_counted(1)
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with started(tmp_path_factory.mktemp("ray")) as made:
        yield made


@pytest.fixture
def site(shared: Site) -> Site:
    return shared.mark()


def predict_by(site: Site) -> Predict:
    def predict(x: np.ndarray) -> list[Reply]:
        (row,) = x
        answer = httpx.post(site.url(PORT), json={"x": row.tolist()}, timeout=60)
        assert answer.status_code == 200, answer.text
        return [Reply(**answer.json())]

    return predict


def workers(site: Site) -> list[psutil.Process]:
    """The processes of the replicas."""
    found = []
    for process in psutil.Process(site.processes[-1].pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] == ["ray::ServeReplica:default:Digits"]:
                found.append(process)
    return found


def test_each_prediction_and_each_label_is_counted_once(site: Site) -> None:
    check_predictions_and_labels_are_counted_once(site, predict_by(site))
    assert len(workers(site)) == 2


def test_a_row_without_a_number_spoils_no_other(site: Site) -> None:
    check_a_row_without_a_number_spoils_no_other(site, predict_by(site))


def test_predictions_go_on_without_a_watch_and_are_counted_later(site: Site) -> None:
    check_the_watch_may_be_away(site, predict_by(site))


def test_a_killed_worker_loses_no_more_than_it_had_not_sent(site: Site) -> None:
    check_a_killed_worker_loses_no_more_than_it_had_not_sent(site, predict_by(site), workers)


@pytest.mark.last
def test_each_answer_until_the_end_is_counted(site: Site) -> None:
    """The last test: it ends the server of all."""
    check_each_answer_until_the_end_is_counted(site, predict_by(site), signal.SIGINT)


def test_what_is_lost_at_the_end_is_said(tmp_path: Path) -> None:
    with started(tmp_path) as site:
        check_what_is_lost_is_said(site.mark(), predict_by(site), signal.SIGINT)
