"""Where the gateway counts, and for whom: in a watch elsewhere, which may be away, or in its own ledger."""

from __future__ import annotations

import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from gateways import CLASSES, Running, artifact, gateway, logits
from live_server import until
from real_servers import Server
from recording_server import Recording, recording, reply
from test_hostile import INFER, document, post
from tritonclient.grpc import service_pb2

from calib_serve.watch.http import new_token

pytestmark = pytest.mark.server

METHOD = "/inference.GRPCInferenceService/ModelInfer"
ROWS = 5


@pytest.fixture
def server() -> Iterator[Recording]:
    with recording() as found:
        found.answer = lambda _: reply(document())
        yield found


@pytest.fixture
def model(tmp_path: Path) -> str:
    artifact().save(tmp_path / "artifact")
    return f"digits={tmp_path / 'artifact'}"


def token(folder: Path, name: str, scopes: str) -> str:
    made, line = new_token(name, scopes)
    path = folder / "tokens"
    path.touch(mode=0o600)
    path.write_text(f"{path.read_text()}{line}\n")
    return made


def bearer(made: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {made}"}


def receipts(found: httpx.Response) -> list[str]:
    assert found.status_code == 200, found.text
    return next(one["data"] for one in found.json()["outputs"] if one["name"] == "receipt")


def counted(watch: Server, name: str, headers: dict[str, str]) -> float:
    lines = httpx.get(f"{watch.url}/metrics", headers=headers, timeout=60).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def test_a_watch_elsewhere_counts_whatever_happens_to_it(
    server: Recording, model: str, tmp_path: Path
) -> None:
    """Predictions go on while it is away, and are counted once it is back; labels are its clients'."""
    label, scrape = token(tmp_path, "shop", "label"), token(tmp_path, "prometheus", "scrape")
    (tmp_path / "predict").touch(mode=0o600)
    (tmp_path / "predict").write_text(token(tmp_path, "gateway", "predict"))
    options = ["--token-file", str(tmp_path / "tokens")]
    with Server(tmp_path, *options, models=(f"digits:1={CLASSES}",)) as watch:
        told = ["--watch", watch.url, "--watch-token-file", str(tmp_path / "predict")]
        with gateway(
            tmp_path, server.url, "--output", "logits", *told, *options, models=(model,), ledger=False
        ) as running:
            first = receipts(post(running))
            until(lambda: counted(watch, "calib_predictions_total", bearer(scrape)) == ROWS, seconds=20)

            labels = {"items": [{"receipt": one, "label": 0} for one in first]}
            where = f"{running.http}/v1/labels"
            assert httpx.post(where, json=labels).status_code == 401
            assert httpx.post(where, json=labels, headers=bearer(scrape)).status_code == 403
            done = httpx.post(where, json=labels, headers=bearer(label))
            assert done.json()["accepted"] == ROWS
            assert counted(watch, "calib_feedback_total", bearer(scrape)) == ROWS

            assert watch.stop() == 0
            away = [one for _ in range(4) for one in receipts(post(running))]
            assert all(away)
            assert httpx.post(where, json=labels, headers=bearer(label)).status_code == 502
            watch.start()
            until(lambda: counted(watch, "calib_predictions_total", bearer(scrape)) == 5 * ROWS, seconds=60)
            labels = {"items": [{"receipt": one, "label": 0} for one in away]}
            assert httpx.post(where, json=labels, headers=bearer(label)).json()["accepted"] == 4 * ROWS

            metrics = f"{running.http}/calibration/metrics"
            assert httpx.get(metrics).status_code == 401
            assert httpx.get(metrics, headers=bearer(label)).status_code == 403
            found = httpx.get(metrics, headers=bearer(scrape)).text
            assert 'calib_uncalibrated_total{model="digits",version="1"} 0.0' in found
            assert 'calib_monitor_errors_total{stage="watch"}' in found


def test_tokens_are_for_labels_and_metrics_and_never_for_inference(
    server: Recording, model: str, tmp_path: Path
) -> None:
    label, scrape = token(tmp_path, "shop", "label"), token(tmp_path, "prometheus", "scrape")
    options = ["--output", "logits", "--token-file", str(tmp_path / "tokens")]
    with gateway(tmp_path, server.url, *options, models=(model,)) as running:
        given = receipts(post(running, headers={"Authorization": "Bearer the-servers-own"}))
        assert b"Bearer the-servers-own" in server.requests[-1]
        items = {"items": [{"receipt": one, "label": 0} for one in given]}
        where, metrics = f"{running.http}/v1/labels", f"{running.http}/calibration/metrics"
        assert httpx.post(where, json=items).status_code == 401
        assert httpx.post(where, json=items, headers=bearer(scrape)).status_code == 403
        assert httpx.post(where, json=items, headers=bearer(label)).json()["accepted"] == ROWS
        assert httpx.get(metrics, headers=bearer(label)).status_code == 403
        assert "calib_feedback_total" in httpx.get(metrics, headers=bearer(scrape)).text
        assert httpx.get(f"{running.http}/calibration/").status_code == 401
        assert len(server.requests) == 1  # none of it was the server's


def test_what_waits_is_counted_when_the_gateway_ends(server: Recording, model: str, tmp_path: Path) -> None:
    with gateway(tmp_path, server.url, "--output", "logits", models=(model,)) as running:
        for _ in range(20):
            post(running)
        running.process.terminate()
        assert running.process.wait(60) == 0
    with gateway(tmp_path, server.url, "--output", "logits", models=(model,)) as running:
        assert running.counted("calib_predictions_total") == 20 * ROWS


def test_a_gateway_that_is_killed_loses_what_it_had_not_counted_and_nothing_else(
    server: Recording, model: str, tmp_path: Path
) -> None:
    with gateway(tmp_path, server.url, "--output", "logits", models=(model,)) as running:
        first = receipts(post(running))
        until(lambda: running.counted("calib_predictions_total") == ROWS, seconds=20)
        last = receipts(post(running))
        running.process.kill()
        running.process.wait()
    with gateway(tmp_path, server.url, "--output", "logits", models=(model,)) as running:
        assert running.counted("calib_predictions_total") in (ROWS, 2 * ROWS)
        items = {"items": [{"receipt": one, "label": 0} for one in (*first, *last)]}
        assert httpx.post(f"{running.http}/v1/labels", json=items).json()["accepted"] == 2 * ROWS


def certificate(folder: Path) -> list[str]:
    """A certificate of this host, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*made, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return ["--tls-cert", str(cert), "--tls-key", str(key)]


@contextmanager
def grpc_server(answer: Any) -> Iterator[str]:
    """A server of ModelInfer that answers with what ``answer`` makes of a request and its context."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(answer) if details.method == METHOD else None

    made = grpc.server(futures.ThreadPoolExecutor(8), handlers=(Handler(),))
    port = made.add_insecure_port("127.0.0.1:0")
    made.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        made.stop(0).wait()


def model_reply(*_: Any) -> bytes:
    """The model's reply over gRPC, in typed contents."""
    z = logits()
    found = service_pb2.ModelInferResponse(model_name="digits", model_version="1")
    found.outputs.add(name="logits", datatype="FP32", shape=z.shape).contents.fp32_contents.extend(z.ravel())
    return found.SerializeToString()


ASKED = service_pb2.ModelInferRequest(model_name="digits").SerializeToString()


def test_tls_is_for_both_ports(server: Recording, model: str, tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    with (
        grpc_server(model_reply) as address,
        gateway(tmp_path, server.url, "--output", "logits", *tls, models=(model,), grpc=address) as running,
    ):
        trusted = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        assert receipts(httpx.post(running.http + INFER, content=b"{}", verify=trusted))
        roots = grpc.ssl_channel_credentials((tmp_path / "cert.pem").read_bytes())
        with grpc.secure_channel(running.grpc, roots) as channel:
            found = service_pb2.ModelInferResponse.FromString(channel.unary_unary(METHOD)(ASKED, timeout=20))
        assert [one.name for one in found.outputs][:3] == ["logits", "confidence", "receipt"]
        assert all(found.outputs[2].contents.bytes_contents)
        with grpc.insecure_channel(running.grpc) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary(METHOD)(ASKED, timeout=3)


def test_a_call_ends_with_its_deadline_or_the_gateways_and_too_many_are_refused(
    server: Recording, model: str, tmp_path: Path
) -> None:
    left: list[float] = []
    held = threading.Event()

    def answer(raw: bytes, context: Any) -> bytes:
        left.append(context.time_remaining())
        assert dict(context.invocation_metadata())["authorization"] == "Bearer mine"
        context.set_trailing_metadata((("x-servers", "own"),))
        held.wait(20)
        return model_reply()

    limits = ["--timeout", "4", "--max-waiting", "2"]
    mine = (("authorization", "Bearer mine"),)
    with (
        grpc_server(answer) as address,
        gateway(
            tmp_path, server.url, "--output", "logits", *limits, models=(model,), grpc=address
        ) as running,
        grpc.insecure_channel(running.grpc) as channel,
    ):
        call = channel.unary_unary(METHOD)
        with pytest.raises(grpc.RpcError) as raised:
            call(ASKED, timeout=1, metadata=mine)
        assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert left[-1] <= 1
        began = time.monotonic()
        waiting = [call.future(ASKED, metadata=mine) for _ in range(2)]
        until(lambda: len(left) == 3, seconds=10)
        with pytest.raises(grpc.RpcError) as raised:
            call(ASKED, timeout=5, metadata=mine)
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert [one.exception().code() for one in waiting] == [grpc.StatusCode.DEADLINE_EXCEEDED] * 2
        assert time.monotonic() - began < 15
        held.set()
        found, told = call.with_call(ASKED, metadata=mine)
        assert b"receipt" in found
        assert ("x-servers", "own") in [tuple(one) for one in told.trailing_metadata()]


@pytest.mark.parametrize(
    "broken",
    [
        b"\xff\xff",
        b"",
        service_pb2.ModelInferResponse(model_version="9").SerializeToString(),
        service_pb2.ModelInferResponse(
            outputs=[{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}], raw_output_contents=[b"abc"]
        ).SerializeToString(),
        service_pb2.ModelInferResponse(
            outputs=[{"name": "logits", "datatype": "FP16", "shape": [1, 3]}]
        ).SerializeToString(),
    ],
    ids=["no message", "empty", "another version", "too few bytes", "no contents"],
)
def test_a_reply_over_grpc_that_cannot_be_calibrated_passes_as_it_is_and_says_so(
    shared: tuple[Running, dict[str, bytes]], broken: bytes
) -> None:
    running, answers = shared
    answers["now"] = broken
    before = running.counted("calib_uncalibrated_total")
    with grpc.insecure_channel(running.grpc) as channel:
        found, told = channel.unary_unary(METHOD).with_call(ASKED, timeout=20)
    assert found == broken
    assert "x-calib-uncalibrated" in dict(told.trailing_metadata())
    assert running.counted("calib_uncalibrated_total") == before + 1


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, dict[str, bytes]]]:
    folder, answers = tmp_path_factory.mktemp("broken"), {"now": b""}
    artifact().save(folder / "artifact")
    with (
        recording() as server,
        grpc_server(lambda *_: answers["now"]) as address,
        gateway(
            folder,
            server.url,
            "--output",
            "logits",
            models=(f"digits={folder / 'artifact'}",),
            grpc=address,
        ) as running,
    ):
        yield running, answers


def test_a_server_that_is_not_there_is_said_over_grpc(model: str, tmp_path: Path, server: Recording) -> None:
    with (
        gateway(tmp_path, server.url, "--output", "logits", models=(model,), grpc="127.0.0.1:1") as running,
        grpc.insecure_channel(running.grpc) as channel,
        pytest.raises(grpc.RpcError) as raised,
    ):
        channel.unary_unary(METHOD)(ASKED, timeout=10)
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_port_that_is_taken_ends_the_gateway_with_a_word(model: str, tmp_path: Path) -> None:
    with recording() as taken:
        listening = ["--grpc-upstream", "127.0.0.1:1", "--grpc-listen", f"127.0.0.1:{taken.port}"]
        starting = gateway(tmp_path, taken.url, "--output", "logits", *listening, models=(model,))
        with pytest.raises(AssertionError, match="the gateway ended"):
            starting.__enter__()
