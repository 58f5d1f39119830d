"""The demo runs to its end, fails where a check does not hold, and leaves nothing running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import story
from processes import started, with_sigint_ignored

from calib_serve.metrics import ece

DEMO = Path(story.__file__).parent


def test_the_pencils_number_is_the_librarys() -> None:
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(4), size=500), rng.integers(4, size=500)
    assert story.ece(probs, labels) == pytest.approx(ece(probs, labels), abs=1e-12)


def test_a_number_that_is_not_the_pencils_fails() -> None:
    story.same("live", 0.02, 0.02)
    with pytest.raises(story.CheckFailed, match="live"):
        story.same("live", 0.020002, 0.02)


@pytest.mark.server
def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = subprocess.run(
        [sys.executable, str(DEMO), str(tmp_path)], check=False, stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 2
    assert "remove it" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.server
def test_all_checks_hold_and_nothing_runs_on(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, str(DEMO), str(folder)], check=False, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for what in ("late labels are counted", "a second time none", "forged", "ECE from /metrics"):
        assert f"{what}" in done.stdout
    assert servers_in(folder) == []


@pytest.mark.server
@pytest.mark.nightly  # a minute
def test_ctrl_c_stops_all_that_was_started(tmp_path: Path) -> None:
    folder, log = tmp_path / "demo", tmp_path / "log"
    with log.open("w") as out:
        command = with_sigint_ignored([sys.executable, str(DEMO), str(folder)])
        with started(command, stdout=out, stderr=out, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as demo:
            until = time.monotonic() + 600
            while log.read_text().count("ready at") < 2:
                assert demo.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.1)
            assert servers_in(folder)
            demo.send_signal(signal.SIGINT)
            assert demo.wait(120) == 130
    assert servers_in(folder) == []


def servers_in(folder: Path) -> list[str]:
    """Command lines of the processes that run in ``folder``, or below it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(folder):
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
