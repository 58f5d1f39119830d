"""Other model servers, started as their pages say: what each counts, whatever happens to it."""

from __future__ import annotations

import json
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from example_servers import EXAMPLES, Site, answers, rows, site_of
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
    check_what_was_served_is_counted_at_the_end,
    served,
    workers_of,
)
from server_environments import server_environ, server_python
from tritonclient.grpc import InferenceServerClient, InferInput

pytestmark = [pytest.mark.server, pytest.mark.nightly]

NAMES = ("predicted", "confidence", "receipt")
Workers = Callable[[Site], list[psutil.Process]]


def post(site: Site, port: int, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(site.url(port, path), json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def by_rows(port: int, path: str, site: Site) -> Predict:
    """One reply for all rows."""
    return lambda x: [Reply(**one) for one in post(site, port, path, {"rows": x.tolist()})]


def row_by_row(port: int, path: str, site: Site) -> Predict:
    return lambda x: [Reply(**post(site, port, path, {"x": row.tolist()})) for row in x]


def by_v1(site: Site) -> Predict:
    def predict(x: np.ndarray) -> list[Reply]:
        told = post(site, 8080, "v1/models/digits:predict", {"instances": x.tolist()})
        columns = (told[name] for name in ("predictions", "confidences", "receipts"))
        return [Reply(*one) for one in zip(*columns, strict=True)]

    return predict


def by_triton_rest(site: Site) -> Predict:
    def predict(x: np.ndarray) -> list[Reply]:
        tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
        told = post(site, 8000, "v2/models/digits/infer", {"inputs": [tensor]})
        found = {one["name"]: one["data"] for one in told["outputs"]}
        return [Reply(*values) for values in zip(*(found[name] for name in NAMES), strict=True)]

    return predict


def by_triton_grpc(site: Site) -> Predict:
    def predict(x: np.ndarray) -> list[Reply]:
        tensor = InferInput("x", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        with InferenceServerClient(f"127.0.0.1:{site.ports[8001]}") as client:
            answer = client.infer("digits", [tensor])
        predicted, confidence, receipt = (answer.as_numpy(name).ravel().tolist() for name in NAMES)
        told = [one.decode() for one in receipt]
        return [Reply(*values) for values in zip(predicted, confidence, told, strict=True)]

    return predict


def by_mlflow(site: Site, **params: Any) -> Predict:
    def predict(x: np.ndarray) -> list[Reply]:
        body = {"inputs": x.tolist(), **({"params": params} if params else {})}
        told = post(site, 5001, "invocations", body)["predictions"]
        return [Reply(one["predicted"], one["confidence"], one.get("receipt", "")) for one in told]

    return predict


def below(words: str, site: Site) -> list[psutil.Process]:
    """The processes below the server's whose command line has these words."""
    found = []
    for process in psutil.Process(site.processes[-1].pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if words in " ".join(process.cmdline()):
                found.append(process)
    return found


def nothing(_site: Site, _home: str) -> dict[str, str]:
    return {}


def mlserver_files(site: Site, _home: str) -> dict[str, str]:
    for path in (EXAMPLES / "mlserver").glob("*.json"):
        (site.folder / path.name).write_text(site.here(path.read_text()))
    return {}


def ray_files(site: Site, _home: str) -> dict[str, str]:
    """Little memory for objects, and Ray's token in a home folder of its own."""
    application = {"name": "default", "import_path": "calibrated:app"}
    config = {"http_options": {"host": "127.0.0.1", "port": site.ports[8000]}, "applications": [application]}
    (site.folder / "serve.yaml").write_text(json.dumps(config))
    own = {"HOME": str(site.folder), "RAY_USAGE_STATS_ENABLED": "0"}
    return own | {"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "80000000"}


def mlflow_model(site: Site, _home: str) -> dict[str, str]:
    command = [server_python("mlflow"), "calibrated.py"]
    subprocess.run(command, cwd=site.folder, env=server_environ("mlflow"), check=True, timeout=300)
    return {"CALIB_SERVE_WATCH": site.watch.url}


def mlflow_more(site: Site) -> None:
    """Labels come home by the callers' own ids; what cannot be answered is refused and counts nothing."""
    names = [f"order-{i}" for i in range(20)]
    by_mlflow(site, ids=names, segment="eu")(rows(20))
    for body in (
        {"inputs": rows(2)[:, :3].tolist()},
        {"inputs": rows(2).tolist(), "params": {"ids": ["one for two rows"]}},
    ):
        assert httpx.post(site.url(5001, "invocations"), json=body, timeout=60).status_code == 400
    site.until_counted(20)
    items = [{"id": name, "label": 3} for name in names]
    told = [httpx.post(f"{site.watch.url}/v1/labels", json={"items": items}, timeout=60) for _ in "12"]
    assert [answer.json()["accepted"] for answer in told] == [20, 0], told[0].text[:500]


after_its_last_reply = partial(check_what_was_served_is_counted_at_the_end, how=signal.SIGTERM)
amid_its_work = partial(check_each_answer_until_the_end_is_counted, how=signal.SIGTERM)


@dataclass(frozen=True)
class Other:
    """A server: its ports, as its page names them; the program and its arguments; how it is asked."""

    ports: tuple[int, ...]
    command: Sequence[str]
    ready: tuple[int, str]
    asks: Sequence[Callable[[Site], Predict]]
    prepare: Callable[[Site, str], dict[str, str]] = nothing
    workers: Workers | None = workers_of
    batches: bool = True  # rows of several requests
    metrics: int = 0
    end: Callable[[Site, Predict], None] = after_its_last_reply
    more: Callable[[Site], None] = lambda _: None


OTHERS = {
    "bentoml": Other(
        (3000,),
        ("bentoml", "serve", "calibrated:Digits", "--host", "127.0.0.1", "--port", "3000"),
        (3000, "readyz"),
        [partial(by_rows, 3000, "classify")],
        lambda site, _: {"BENTOML_HOME": str(site.folder / "home"), "BENTOML_DO_NOT_TRACK": "True"},
        workers=lambda site: psutil.Process(site.processes[-1].pid).children(),
        metrics=3000,
    ),
    "kserve": Other(
        (8080, 8081),
        ("python", "calibrated.py", "--workers", "2", "--http_port", "8080", "--grpc_port", "8081"),
        (8080, "v2/models/digits/ready"),
        [
            by_v1,
            lambda site: oip_rest(site.url(8080)),
            lambda site: oip_grpc(f"127.0.0.1:{site.ports[8081]}"),
        ],
        # KServe kills a worker whose imports take more than five seconds, so compiled files are kept.
        lambda *_: {"PYTHONDONTWRITEBYTECODE": ""},
        metrics=8080,
        end=amid_its_work,
    ),
    "litserve": Other(
        (8000,),
        ("python", "calibrated.py"),
        (8000, "health"),
        [partial(row_by_row, 8000, "predict")],
        batches=False,
        end=partial(after_its_last_reply, how=signal.SIGINT),
    ),
    "mlflow": Other(
        (5001,),
        ("mlflow", "models", "serve", "-m", "models:/digits/1", "--env-manager", "local", "--port", "5001",
         "--workers", "2"),
        (5001, "ping"),
        [by_mlflow],
        mlflow_model,
        workers=partial(below, "spawn_main"),
        more=mlflow_more,
    ),
    "mlserver": Other(
        (8080, 8081, 8082),
        ("mlserver", "start", "."),
        (8080, "v2/models/digits/ready"),
        [lambda site: oip_rest(site.url(8080)), lambda site: oip_grpc(f"127.0.0.1:{site.ports[8081]}")],
        mlserver_files,
        metrics=8082,
        end=partial(amid_its_work, last_words="gRPC server shutdown complete"),
    ),
    "pytriton": Other(
        (8000, 8001, 8002),
        ("python", "calibrated.py"),
        (8000, "v2/models/digits/ready"),
        [by_triton_rest, by_triton_grpc],
        # The Python that Triton starts is this one; PyTriton's sockets need a short path.
        lambda _, home: {"LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR"), "PYTRITON_HOME": home},
        workers=None,
        batches=False,
    ),
    "ray-serve": Other(
        (8000,),
        ("serve", "run", "serve.yaml"),
        (8000, "-/healthz"),
        [partial(row_by_row, 8000, "")],
        ray_files,
        workers=partial(below, "ray::ServeReplica:default:Digits"),
        end=partial(amid_its_work, how=signal.SIGINT),
    ),
}  # fmt: skip


@contextmanager
def started(name: str, folder: Path) -> Iterator[Site]:
    other, programs, site = (
        OTHERS[name],
        server_python(name).parent,
        site_of(name, folder, *OTHERS[name].ports),
    )
    program, *arguments = other.command
    with tempfile.TemporaryDirectory() as home, site.watch:
        environ = server_environ(name, **site.keys(), **other.prepare(site, home))
        ready = answers(site.url(*other.ready))
        with site.serving([programs / program, *arguments], ready, environ=environ):
            yield site


@pytest.mark.parametrize("name", OTHERS)
def test_each_prediction_and_each_label_is_counted_once_to_the_end(name: str, tmp_path: Path) -> None:
    other = OTHERS[name]
    with started(name, tmp_path) as site:
        if name == "ray-serve":
            until(lambda: httpx.get(site.url(8000, "-/routes"), timeout=30).json(), seconds=120)
        ask, *others = [make(site) for make in other.asks]
        ask(rows(1))  # it may wait for a worker
        site.until_counted(1)
        check_predictions_and_labels_are_counted_once(site.mark(), ask)
        for one in others:
            served(one, rows(40), at_once=5)
        site.until_counted(120 + 40 * len(others))
        other.more(site.mark())
        if other.batches:
            check_a_row_without_a_number_spoils_no_other(site.mark(), ask)
        if other.metrics:
            own = site.url(other.metrics, "metrics")
            invalid = "calib_invalid_outputs_total"
            until(lambda: total(httpx.get(own, timeout=30).text, invalid) == 1, seconds=60)
        check_the_watch_may_be_away(site.mark(), ask)
        if other.workers:
            assert len(other.workers(site)) == 2
            check_a_killed_worker_loses_no_more_than_it_had_not_sent(site.mark(), ask, other.workers)
        other.end(site.mark(), ask)
