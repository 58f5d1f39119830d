"""A server says where it listens once it does, and never where another program has the port."""

import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from processes import started

from calib_serve import Keyring

pytestmark = pytest.mark.server

COMMAND = (sys.executable, "-c", "from calib_serve.app import main; main()")
MODEL = ("m:1=3", "--keyring", "keys.json", "--ledger", "ledger.db")
GATEWAY = ("gateway", *MODEL, "--upstream", "http://127.0.0.1:1", "--output", "o", "--scores", "logits")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Keyring.new().save(tmp_path / "keys.json")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ("watch", *MODEL, "--port", "TAKEN"),
        (*GATEWAY, "--port", "TAKEN"),
        (*GATEWAY, "--port", "0", "--grpc-upstream", "127.0.0.1:1", "--grpc-port", "TAKEN"),
    ],
    ids=["watch", "gateway", "gateway, gRPC"],
)
def test_where_another_program_has_the_port_nothing_is_said_to_listen(
    folder: Path, command: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = [port if one == "TAKEN" else one for one in command]
        done = subprocess.run(
            [*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 3
    assert not done.stdout
    assert port in done.stderr
    assert "calib-serve: this server does not listen" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_address_that_is_said_is_the_one_that_answers(folder: Path) -> None:
    words = [*COMMAND, "watch", *MODEL, "--port", "0"]
    with started(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        said, _, url = process.stdout.readline().strip().rpartition(" on ")
        assert said == "watching m:1"
        assert httpx.get(f"{url}/healthz", trust_env=False, timeout=60).json()["status"] != "failing"
