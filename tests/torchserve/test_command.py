"""The commands as a user runs them: from an installed package, in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
from live_server import exported, inputs, temperature_artifact
from processes import started, with_sigint_ignored

import calib_serve
from calib_serve.core.errors import ServerError
from calib_serve.torchserve import pack
from calib_serve.torchserve.management import Tokens
from calib_serve.torchserve.properties import read_properties
from calib_serve.torchserve.server import Server

ROOT = Path(calib_serve.__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The package laid out as its wheel lays it out, and nothing of the checkout in sight."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "calib_serve", site / "calib_serve", ignore=shutil.ignore_patterns("__pycache__"))
    included = re.search(r"force-include\]\n((?:.+\n)+)", (ROOT / "pyproject.toml").read_text())
    assert included
    for source, target in re.findall(r'"(.+)" = "(.+)"', included.group(1)):
        (site / target).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, site / target)
    return {**os.environ, "PYTHONPATH": str(site)}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from calib_serve.app import main; main()", *arguments]


@pytest.mark.server
@pytest.mark.parametrize(
    ("how", "as_started"),
    [
        pytest.param(signal.SIGINT, with_sigint_ignored, id="SIGINT, ignored at the start"),
        pytest.param(signal.SIGTERM, list, id="SIGTERM", marks=pytest.mark.nightly),
    ],
)
def test_packed_served_asked_and_stopped(
    installed: dict[str, str],
    tmp_path: Path,
    how: signal.Signals,
    as_started: Callable[[list[str]], list[str]],
) -> None:
    exported(tmp_path / "net.pt2")
    temperature_artifact().save(tmp_path / "artifact")

    def run(*arguments: str) -> str:
        done = subprocess.run(
            command(*arguments), cwd=tmp_path, env=installed, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(
        "pack",
        "--model",
        "net.pt2",
        "--artifact",
        "artifact",
        "--name",
        "digits",
        "--unproven",
    )
    run("pack", "--feedback")
    assert "temperature" in run("inspect", "model_store/digits.mar")
    with started(
        as_started(command("serve", "--free-ports")),
        cwd=tmp_path,
        env=installed,
        stdout=subprocess.PIPE,
        text=True,
    ) as serving:
        told = ""
        while "Ctrl-C" not in told:
            told += serving.stdout.readline()
            assert serving.poll() is None, told
        folder = tmp_path / "serving"
        assert str(folder / "key_file.json") in told
        processes = psutil.Process(serving.pid).children(recursive=True)
        assert len(processes) == 3, "Java and two workers"
        inference = read_properties(folder / "config.properties")["inference_address"]
        headers = {"Authorization": f"Bearer {Tokens.read(folder / 'key_file.json').inference}"}
        with httpx.Client(base_url=inference, headers=headers, trust_env=False) as http:
            reply = http.post("/predictions/digits", json=inputs(1)[0].tolist()).json()
            label = {"receipt": reply["receipt"], "label": reply["label"]}
            assert http.post("/predictions/calibration_feedback", json=label).json()["accepted"] == 1
        assert (folder / "keyring.json").stat().st_mode & 0o777 == 0o600
        serving.send_signal(how)
        assert serving.wait(60) == 0
        assert "stopped" in serving.stdout.read()
    assert not psutil.wait_procs(processes, timeout=60)[1]
    assert not (folder / "key_file.json").exists()


def test_settings_cannot_smuggle_lines(tmp_path: Path) -> None:
    pack(exported(tmp_path / "net.pt2"), temperature_artifact(), tmp_path, name="digits", unproven=True)
    with pytest.raises(ServerError, match="line break"):
        Server(tmp_path, ["digits.mar"], folder=tmp_path, settings={"x": "1\nenable_model_api=true"})


def test_the_shipped_configuration_is_safe() -> None:
    found = read_properties(ROOT / "config.properties")
    assert all("127.0.0.1" in value for key, value in found.items() if key.endswith("_address"))
    assert found["enable_model_api"] == "false"
    assert found["disable_token_authorization"] == "false"
    assert found["install_py_dep_per_model"] == "false"
    assert found["load_models"] == ""
    assert not re.match(found["allowed_urls"], "https://example.org/x.mar")
