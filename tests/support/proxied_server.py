"""The pod of deploy/kserve.yaml without a cluster: its container's command, and a real nginx before it."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml
from live_server import CLASSES, foreign, inputs, small_store, temperature_artifact, until
from processes import free_ports, started
from real_servers import needed

from calib_serve import Keyring
from calib_serve.fuse.torchserve import pack_around
from calib_serve.serve.properties import read_properties

ROOT = Path(__file__).parents[2]
OBJECTS = {one["kind"]: one for one in yaml.safe_load_all((ROOT / "deploy" / "kserve.yaml").read_text())}
SERVER, _ = OBJECTS["InferenceService"]["spec"]["predictor"]["containers"]
FIRST, SECOND = "0f" * 32, secrets.token_hex(32)
X = inputs(1)[0].tolist()
HANDLER = f"""
import numpy as np


class Handler:
    def initialize(self, context):
        pass

    def inference(self, rows):
        return np.asarray(rows)[:, :{CLASSES}]

    def handle(self, data, context):
        return self.inference([row.get("body") or row.get("data") for row in data]).tolist()
"""


def _here(text: str, places: dict[str, str]) -> str:
    """``text`` with what the manifest names replaced by what stands for it on this machine."""
    return re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], text)


@dataclass
class Pod:
    """Both containers, running."""

    predictions: str
    metrics: str
    behind: str
    tokens: Path
    nginx: psutil.Process
    command: psutil.Process
    keyring: Keyring

    def ask(self, token: str | None, path: str = "/predictions/digits", **more: Any) -> httpx.Response:
        """A prediction, as a client of the Service asks for it."""
        headers = ({"Authorization": f"Bearer {token}"} if token else {}) | more.pop("headers", {})
        more = {"json": X, "timeout": 60, "trust_env": False} | more
        return httpx.post(self.predictions + path, headers=headers, **more)

    def scrape(self) -> str:
        """What Prometheus reads."""
        reply = httpx.get(f"{self.metrics}/metrics", timeout=30, trust_env=False)
        assert reply.status_code == 200
        return reply.text


def _status(url: str) -> int | None:
    """Of a GET; None where nothing listens."""
    try:
        return httpx.get(url, timeout=30, trust_env=False).status_code
    except httpx.TransportError:
        return None


@contextmanager
def running_pod(folder: Path, redis: str) -> Iterator[Pod]:
    """Both containers, in a folder and on ports of their own."""
    (folder / "models").mkdir()
    store = small_store(folder / "models")
    original = foreign(folder, "wrapped", HANDLER)  # of another handler, whose receipt is in a header
    pack_around(original, temperature_artifact(), store, name="wrapped", version="1.0", trial=False)
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
        "redis://redis:6379/0": redis,
        **ports,
    }
    (folder / "nginx.conf").write_text(_here(OBJECTS["ConfigMap"]["data"]["nginx.conf"], places))
    settings = read_properties(ROOT / "config.properties")
    asked = [_here(one, places) for one in SERVER["args"]]
    for name in ("management_address", "metrics_address", "grpc_inference_port", "grpc_management_port"):
        asked.append(f"--set={name}={_here(settings[name], places)}")
    command = [
        *(sys.executable, "-c", "from calib_serve.cli import main; main()", "serve"),
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
                behind=at["8085"],
                tokens=tokens,
                nginx=psutil.Process(proxy.pid),
                command=psutil.Process(server.pid),
                keyring=keyring,
            )
