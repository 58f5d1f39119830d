"""A handler on trial: its time is limited, and no process of it is left, however its trial ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from foreign_handlers import Foreign, archive, own
from live_server import until

from calib_serve.core.errors import ModelError
from calib_serve.core.options.data import ArchiveOptions
from calib_serve.torchserve.foreign import look_at_archive

pytestmark = pytest.mark.server

STARTS_ANOTHER = own("""
def postprocess(self, outputs):
    import subprocess
    child = subprocess.Popen(["sleep", "300"])
    with open(os.environ["PIDS"], "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    import queue
    queue.Queue().get()
""")


def left(pids: Path) -> list[int]:
    """Those that still run."""
    found = []
    for pid in map(int, pids.read_text().split()):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
        found += [] if state == "Z" else [pid]
    return found


def request(folder: Path) -> Path:
    """A request that the handler takes."""
    (folder / "request.json").write_text(str([0.1] * 16))
    return folder / "request.json"


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    return tmp_path / "pids"


def test_a_handler_that_never_answers_is_given_up(tmp_path: Path, pids: Path) -> None:
    stuck = archive("stuck", tmp_path, Foreign(STARTS_ANOTHER))
    with pytest.raises(ModelError, match=r"did not answer within 1 s.*probe_timeout="):
        look_at_archive(stuck, ArchiveOptions(probe_timeout=1.0), probe=request(tmp_path))
    until(lambda: left(pids) == [])


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_where_the_command_is_killed_nothing_of_its_trial_is_left(
    tmp_path: Path, pids: Path, how: signal.Signals
) -> None:
    stuck = archive("stuck", tmp_path, Foreign(STARTS_ANOTHER))
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "calib_serve",
            "inspect",
            "--from",
            str(stuck),
            "--probe",
            str(request(tmp_path)),
        ],
        env={**os.environ},
    ) as command:
        until(lambda: pids.is_file() and len(pids.read_text().split()) == 2)
        assert len(left(pids)) == 2
        command.send_signal(how)
    until(lambda: left(pids) == [])


def test_a_text_is_sent_in_the_form_that_the_handler_reads(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("0.5 0.25 " * 8)
    for read in ("decode().split()", "split()"):
        handler = own("""
def handle(self, data, context):
    texts = [row.get("data") or row.get("body") for row in data]
    x = torch.tensor([([float(word) for word in text.READ] + [0.0] * 16)[:16] for text in texts])
    with torch.no_grad():
        return torch.softmax(self.model(x), 1).tolist()
""").replace("READ", read)
        made = archive(f"text{len(read)}", tmp_path, Foreign(handler))
        look = look_at_archive(made, probe=tmp_path / "words.txt")
        assert look.alone_because, "one request shows nothing of a batch"
        assert look.request.startswith("application/octet-stream" if "decode" in read else "text/plain")
