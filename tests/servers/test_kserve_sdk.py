"""KServe's Python server by ``python calibrated.py``: two REST workers, protocols v1 and v2, and gRPC."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from example_servers import Site, answers, rows, site_of
from live_server import total, until
from oip_clients import oip_grpc, oip_rest
from server_checks import (
    Predict,
    Reply,
    check_a_killed_worker_loses_no_more_than_it_had_not_sent,
    check_a_row_without_a_number_spoils_no_other,
    check_each_answer_until_the_end_is_counted,
    check_predictions_and_labels_are_counted_once,
    check_the_watch_may_be_away,
    check_what_is_lost_is_said,
    served,
    workers_of,
)
from server_environments import server_environ, server_python

pytestmark = [pytest.mark.server, pytest.mark.nightly]
HTTP, GRPC = 8080, 8081


@contextmanager
def started(folder: Path) -> Iterator[Site]:
    python, made = server_python("kserve"), site_of("kserve", folder, HTTP, GRPC)
    command = [python, "calibrated.py", "--workers", "2", "--http_port", str(HTTP), "--grpc_port", str(GRPC)]
    # KServe kills a worker whose imports take more than five seconds, so compiled files are kept.
    environ = server_environ("kserve", **made.keys(), PYTHONDONTWRITEBYTECODE="")
    with (
        made.watch,
        made.serving(command, answers(made.url(HTTP, "v2/models/digits/ready")), environ=environ),
    ):
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with started(tmp_path_factory.mktemp("kserve")) as made:
        yield made


@pytest.fixture
def site(shared: Site) -> Site:
    return shared.mark()


def by_v1(site: Site) -> Predict:
    def predict(x: np.ndarray) -> list[Reply]:
        url = site.url(HTTP, "v1/models/digits:predict")
        answer = httpx.post(url, json={"instances": x.tolist()}, timeout=60)
        assert answer.status_code == 200, answer.text
        columns = (answer.json()[name] for name in ("predictions", "confidences", "receipts"))
        return [Reply(*one) for one in zip(*columns, strict=True)]

    return predict


def test_each_prediction_and_each_label_is_counted_once(site: Site) -> None:
    check_predictions_and_labels_are_counted_once(site, by_v1(site))
    assert len(workers_of(site)) == 2


@pytest.mark.parametrize("protocol", ["REST", "gRPC"])
def test_v2_replies_say_the_same_in_outputs(site: Site, protocol: str) -> None:
    ask = oip_rest(site.url(HTTP)) if protocol == "REST" else oip_grpc(f"127.0.0.1:{site.ports[GRPC]}")
    served(ask, rows(40), at_once=5)
    site.until_counted(40)


def test_a_row_without_a_number_spoils_no_other(site: Site) -> None:
    check_a_row_without_a_number_spoils_no_other(site, by_v1(site))
    own = site.url(HTTP, "metrics")
    until(lambda: total(httpx.get(own, timeout=30).text, "calib_invalid_outputs_total") == 1, seconds=60)


def test_predictions_go_on_without_a_watch_and_are_counted_later(site: Site) -> None:
    check_the_watch_may_be_away(site, by_v1(site))


def test_a_killed_worker_loses_no_more_than_it_had_not_sent(site: Site) -> None:
    check_a_killed_worker_loses_no_more_than_it_had_not_sent(site, by_v1(site))


@pytest.mark.last
def test_each_answer_until_the_end_is_counted(site: Site) -> None:
    """The last test: it ends the server of all."""
    check_each_answer_until_the_end_is_counted(site, by_v1(site), signal.SIGTERM)


def test_what_is_lost_at_the_end_is_said(tmp_path: Path) -> None:
    with started(tmp_path) as site:
        check_what_is_lost_is_said(site.mark(), by_v1(site), signal.SIGTERM)
