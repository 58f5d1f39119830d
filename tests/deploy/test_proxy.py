"""The container's own command behind a real nginx, both as deploy/kserve.yaml says, ports and folders apart.

TorchServe asks for no token here; whatever must be refused, nginx refuses.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from live_server import inputs, small_store, total, until
from processes import free_ports, started
from real_servers import needed

from calib_serve import Keyring
from calib_serve.torchserve.properties import read_properties

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
OBJECTS = {one["kind"]: one for one in yaml.safe_load_all((ROOT / "deploy" / "kserve.yaml").read_text())}
SERVER, _ = OBJECTS["InferenceService"]["spec"]["predictor"]["containers"]
FIRST, SECOND = "0f" * 32, secrets.token_hex(32)
X = inputs(1)[0].tolist()


def _here(text: str, places: dict[str, str]) -> str:
    """``text`` with what the manifest names replaced by what stands for it on this machine."""
    return re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], text)


@dataclass
class Pod:
    """Both containers, running."""

    predictions: str
    metrics: str
    tokens: Path
    nginx: psutil.Process
    command: psutil.Process
    keyring: Keyring

    def ask(self, token: str | None, path: str = "/predictions/digits", **more: Any) -> httpx.Response:
        """A prediction, as a client of the Service asks for it."""
        headers = ({"Authorization": f"Bearer {token}"} if token else {}) | more.pop("headers", {})
        more = {"json": X, "timeout": 60, "trust_env": False} | more
        return httpx.post(self.predictions + path, headers=headers, **more)


def _status(url: str) -> int | None:
    """Of a GET; None where nothing listens."""
    try:
        return httpx.get(url, timeout=30, trust_env=False).status_code
    except httpx.TransportError:
        return None


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[Pod]:
    """Both containers, in a folder and on ports of their own."""
    folder = tmp_path_factory.mktemp("pod")
    (folder / "models").mkdir()
    store = small_store(folder / "models")
    keyring = Keyring.new()
    keyring.save(folder / "keyring.json")
    names = ("8080", "8083", "8085", "8081", "8082", "7070", "7071")
    ports = dict(zip(names, map(str, free_ports(len(names))), strict=True))
    tokens = folder / "tokens.conf"
    tokens.write_text(f'"Bearer {FIRST}" 1;\n"Bearer {SECOND}" 1;\n')
    (folder / "tmp").mkdir()
    places = {
        "/tokens/tokens.conf": str(tokens),
        "/tmp/": f"{folder}/tmp/",
        "/dev/stdout": str(folder / "access.log"),
        "/keys/keyring.json": str(folder / "keyring.json"),
        "postgresql://labels@postgres/labels": postgres_url,
        **ports,
    }
    (folder / "nginx.conf").write_text(_here(OBJECTS["ConfigMap"]["data"]["nginx.conf"], places))
    settings = read_properties(ROOT / "config.properties")
    asked = [_here(one, places) for one in SERVER["args"]]
    for name in ("management_address", "metrics_address", "grpc_inference_port", "grpc_management_port"):
        asked.append(f"--option={name}={_here(settings[name], places)}")
    command = [
        *(sys.executable, "-c", "from calib_serve.app import main; main()", "serve"),
        *("--store", str(store), "--folder", str(folder / "state"), *asked),
    ]
    nginx = [needed("nginx", "nginx"), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    if os.geteuid() == 0:
        nginx += ["-g", "user root;"]  # its workers write into this test's folder
    with started(nginx) as proxy:
        at = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        until(lambda: _status(f"{at['8080']}/ping") == 502)  # not ready while nothing is behind it
        with started(command, stdout=subprocess.DEVNULL) as server:
            until(lambda: _status(f"{at['8080']}/ping") == 200)
            yield Pod(
                predictions=at["8080"],
                metrics=at["8083"],
                tokens=tokens,
                nginx=psutil.Process(proxy.pid),
                command=psutil.Process(server.pid),
                keyring=keyring,
            )


@pytest.mark.parametrize("token", [FIRST, SECOND], ids=["first", "second"])
def test_either_token_predicts_and_headers_pass_both_ways(pod: Pod, token: str) -> None:
    reply = pod.ask(token, headers={"x-calib-segment": "CH"})
    assert reply.status_code == 200, reply.text
    receipt = pod.keyring.verify(reply.json()["receipt"])
    assert receipt.segment == "CH"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {FIRST[:-1]}"},
        {"Authorization": f"Bearer {FIRST}0"},
        {"Authorization": f"Basic {FIRST}"},
        {"Authorization": "default"},
        {"Cookie": f"Authorization=Bearer {FIRST}"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/predictions/digits", "/predictions/calibration_feedback"])
def test_without_a_token_nothing_is_predicted_and_no_label_taken(
    pod: Pod, headers: dict[str, str], path: str
) -> None:
    reply = pod.ask(None, path, json=X, headers=headers)
    assert reply.status_code == 401
    assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert "receipt" not in reply.text


def raw(url: str, line: str, *headers: str) -> tuple[int, bytes]:
    """Status and body for a request whose first line and headers no client would tidy up."""
    host, port = url.removeprefix("http://").split(":")
    body = str(X)
    fixed = ("Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall("\r\n".join([line, *fixed, *headers, "", body]).encode())
        answer = HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.read()


SPELLINGS = [
    "POST /predictions/digits/1.0/../../../ping HTTP/1.1",
    "POST /predictions/digits/1.0/..%2f..%2f..%2fping HTTP/1.1",
    "POST //predictions/digits HTTP/1.1",
    "POST /%70redictions/digits HTTP/1.1",
    "POST http://x/predictions/digits HTTP/1.1",
    "POST /v1/models/digits:predict HTTP/1.1",
    "POST /v2/models/digits/infer HTTP/1.1",
    "POST /invocations?model_name=digits HTTP/1.1",
    "POST /ping/../predictions/digits HTTP/1.1",
    "OPTIONS /predictions/digits HTTP/1.1",
    "POST /predictions/digits HTTP/1.0",
]


@pytest.mark.parametrize("line", SPELLINGS)
def test_no_spelling_of_a_path_passes_the_token_by(pod: Pod, line: str) -> None:
    _, answer = raw(pod.predictions, line)
    assert b"receipt" not in answer


@pytest.mark.parametrize("path", ["/", "/models", "/models/digits", "/metrics", "/explanations/digits"])
def test_only_predictions_and_ping_are_there_even_with_a_token(pod: Pod, path: str) -> None:
    assert pod.ask(FIRST, path).status_code == 404


def test_the_port_of_the_metrics_has_the_metrics_alone(pod: Pod) -> None:
    assert pod.ask(FIRST).status_code == 200
    metrics = f"{pod.metrics}/metrics"
    until(lambda: total(httpx.get(metrics, trust_env=False).text, "calib_predictions_total") > 0)
    for path in ("/", "/predictions/digits", "/models", "/metrics/../predictions/digits"):
        assert httpx.post(pod.metrics + path, json=X, trust_env=False).status_code == 404


def test_nothing_of_torchserve_listens_beyond_loopback(pod: Pod) -> None:
    family = [pod.command, *pod.command.children(recursive=True)]
    listening = [
        found.laddr
        for one in family
        for found in one.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN
    ]
    assert len(listening) == 5  # inference, management, metrics, and gRPC twice
    assert {place.ip.removeprefix("::ffff:") for place in listening} == {"127.0.0.1"}


def test_tokens_rotate_while_requests_are_answered(pod: Pod) -> None:
    third = secrets.token_hex(32)
    lines = pod.tokens.read_text()
    pod.tokens.write_text(f'"Bearer {third}" 1;\n"Bearer {SECOND}" 1;\n')
    assert pod.ask(FIRST).status_code == 200  # read at start, not for each request
    pod.nginx.send_signal(signal.SIGHUP)
    until(lambda: pod.ask(third).status_code == 200)
    until(lambda: pod.ask(FIRST).status_code == 401)
    assert pod.ask(SECOND).status_code == 200
    pod.tokens.write_text(lines)
    pod.nginx.send_signal(signal.SIGHUP)
    # A worker of before the reload may answer a few more connections.
    until(lambda: all(pod.ask(FIRST).status_code == 200 for _ in range(20)))


def test_the_logs_tell_no_token_and_no_query(pod: Pod) -> None:
    assert pod.ask(FIRST, "/predictions/digits?patient=Anna").status_code == 200
    text = (pod.tokens.with_name("access.log")).read_text()
    assert "/predictions/digits" in text
    assert FIRST not in text
    assert "Anna" not in text
