"""PyTriton by ``python calibrated.py``: Triton's own protocols, the model in the process of the example."""

from __future__ import annotations

import signal
import sysconfig
import tempfile
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
    check_predictions_and_labels_are_counted_once,
    check_the_watch_may_be_away,
    check_what_was_served_is_counted_at_the_end,
)
from server_environments import server_environ, server_python
from tritonclient.grpc import InferenceServerClient, InferInput

pytestmark = [pytest.mark.server, pytest.mark.nightly]
HTTP, GRPC, METRICS = 8000, 8001, 8002
NAMES = ("predicted", "confidence", "receipt")


@contextmanager
def started(folder: Path) -> Iterator[Site]:
    python, made = server_python("pytriton"), site_of("pytriton", folder, HTTP, GRPC, METRICS)
    ready = answers(made.url(HTTP, "v2/models/digits/ready"))
    # The Python that Triton starts is this one; PyTriton's sockets need a short path.
    with tempfile.TemporaryDirectory() as home, made.watch:
        own = {"LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR"), "PYTRITON_HOME": home}
        environ = server_environ("pytriton", **made.keys(), **own)
        with made.serving([python, "calibrated.py"], ready, environ=environ):
            yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with started(tmp_path_factory.mktemp("pytriton")) as made:
        yield made


@pytest.fixture
def site(shared: Site) -> Site:
    return shared.mark()


def by_rest(site: Site) -> Predict:
    def predict(x: np.ndarray) -> list[Reply]:
        tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
        url = site.url(HTTP, "v2/models/digits/infer")
        answer = httpx.post(url, json={"inputs": [tensor]}, timeout=60)
        assert answer.status_code == 200, answer.text
        found = {one["name"]: one["data"] for one in answer.json()["outputs"]}
        return [Reply(*values) for values in zip(*(found[name] for name in NAMES), strict=True)]

    return predict


def by_grpc(site: Site) -> Predict:
    def predict(x: np.ndarray) -> list[Reply]:
        tensor = InferInput("x", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        with InferenceServerClient(f"127.0.0.1:{site.ports[GRPC]}") as client:
            answer = client.infer("digits", [tensor])
        predicted, confidence, receipt = (answer.as_numpy(name).ravel().tolist() for name in NAMES)
        told = [one.decode() for one in receipt]
        return [Reply(*values) for values in zip(predicted, confidence, told, strict=True)]

    return predict


def test_each_prediction_and_each_label_is_counted_once_over_rest(site: Site) -> None:
    check_predictions_and_labels_are_counted_once(site, by_rest(site))


def test_each_prediction_and_each_label_is_counted_once_over_grpc(site: Site) -> None:
    check_predictions_and_labels_are_counted_once(site, by_grpc(site))


def test_predictions_go_on_without_a_watch_and_are_counted_later(site: Site) -> None:
    check_the_watch_may_be_away(site, by_rest(site))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_what_was_served_before_the_end_is_counted(tmp_path: Path, how: signal.Signals) -> None:
    with started(tmp_path) as site:
        check_what_was_served_is_counted_at_the_end(site, by_rest(site), how)
