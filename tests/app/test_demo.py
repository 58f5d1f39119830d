"""The demo does what it says, cleans up after itself, and says what went wrong."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import digits
import numpy as np
import onnxruntime
import pytest
from processes import end, with_sigint_ignored

from calib_serve import Artifact

pytestmark = pytest.mark.server

DEMO = Path(digits.__file__).parent


class Demo:
    """A demo as a shell's ``&`` starts it, and what it has printed."""

    def __init__(self, out: Path, *options: str) -> None:
        self.out, self.log = out, out.with_suffix(".log")
        command = [sys.executable, str(DEMO), "--out", str(out)]
        command += ["--model-store", str(out.with_suffix(".store")), *options]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                with_sigint_ignored(command), stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, what: str, *, seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        while what not in self.text:
            assert self.process.poll() is None, f"the demo ended early:\n{self.text}"
            assert time.monotonic() < end, f"{what!r} did not come:\n{self.text}"
            time.sleep(0.1)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)


@contextmanager
def demo(out: Path, *options: str) -> Iterator[Demo]:
    running = Demo(out, *options)
    try:
        yield running
    finally:
        end(running.process)


def servers_in(folder: Path) -> list[str]:
    """Command lines of the processes that run in ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    out = tmp_path_factory.mktemp("demo") / "out"
    with demo(out, "--keep") as running:
        running.wait_for("The server is up")
        yield running


def test_all_eight_steps_tell_their_facts(kept: Demo) -> None:
    for number in range(1, 9):
        assert f"{number}/8 " in kept.text
    for reason in ("bad_signature", "duplicate", "bad_label", "malformed"):
        assert f"refused as {reason}" in kept.text
    assert re.search(r"drift alarm after \d+ shifted digits", kept.text)
    shifted, recovered = (float(e) for e in re.findall(r"confidence \S+, ECE (\S+) \(", kept.text))
    assert recovered < shifted / 2
    difference = re.search(r"^difference (\S+), over 2 workers", kept.text, re.M)
    assert difference
    assert float(difference[1]) < 1e-6


def test_the_artifact_and_the_fused_graph_are_left_and_agree(kept: Demo) -> None:
    out = kept.out
    artifact = Artifact.load(out / "artifact")
    session = onnxruntime.InferenceSession(
        out / "model/digits-calibrated.onnx", providers=["CPUExecutionProvider"]
    )
    images = digits.load_splits().test.images
    (probs,) = session.run(None, {session.get_inputs()[0].name: images})
    assert artifact.classes == 10
    assert np.allclose(probs.sum(axis=1), 1, atol=1e-5)
    report = (out / "report.html").read_text()
    assert len(report) < 2_000_000
    assert not re.search(r"(src|href)=.https?:", report)


@pytest.mark.last
def test_ctrl_c_ends_a_kept_demo_well_and_leaves_nothing_running(kept: Demo) -> None:
    server = kept.out / "server"
    assert servers_in(server)
    assert kept.end(signal.SIGINT) == 0
    assert servers_in(server) == []
