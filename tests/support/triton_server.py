"""The real tritonserver, that of the wheel nvidia-pytriton, with what it needs around it.

`make test` puts it into the environment's folder ``triton``, with a numpy that the server can read. The
server's Python sees these, the code under test, and the packages of this Python. The wheel has no backend for
onnxruntime: one written in Python stands in, under that name, so that repositories are served as they are.
"""

from __future__ import annotations

import os
import re
import shutil
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
from processes import free_port
from tritonclient.grpc import InferenceServerClient

import calib_serve
from calib_serve.receipts import Keyring

PACKAGES = Path(sys.prefix) / "triton"
SERVER = PACKAGES / "pytriton" / "tritonserver" / "bin" / "tritonserver"

ONNXRUNTIME = """
import json
import os
import numpy as np
import onnxruntime
import triton_python_backend_utils as triton

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        return config

    def initialize(self, args):
        config = json.loads(args["model_config"])
        path = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.names = [output.name for output in self.session.get_outputs()]
        assert self.names == [output["name"] for output in config["output"]], self.names

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        feeds = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        made = zip(self.names, self.session.run(self.names, feeds))
        wanted = request.requested_output_names()
        return triton.InferenceResponse([triton.Tensor(n, np.asarray(v)) for n, v in made if n in wanted])
"""


@dataclass
class Triton:
    """A server that was started: its ports, and what it has written."""

    process: subprocess.Popen[bytes]
    client: httpx.Client
    grpc: InferenceServerClient
    http: str
    metrics: str
    log: Path

    def ready(self, model: str = "", version: str = "") -> bool:
        """Whether it, or a model of it, serves; a server that ended does not."""
        path = f"models/{model}" + (f"/versions/{version}" if version else "") if model else "health"
        try:
            return self.client.get(f"{self.http}/v2/{path}/ready").status_code == 200
        except httpx.TransportError:
            return False

    def scrape(self) -> str:
        """Triton's own metrics port."""
        return self.client.get(self.metrics).text

    def counted(self, name: str, model: str = "pets", version: str = "1") -> dict[str, float]:
        """One series by bin."""
        wanted = rf'^{name}\{{bin="(\d+)",model="{model}",version="{version}"\}} (\S+)$'
        return {b: float(v) for b, v in re.findall(wanted, self.scrape(), re.MULTILINE)}


def needs_tritonserver() -> None:
    """Skips where it is not installed, never in CI."""
    if not SERVER.is_file():
        assert os.environ.get("CI") != "true", f"there is no {SERVER}: run scripts/system_tools.sh"
        pytest.skip("there is no tritonserver; make test installs it on Linux x86_64")


def _backends(folder: Path) -> str:
    """The wheel keeps a stub for each Python beside the backend, which wants its own within."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = SERVER.parents[1] / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copytree(SERVER.parents[1] / "backends", folder)
    Path(shutil.copy(stub, folder / "python")).chmod(0o755)
    SERVER.chmod(0o755)  # an unpacked wheel has lost the bit
    (folder / "onnxruntime").mkdir()
    (folder / "onnxruntime" / "model.py").write_text(ONNXRUNTIME)
    return f"--backend-directory={folder}"


def _environment(folder: Path, packages: list[str], keyring: Path) -> dict[str, str]:
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
        "CALIB_SERVE_KEYRING": str(keyring),
    }


@contextmanager
def triton_on(repository: Path, folder: Path, *options: str, numpy: int = 1) -> Iterator[Triton]:
    """A server of ``repository``, ready, or ended with its reason in the log; its files lie in ``folder``.

    ``numpy``: 1 for the one that this server can read, 2 for that of this Python.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keyring = folder / "keyring.json"
    Keyring.new().save(keyring)
    http, grpc, metrics = free_port(), free_port(), free_port()
    where = [f"--model-repository={repository}", _backends(folder / "backends"), f"--http-port={http}"]
    where += [f"--grpc-port={grpc}", f"--metrics-port={metrics}", "--http-address=127.0.0.1"]
    packages = [str(PACKAGES)] if numpy == 1 else []
    log = folder / "triton.log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [SERVER, *where, "--grpc-address=127.0.0.1", *options],
            env=_environment(folder / "python", packages, keyring),
            stdout=written,
            stderr=subprocess.STDOUT,
        )
        urls = f"http://127.0.0.1:{http}", f"http://127.0.0.1:{metrics}/metrics"
        try:
            # Closed before the server is told to end: it waits for its connections.
            with httpx.Client(timeout=60) as one, InferenceServerClient(f"127.0.0.1:{grpc}") as other:
                triton = Triton(process, one, other, *urls, log)
                until(lambda: triton.ready() or process.poll() is not None, seconds=90)
                yield triton
        finally:
            process.terminate()
            process.wait(60)
