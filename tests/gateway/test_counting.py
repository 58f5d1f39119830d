"""Where the gateway counts, and for whom: in a watch elsewhere, which may be away, or in its own ledger."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
from gateways import ASKED, CLASSES, INFER, METHOD, Running, gateway, logits, post, receipts
from live_server import until
from real_servers import Server
from recording_server import Recording

from calib_serve import Artifact, Keyring
from calib_serve.artifact import LogitMap
from calib_serve.core.errors import InputError
from calib_serve.core.options.servers import GatewayOptions
from calib_serve.scores import softmax
from calib_serve.web import new_token

pytestmark = pytest.mark.server

ROWS = 5


def token(folder: Path, name: str, scopes: str) -> str:
    """A new one in the file ``folder/tokens``."""
    made, line = new_token(name, scopes)
    path = folder / "tokens"
    path.touch(mode=0o600)
    path.write_text(f"{path.read_text()}{line}\n")
    return made


def bearer(made: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {made}"}


def labelled(given: list[str]) -> dict[str, list[dict[str, object]]]:
    return {"items": [{"receipt": one, "label": 0} for one in given]}


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
        told = ["--output", "logits", "--watch", watch.url, "--watch-token-file", str(tmp_path / "predict")]
        with gateway(tmp_path, server.url, *told, *options, models=[model], ledger=False) as running:
            first = labelled(receipts(post(running)))
            until(lambda: counted(watch, "calib_predictions_total", bearer(scrape)) == ROWS, seconds=20)

            where = f"{running.http}/v1/labels"
            assert httpx.post(where, json=first).status_code == 401
            assert httpx.post(where, json=first, headers=bearer(scrape)).status_code == 403
            assert httpx.post(where, json=first, headers=bearer(label)).json()["accepted"] == ROWS
            assert counted(watch, "calib_feedback_total", bearer(scrape)) == ROWS

            assert watch.stop() == 0
            away = [one for _ in range(4) for one in receipts(post(running))]
            assert all(away)
            assert httpx.post(where, json=first, headers=bearer(label)).status_code == 502
            watch.start()
            until(lambda: counted(watch, "calib_predictions_total", bearer(scrape)) == 5 * ROWS, seconds=60)
            done = httpx.post(where, json=labelled(away), headers=bearer(label))
            assert done.json()["accepted"] == 4 * ROWS

            metrics = f"{running.http}/calibration/metrics"
            assert httpx.get(metrics).status_code == 401
            assert httpx.get(metrics, headers=bearer(label)).status_code == 403
            found = httpx.get(metrics, headers=bearer(scrape)).text
            assert 'calib_uncalibrated_total{model="digits",version="1"} 0.0' in found
            assert 'calib_monitor_errors_total{stage="watch"}' in found


def certificate(folder: Path) -> list[str]:
    """A certificate of this host, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*made, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return ["--tls-cert", str(cert), "--tls-key", str(key)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``guarded`` keeps its files."""
    return tmp_path_factory.mktemp("guarded")


SHADOW = Artifact((LogitMap.temperature(0.5),), method="temperature", classes=CLASSES)


@pytest.fixture(scope="module")
def guarded(
    site: Path, model: str, answering_server: tuple[Recording, object]
) -> Iterator[tuple[Running, dict[str, str]]]:
    """A gateway with all that one may have: TLS, tokens, a shadow; and gRPC behind which nobody is."""
    made = {scope: token(site, f"a-{scope}", scope) for scope in ("label", "scrape")}
    SHADOW.save(site / "shadow")
    options = ["--token-file", str(site / "tokens"), "--shadow", f"digits={site / 'shadow'}"]
    options += ["--output", "logits", *certificate(site)]
    with gateway(site, answering_server[0].url, *options, models=[model], grpc="127.0.0.1:1") as running:
        yield running, made


def test_tokens_are_for_labels_and_metrics_and_never_for_inference(
    server: Recording, guarded: tuple[Running, dict[str, str]]
) -> None:
    running, tokens = guarded
    label, scrape = bearer(tokens["label"]), bearer(tokens["scrape"])
    items = labelled(receipts(post(running, headers={"Authorization": "Bearer the-servers-own"})))
    assert b"Bearer the-servers-own" in server.requests[-1]
    where, metrics, client = (
        f"{running.http}/v1/labels",
        f"{running.http}/calibration/metrics",
        running.client,
    )
    assert client.post(where, json=items).status_code == 401
    assert client.post(where, json=items, headers=scrape).status_code == 403
    assert client.post(where, json=items, headers=label).json()["accepted"] == ROWS
    assert client.get(metrics, headers=label).status_code == 403
    assert "calib_feedback_total" in client.get(metrics, headers=scrape).text
    assert client.get(f"{running.http}/calibration/").status_code == 401
    assert len(server.requests) == 1  # none of it was the server's


def test_tls_is_for_both_ports_and_a_server_that_is_not_there_is_said(
    server: Recording, site: Path, guarded: tuple[Running, dict[str, str]]
) -> None:
    running, _ = guarded
    trusted = ssl.create_default_context(cafile=site / "cert.pem")
    assert receipts(httpx.post(running.http + INFER, content=b"{}", verify=trusted))
    roots = grpc.ssl_channel_credentials((site / "cert.pem").read_bytes())
    with grpc.secure_channel(running.grpc, roots) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(METHOD)(ASKED, timeout=20)
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "127.0.0.1:1:" in raised.value.details()
    with grpc.insecure_channel(running.grpc) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(METHOD)(ASKED, timeout=3)
    assert "127.0.0.1:1:" not in raised.value.details()


def test_every_receipt_says_what_the_shadow_made_of_the_same_output(
    server: Recording, site: Path, guarded: tuple[Running, dict[str, str]]
) -> None:
    running, tokens = guarded
    ring = Keyring.load(site / "keys.json")
    found = [ring.verify(one) for one in receipts(post(running))]
    metrics = running.client.get(f"{running.http}/calibration/metrics", headers=bearer(tokens["scrape"])).text
    assert 'calib_monitor_errors_total{stage="shadow"} 0.0' in metrics
    served, beside = (softmax(logits().astype("f8") / t) for t in (2.0, 0.5))
    assert [one.confidence for one in found] == pytest.approx(served.max(axis=1).tolist())
    assert [one.shadow.confidence for one in found] == pytest.approx(beside.max(axis=1).tolist(), rel=1e-6)
    assert [one.shadow.predicted for one in found] == np.argmax(beside, axis=1).tolist()
    assert {one.shadow.tag.hex() for one in found} == {SHADOW.fingerprint[:8]}


def test_a_token_of_a_watch_is_for_a_watch_elsewhere() -> None:
    with pytest.raises(InputError, match="watch_token_file is for a watch at another address"):
        GatewayOptions(upstream="http://x", output=["logits"], ledger="l.db", watch_token_file="token")


def test_what_waits_is_counted_at_the_end_and_a_kill_loses_no_label(
    server: Recording, model: str, tmp_path: Path
) -> None:
    with gateway(tmp_path, server.url, "--output", "logits", models=[model]) as running:
        for _ in range(20):
            post(running)
        running.process.terminate()
        assert running.process.wait(60) == 0
    with gateway(tmp_path, server.url, "--output", "logits", models=[model]) as running:
        assert running.counted("calib_predictions_total") == 20 * ROWS
        first = receipts(post(running))
        until(lambda: running.counted("calib_predictions_total") == 21 * ROWS, seconds=20)
        last = receipts(post(running))
        running.process.kill()
        running.process.wait()
    with gateway(tmp_path, server.url, "--output", "logits", models=[model]) as running:
        assert running.counted("calib_predictions_total") in (21 * ROWS, 22 * ROWS)
        done = httpx.post(f"{running.http}/v1/labels", json=labelled([*first, *last]))
        assert done.json()["accepted"] == 2 * ROWS
