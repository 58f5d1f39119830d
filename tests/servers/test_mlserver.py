"""MLServer by ``mlserver start``: two workers, over REST and gRPC, with adaptive batching."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from example_servers import EXAMPLES, Site, answers, rows, site_of
from live_server import total, until
from oip_clients import oip_grpc, oip_rest
from server_checks import (
    check_a_killed_worker_loses_no_more_than_it_had_not_sent,
    check_a_row_without_a_number_spoils_no_other,
    check_each_answer_until_the_end_is_counted,
    check_predictions_and_labels_are_counted_once,
    check_the_watch_may_be_away,
    check_the_watch_may_die_at_work,
    check_what_is_lost_is_said,
    served,
    workers_of,
)
from server_environments import server_environ, server_python

pytestmark = [pytest.mark.server, pytest.mark.nightly]
HTTP, GRPC, METRICS = 8080, 8081, 8082


@contextmanager
def started(folder: Path) -> Iterator[Site]:
    programs, made = server_python("mlserver").parent, site_of("mlserver", folder, HTTP, GRPC, METRICS)
    for path in (EXAMPLES / "mlserver").glob("*.json"):
        (folder / path.name).write_text(made.here(path.read_text()))
    ready = answers(made.url(HTTP, "v2/models/digits/ready"))
    environ = server_environ("mlserver", **made.keys())
    with made.watch, made.serving([programs / "mlserver", "start", "."], ready, environ=environ):
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with started(tmp_path_factory.mktemp("mlserver")) as made:
        yield made


@pytest.fixture
def site(shared: Site) -> Site:
    return shared.mark()


def test_each_prediction_and_each_label_is_counted_once(site: Site) -> None:
    check_predictions_and_labels_are_counted_once(site, oip_rest(site.url(HTTP)))
    assert len(workers_of(site)) == 2


def test_grpc_replies_have_the_same_outputs(site: Site) -> None:
    served(oip_grpc(f"127.0.0.1:{site.ports[GRPC]}"), rows(40), at_once=5)
    site.until_counted(40)


def test_a_row_without_a_number_spoils_no_other(site: Site) -> None:
    check_a_row_without_a_number_spoils_no_other(site, oip_rest(site.url(HTTP)))
    own = site.url(METRICS, "metrics")
    until(lambda: total(httpx.get(own, timeout=30).text, "calib_invalid_outputs_total") == 1, seconds=60)


def test_predictions_go_on_without_a_watch_and_are_counted_later(site: Site) -> None:
    check_the_watch_may_be_away(site, oip_rest(site.url(HTTP)))


def test_a_watch_that_dies_at_work_counts_each_once(site: Site) -> None:
    check_the_watch_may_die_at_work(site, oip_rest(site.url(HTTP)))


def test_a_killed_worker_loses_no_more_than_it_had_not_sent(site: Site) -> None:
    check_a_killed_worker_loses_no_more_than_it_had_not_sent(site, oip_rest(site.url(HTTP)))


@pytest.mark.last
def test_each_answer_until_the_end_is_counted(site: Site) -> None:
    """The last test: it ends the server of all."""
    check_each_answer_until_the_end_is_counted(
        site, oip_rest(site.url(HTTP)), signal.SIGTERM, last_words="gRPC server shutdown complete"
    )


def test_what_is_lost_at_the_end_is_said(tmp_path: Path) -> None:
    with started(tmp_path) as site:
        check_what_is_lost_is_said(site.mark(), oip_rest(site.url(HTTP)), signal.SIGTERM)
