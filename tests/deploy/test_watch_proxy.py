"""A watch behind a real nginx, as deploy/nginx/watch.conf says, ports and folders apart."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from live_server import until
from processes import free_ports, started
from real_servers import needed
from stalling import ONE, Served, watching

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
HOST, TOKEN = "ml.example.com", "a-token-of-the-test"
BEARER = {"authorization": f"Bearer {TOKEN}"}


class Proxied(Served):
    """Both, and a client of the proxy that knows it by its name."""

    proxy: httpx.Client


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("site")
    tokens = folder / "tokens"
    tokens.write_text(f"lab predict,label,scrape,admin {TOKEN}\n")
    tokens.chmod(0o600)
    curve = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={HOST}")
    command = ["openssl", "req", "-x509", "-newkey", *curve, "-addext", f"subjectAltName=DNS:{HOST}"]
    files = ("-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt"))
    subprocess.run([*command, *files], check=True, capture_output=True)
    options = ("--token-file", str(tokens), "--allowed-hosts", HOST)
    with watching(folder / "watch", *options, "--log-format", "json") as served:
        (port,) = free_ports(1)
        places = {
            "/etc/nginx/tls": str(folder),
            "/tmp/": f"{folder}/",
            "8443": str(port),
            "9300": str(served.port),
        }
        text = (ROOT / "deploy" / "nginx" / "watch.conf").read_text()
        (folder / "nginx.conf").write_text(
            re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], text)
        )
        nginx = [needed("nginx", "nginx"), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
        more = "daemon off;" + ("user root;" if os.geteuid() == 0 else "")
        trust = ssl.create_default_context(cafile=str(folder / "tls.crt"))
        address = f"https://127.0.0.1:{port}/calibration"
        name = {"headers": {"host": f"{HOST}:{port}", **BEARER}, "timeout": 30, "trust_env": False}
        with started([*nginx, "-g", more]), httpx.Client(base_url=address, verify=trust, **name) as client:
            client.event_hooks["request"] = [_as_named]

            def ready() -> bool:
                with suppress(httpx.TransportError):
                    return client.get("/healthz").status_code == 200
                return False

            until(ready)
            served.__class__, served.proxy = Proxied, client
            yield served


def _as_named(request: httpx.Request) -> None:
    request.extensions["sni_hostname"] = HOST


def test_predictions_labels_metrics_and_the_page_pass_under_the_site_s_name(site: Proxied) -> None:
    (receipt,) = (one["receipt"] for one in site.proxy.post("/v1/predictions", json=[ONE]).json()["items"])
    answer = site.proxy.post("/v1/labels", json=[{"receipt": receipt, "label": 1}]).json()
    assert answer["accepted"] == 1
    assert "calib_feedback_total" in site.proxy.get("/metrics").text
    page = site.proxy.get("/")
    assert page.status_code == 200
    links = [one for one in re.findall(r'(?:href|src)="([^"#]+)"', page.text) if "static" in one]
    assert links
    for link in links:
        assert site.proxy.get(page.url.join(link)).status_code == 200, link


def test_whoever_comes_past_the_proxy_or_under_another_name_is_told_why_not(site: Proxied) -> None:
    answer = site.client.get("/healthz", headers={"host": "evil.example"})
    assert answer.status_code == 400
    assert "--allowed-hosts" in answer.json()["detail"]
    assert site.client.get("/healthz").status_code == 200  # loopback
    forged = {"x-forwarded-host": "localhost", "x-forwarded-for": "127.0.0.1", "host": "evil.example"}
    assert site.client.get("/healthz", headers=forged).status_code == 400


def test_the_site_s_own_pages_may_post_and_those_of_others_not(site: Proxied) -> None:
    own = f"https://{HOST}:{site.proxy.base_url.port}"
    for origin, status in (
        (own, 200),
        (f"https://{HOST}", 200),
        ("https://evil.example", 403),
        ("null", 403),
    ):
        assert site.proxy.post("/v1/labels", json=[], headers={"origin": origin}).status_code == status
    without = {"authorization": "Bearer another-token-of-nobody"}
    assert site.proxy.post("/v1/labels", json=[], headers=without).status_code == 401


def test_other_paths_of_the_site_do_not_reach_the_watch(site: Proxied) -> None:
    root = httpx.URL(f"https://127.0.0.1:{site.proxy.base_url.port}")
    for path in ("/v1/labels", "/metrics", "/calibration/../metrics", "/calibrationx/metrics"):
        assert site.proxy.get(root.copy_with(raw_path=path.encode())).status_code in (400, 404)
    assert site.proxy.post("/v1/labels", content=b" " * (5 << 20)).status_code == 413


def test_the_log_is_json_with_time_and_level_and_holds_no_token(site: Proxied) -> None:
    site.client.get("/healthz", headers={"host": "evil.example"})
    with site.connect(b"NONSENSE\r\n\r\n") as peer:  # uvicorn warns of it
        peer.recv(1000)

    def lines() -> list[str]:
        return site.log.read_text().splitlines()

    until(lines)
    for line in lines():
        told = json.loads(line)
        assert told.keys() >= {"time", "level", "logger", "message"}
        assert told["time"].endswith("Z")
    assert TOKEN not in site.log.read_text()
