"""The page about the gateway: what it tells a reader to type is typed, before a real tritonserver."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from gateways import artifact
from live_server import until
from processes import started
from triton_server import Triton, free_port

pytestmark = [pytest.mark.server, pytest.mark.nightly]

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
FENCE = re.compile(r"^```(console|json)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def typed(text: str) -> list[str]:
    """The commands of a console block: what follows a prompt."""
    lines = "\n".join(line for line in text.splitlines() if line.startswith(("$ ", "> ")))
    return [one.replace("\n> ", "\n").strip() for one in re.split(r"^\$ ", lines, flags=re.MULTILINE) if one]


def test_what_the_page_says_is_what_happens(tmp_path: Path, triton: Triton, triton_grpc: str) -> None:
    found = FENCE.findall(PAGE.read_text())
    consoles = [c for kind, text in found if kind == "console" for c in typed(text)]
    *_, keys, serve, ask, label, metrics = consoles
    (shown,) = (json.loads(text) for kind, text in found if kind == "json")
    artifact(sets=None, abstain=None, contract=None, choice=None).save(tmp_path / "artifact")
    ports = {"8080": str(free_port()), "8081": str(free_port())}
    ports |= {"8000": triton.http.rpartition(":")[2], "8001": triton_grpc.rpartition(":")[2]}

    def here(command: str) -> str:
        program = f"{sys.executable} -c 'from calib_serve.app import main; main()' "
        moved = re.sub(r"(127\.0\.0\.1:|port )(\d+)", lambda m: f"{m[1]}{ports[m[2]]}", command)
        # The server's latest version is 2, the page's 1.
        moved = moved.replace("digits:1=", "digits:2=")
        return moved.replace("calib-serve ", program) if command.startswith("calib-serve") else moved

    def run(command: str) -> str:
        told = ["bash", "-c", here(command).replace("curl ", "curl -sS --fail-with-body ")]
        return subprocess.run(told, check=True, cwd=tmp_path, stdout=subprocess.PIPE, text=True).stdout

    run(keys)
    with started(["bash", "-c", f"exec {here(serve)}"], cwd=tmp_path):
        until(lambda: _answers(ports["8080"]), seconds=90)
        reply = json.loads(run(ask))
        assert {**reply, "outputs": [], "model_version": "1"} == {**shown, "outputs": []}
        for mine, theirs in zip(reply["outputs"], shown["outputs"], strict=True):
            assert {**mine, "data": 0} == {**theirs, "data": 0}
            if mine["name"] != "receipt":
                assert mine["data"] == pytest.approx(theirs["data"], abs=0.006)
        (receipt,) = reply["outputs"][-1]["data"]
        assert json.loads(run(label.replace("AQ...", receipt)))["accepted"] == 1
        assert "calib_feedback_total{" in run(metrics)


def _answers(port: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v2/health/ready").status_code == 200
    except httpx.TransportError:
        return False
