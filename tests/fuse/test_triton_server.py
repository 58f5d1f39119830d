"""The step that signs and counts, under the real tritonserver, that of the wheel nvidia-pytriton.

`make test` puts it into the environment's folder ``triton``, with a numpy that the server can read. The
server's Python sees these, the code under test, and the packages of this Python.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from live_server import until

import calib_serve
from calib_serve import Keyring
from calib_serve.fuse.triton.repository import BACKEND

KEPT = Path(__file__).parents[1] / "kept" / "version-0.1.0"
PACKAGES = Path(sys.prefix) / "triton"
SERVER = PACKAGES / "pytriton" / "tritonserver" / "bin" / "tritonserver"


@dataclass
class Triton:
    """A server that was started: its ports, and what it has written."""

    process: subprocess.Popen[bytes]
    http: str
    metrics: str
    log: Path

    def ready(self) -> bool:
        """Whether it serves; a server that ended does not."""
        try:
            return httpx.get(f"{self.http}/v2/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def infer(self, confidence: list[float], predicted: list[int], index: list[int]) -> list[str]:
        """The receipts of so many predictions."""
        columns = (
            ("confidence", "FP32", confidence),
            ("predicted", "INT64", predicted),
            ("bin", "INT64", index),
        )
        inputs = [{"name": n, "datatype": t, "shape": [len(d), 1], "data": d} for n, t, d in columns]
        reply = httpx.post(f"{self.http}/v2/models/pets_receipts/infer", json={"inputs": inputs})
        assert reply.status_code == 200, reply.text
        (output,) = reply.json()["outputs"]
        assert output["shape"] == [len(confidence), 1]
        return output["data"]

    def counted(self, name: str) -> dict[str, float]:
        """One series by bin, on Triton's own metrics port, without zeros."""
        text = httpx.get(self.metrics).text
        found = re.findall(rf'^{name}\{{bin="(\d+)",model="pets",version="1"\}} (\S+)$', text, re.MULTILINE)
        assert len(found) == 15
        return {b: float(value) for b, value in found if float(value)}


def backends(folder: Path) -> str:
    """The wheel keeps a stub for each Python beside the backend, which wants its own within."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = SERVER.parents[1] / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copytree(SERVER.parents[1] / "backends", folder)
    Path(shutil.copy(stub, folder / "python")).chmod(0o755)
    SERVER.chmod(0o755)  # an unpacked wheel has lost the bit
    return f"--backend-directory={folder}"


def environment(folder: Path, packages: list[str]) -> dict[str, str]:
    """The backend's Python is isolated: it knows what the python3 on PATH knows, and no PYTHONPATH."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    ours = [*packages, str(Path(calib_serve.__file__).parents[1]), sysconfig.get_paths()["purelib"]]
    (site / "packages.pth").write_text("\n".join(ours))
    libraries = [sysconfig.get_config_var("LIBDIR"), str(PACKAGES / "nvidia_pytriton.libs")]
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]),
        "CALIB_SERVE_KEYRING": str(folder.parent / "keyring.json"),
    }


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@pytest.fixture(autouse=True)
def tritonserver() -> None:
    """Skips where it is not installed, never in CI."""
    if not SERVER.is_file():
        assert os.environ.get("CI") != "true", f"there is no {SERVER}: run scripts/system_tools.sh"
        pytest.skip("there is no tritonserver; make test installs it on Linux x86_64")


@contextmanager
def started(folder: Path, step: str, packages: list[str]) -> Iterator[Triton]:
    """A server of the kept model, whose model.py is ``step``; ready, or ended with its reason in the log."""
    shutil.copytree(KEPT / "triton" / "pets_receipts", folder / "models" / "pets_receipts")
    (folder / "models" / "pets_receipts" / "1" / "model.py").write_text(step)
    Path(shutil.copy(KEPT / "keyring.json", folder)).chmod(0o600)
    http, metrics = free_port(), free_port()
    options = [f"--model-repository={folder / 'models'}", backends(folder / "backends")]
    options += [f"--http-port={http}", f"--metrics-port={metrics}", "--allow-grpc=false"]
    log = folder / "triton.log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [SERVER, *options],
            env=environment(folder / "python", packages),
            stdout=written,
            stderr=subprocess.STDOUT,
        )
        triton = Triton(process, f"http://127.0.0.1:{http}", f"http://127.0.0.1:{metrics}/metrics", log)
        try:
            until(lambda: triton.ready() or process.poll() is not None, seconds=90)
            yield triton
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.server
@pytest.mark.parametrize("packed", ["by 0.1.0", "today"])
def test_every_prediction_gets_a_receipt_that_verifies_and_is_counted_in_its_bin(
    packed: str, tmp_path: Path
) -> None:
    kept = (KEPT / "triton" / "pets_receipts" / "1" / "model.py").read_text()
    step = kept if packed == "by 0.1.0" else BACKEND
    with started(tmp_path, step, [str(PACKAGES)]) as triton:
        assert triton.ready(), triton.log.read_text()
        tokens = triton.infer([0.9, 0.55, 0.875], [1, 2, 0], [13, 8, 13])
        ring = Keyring.load(tmp_path / "keyring.json")
        receipts = [ring.verify(token) for token in tokens]
        assert [(r.model, r.version, r.predicted) for r in receipts] == [
            ("pets", "1", 1),
            ("pets", "1", 2),
            ("pets", "1", 0),
        ]
        assert [r.confidence for r in receipts] == pytest.approx([0.9, 0.55, 0.875])
        assert triton.counted("calib_predictions_total") == {"13": 2.0, "8": 1.0}
        summed = triton.counted("calib_predictions_confidence_total")
        assert summed == pytest.approx({"13": 1.775, "8": 0.55})


@pytest.mark.server
def test_a_server_that_misreads_numpy_s_arrays_does_not_start(tmp_path: Path) -> None:
    """Built for numpy 1 and given numpy 2, it showed the step the first prediction of a batch for each."""
    with started(tmp_path, BACKEND, []) as triton:
        if triton.ready():
            triton.infer([0.9, 0.55], [1, 2], [13, 8])
            assert triton.counted("calib_predictions_total") == {"13": 1.0, "8": 1.0}
        else:
            assert 'install "numpy<2" in its Python' in triton.log.read_text()
