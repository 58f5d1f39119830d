"""Reporters, label senders and the gateway trust the authority that SSL_CERT_FILE names, and no other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import httpx
import pytest
from authority import Authority, authority
from gateways import METHOD, Running, answering, artifact, document, gateway, message, receipts
from recording_server import recording, reply
from stalling import Served, watching
from tritonclient.grpc import service_pb2

pytestmark = pytest.mark.server

REPORTS = """
import sys
from calib_serve import Reporter

_, keyring, url = sys.argv
with Reporter(3, model="m", version="1", keyring=keyring, watch=url) as reporter:
    (receipt,) = reporter.served([[0.7, 0.2, 0.1]])
    assert reporter.flush() == 0
    assert reporter.label(receipt, 0).accepted
"""
SENDS = """
import sys
from calib_serve.integrations.collect import send_label_file

print(send_label_file(sys.argv[1], url=sys.argv[2]))
"""
ASKED = service_pb2.ModelInferRequest(model_name="m").SerializeToString()


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def served(private: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A watch with a certificate of that authority."""
    pair = ("--tls-cert", str(private.cert), "--tls-key", str(private.key))
    with watching(tmp_path_factory.mktemp("watch"), *pair) as found:
        yield found


def test_a_reporter_trusts_it(private: Authority, served: Served) -> None:
    command = [sys.executable, "-c", REPORTS, str(served.log.parent / "keys.json"), served.url]
    subprocess.run(command, check=True, env=private.trusting)


def test_a_sender_of_labels_trusts_it_and_says_where_it_does_not(private: Authority, served: Served) -> None:
    item = {"model": "m", "version": "1", "predicted": 0, "confidence": 0.9, "id": "a"}
    sent = served.client.post("/v1/predictions", json={"items": [item]})
    assert sent.status_code == 200, sent.text
    labels = served.log.parent / "labels.csv"
    labels.write_text("id,label\na,0\n")
    command = [sys.executable, "-c", SENDS, str(labels), f"{served.url}/v1/labels"]
    alone = subprocess.run(command, check=False, capture_output=True, text=True)
    assert alone.returncode
    assert "CERTIFICATE_VERIFY_FAILED" in alone.stderr
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=private.trusting)
    assert "1 counted" in told.stdout


def infer(running: Running) -> httpx.Response:
    return running.client.post(f"{running.http}/v2/models/m/infer", content=b'{"inputs": []}')


def infer_by_grpc(running: Running) -> service_pb2.ModelInferResponse:
    with grpc.insecure_channel(running.grpc) as channel:
        return service_pb2.ModelInferResponse.FromString(channel.unary_unary(METHOD)(ASKED, timeout=60))


def test_the_gateway_trusts_it_over_http_and_grpc_and_at_its_watch(
    private: Authority, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*_: object) -> bytes:
        found = service_pb2.ModelInferResponse.FromString(message())
        found.model_name = "m"
        return found.SerializeToString()

    monkeypatch.delenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", raising=False)  # which would be believed first
    model = f"m={artifact().save(tmp_path / 'artifact')}"
    (tmp_path / "keys.json").write_bytes((served.log.parent / "keys.json").read_bytes())
    (tmp_path / "keys.json").chmod(0o600)
    options = ("--output", "logits", "--watch", served.url)
    with ExitStack() as stack:
        http = stack.enter_context(recording(private.serving))
        http.answer = lambda _: reply(document(model_name="m"))
        grpcs = stack.enter_context(answering((private.key.read_bytes(), private.cert.read_bytes())))
        grpcs.answer = answer
        with gateway(
            tmp_path, http.url, *options, models=[model], grpc=grpcs.address, ledger=False
        ) as running:
            assert infer(running).status_code == 502
            with pytest.raises(grpc.RpcError) as raised:
                infer_by_grpc(running)
            assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        monkeypatch.setenv("SSL_CERT_FILE", str(private.ca))
        with gateway(
            tmp_path, http.url, *options, models=[model], grpc=grpcs.address, ledger=False
        ) as running:
            items = [{"receipt": one, "label": 0} for one in receipts(infer(running))]
            assert "confidence" in {one.name for one in infer_by_grpc(running).outputs}
            done = running.client.post(f"{running.http}/v1/labels", json={"items": items})
            assert done.json()["accepted"] == len(items), done.text
