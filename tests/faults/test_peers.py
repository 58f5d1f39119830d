"""Whoever started a server is gone: it goes with him."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from live_server import exported, temperature_artifact
from processes import started

from calib_serve.torchserve import pack

pytestmark = pytest.mark.server
CALIB_SERVE = (sys.executable, "-c", "from calib_serve.app import main; main()")


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_a_server_does_not_outlive_whoever_started_it(tmp_path: Path) -> None:
    store = tmp_path / "model_store"
    pack(exported(tmp_path / "net.pt2"), temperature_artifact(), store, name="digits", unproven=True)
    command = [*CALIB_SERVE, "serve", "--free-ports"]
    with started(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as serving:
        while not re.search("Ctrl-C", serving.stdout.readline()):
            assert serving.poll() is None
        processes = psutil.Process(serving.pid).children(recursive=True)
        serving.kill()
        serving.wait()
        _, left = psutil.wait_procs(processes, timeout=60)
        for process in left:
            process.kill()
    assert not left
    shutil.rmtree(store)
