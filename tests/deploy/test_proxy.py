"""The container's own command behind a real nginx, both as deploy/kserve.yaml says, ports and folders apart.

TorchServe asks for no token here; whatever must be refused, nginx refuses.
"""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Iterator
from http.client import HTTPResponse

import psutil
import pytest
from live_server import until
from proxied_server import FIRST, SECOND, Pod, X, running_pod

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[Pod]:
    with running_pod(tmp_path_factory.mktemp("pod"), redis_url) as found:
        yield found


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


@pytest.mark.parametrize(
    "headers",
    [
        ("Authorization: Bearer wrong", f"Authorization: Bearer {FIRST}"),
        (f"Authorization : Bearer {FIRST}",),
        ("X: y", f" Authorization: Bearer {FIRST}"),
        (f"Authorization: Bearer wrong, Bearer {FIRST}",),
    ],
    ids=str,
)
def test_no_spelling_of_a_header_passes_for_a_token(pod: Pod, headers: tuple[str, ...]) -> None:
    status, answer = raw(pod.predictions, "POST /predictions/digits HTTP/1.1", *headers)
    assert status in (400, 401)
    assert b"receipt" not in answer


@pytest.mark.parametrize("path", ["/", "/models", "/models/digits", "/metrics", "/explanations/digits"])
def test_only_predictions_and_ping_are_there_even_with_a_token(pod: Pod, path: str) -> None:
    assert pod.ask(FIRST, path).status_code == 404


def test_a_label_is_counted_through_the_proxy(pod: Pod) -> None:
    label = [{"receipt": pod.ask(FIRST).json()["receipt"], "label": 3}]
    reply = pod.ask(SECOND, "/predictions/calibration_feedback", json=label)
    assert reply.status_code == 200, reply.text
    assert reply.json()["accepted"] == 1


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
    until(lambda: pod.ask(FIRST).status_code == 200)


def test_the_logs_tell_no_token_and_no_query(pod: Pod) -> None:
    assert pod.ask(FIRST, "/predictions/digits?patient=Anna").status_code == 200
    text = (pod.tokens.with_name("access.log")).read_text()
    assert "/predictions/digits" in text
    assert FIRST not in text
    assert "Anna" not in text
