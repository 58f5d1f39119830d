"""The page about the gateway: what it tells a reader to type is typed, before a real tritonserver."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from gateways import artifact, repository
from live_server import until
from processes import started
from test_triton_gateway import _grpc_of
from triton_server import free_port, needs_tritonserver, triton_on

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(console|json)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def typed(text: str) -> list[str]:
    """The commands of a console block: what follows a prompt."""
    lines = "\n".join(line for line in text.splitlines() if line.startswith(("$ ", "> ")))
    return [one.replace("\n> ", "\n").strip() for one in re.split(r"^\$ ", lines, flags=re.MULTILINE) if one]


def test_what_the_page_says_is_what_happens(tmp_path: Path) -> None:
    needs_tritonserver()
    found = FENCE.findall((ROOT / "docs" / "how-to" / "gateway.md").read_text())
    *_, keys, serve, ask, label, metrics = [
        c for kind, text in found if kind == "console" for c in typed(text)
    ]
    (shown,) = (json.loads(text) for kind, text in found if kind == "json")
    artifact(sets=None, abstain=None, contract=None).save(tmp_path / "artifact")
    repository(tmp_path / "models", "digits")
    with triton_on(tmp_path / "models", tmp_path / "server") as triton:
        ports = {"8080": str(free_port()), "8081": str(free_port())}
        ports |= {"8000": triton.http.rpartition(":")[2], "8001": _grpc_of(triton).rpartition(":")[2]}

        def here(command: str) -> str:
            program = f"{sys.executable} -c 'from calib_serve.cli import main; main()' "
            moved = re.sub(r"127\.0\.0\.1:(\d+)", lambda m: f"127.0.0.1:{ports[m[1]]}", command)
            return moved.replace("calib-serve ", program) if command.startswith("calib-serve") else moved

        def run(command: str) -> str:
            told = ["bash", "-c", here(command).replace("curl ", "curl -sS --fail-with-body ")]
            return subprocess.run(told, check=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True).stdout

        run(keys)
        with started(["bash", "-c", f"exec {here(serve)}"], cwd=tmp_path):
            until(lambda: _answers(ports["8080"]), seconds=90)
            reply = json.loads(run(ask))
            assert {**reply, "outputs": []} == {**shown, "outputs": []}
            for mine, theirs in zip(reply["outputs"], shown["outputs"], strict=True):
                assert {**mine, "data": 0} == {**theirs, "data": 0}
                if mine["name"] != "receipt":
                    assert mine["data"] == pytest.approx(theirs["data"], abs=0.006)
            (receipt,) = reply["outputs"][-1]["data"]
            assert json.loads(run(label.replace("AQ...", receipt)))["accepted"] == 1
            assert 'calib_feedback_total{bin="' in run(metrics)


def _answers(port: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v2/health/ready").status_code == 200
    except httpx.TransportError:
        return False
