"""One TorchServe a session for each of its envelopes, on which each file registers models of its own.

What a test needs of its own start-up configuration, and what it ends, is a server of its own
(``live_server.serve``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from live_server import Running, serve, small_store

from calib_serve.torchserve import is_calibrated, pack_feedback, read_archive
from calib_serve.torchserve.promotion import Host


class TorchServes:
    """Servers with ``digits`` (two workers, batches of 8) and the feedback model, by their envelope."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._servers: dict[str, Running] = {}

    def behind(self, envelope: str = "") -> Running:
        """The server with this envelope, started when it is first asked for."""
        if envelope not in self._servers:
            folder = self._folder / (envelope or "none")
            folder.mkdir()
            settings = {
                "enable_model_api": "true",
                "ts_open_inference_protocol": "true",
                "token_expiration_min": "1440",
            }
            settings |= {"service_envelope": envelope} if envelope else {}
            names = ["digits.mar", "calibration_feedback.mar"]
            pack_feedback(small_store(folder), maturity="0")  # its labels count for shadows at once
            started = contextmanager(serve)(folder, names, folder / "run", **settings)
            with pytest.MonkeyPatch.context() as patch:  # workers of others' handlers import torchvision
                patch.setenv("PYTHONPATH", str(Path(__file__).parent / "torchvision_ops"), prepend=os.pathsep)
                self._servers[envelope] = self._stack.enter_context(started)
        return replace(self._servers[envelope], served=[])

    def register(self, *archives: Path, envelope: str = "") -> Running:
        """Serve these archives, whose models' names no other test has; labels of them are taken."""
        running = self.behind(envelope)
        host = Host.of(running.server.folder)
        for path in archives:
            found = read_archive(path, verify=False)
            if not (running.server.store / path.name).exists():
                copy = shutil.copytree if path.is_dir() else shutil.copy
                copy(path, running.server.store / path.name)
            if is_calibrated(found):
                host.take_labels_of(path)
            host.api.register(path.name, int(found.config.get("minWorkers", 1)))
        return replace(running, model=read_archive(archives[0], verify=False).name)

    def unregister(self, models: set[tuple[str, str]]) -> None:
        """Free the workers of all versions of these models, each with its server's envelope."""
        for model, envelope in models:
            host = Host.of(self.behind(envelope).server.folder)
            default = host.default(model).version
            for version in sorted(host.versions(model), key=lambda one: one == default):
                host.api.unregister(model, version)


@pytest.fixture(scope="session")
def torchserves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServes]:
    """The servers of this session."""
    with ExitStack() as stack:
        yield TorchServes(tmp_path_factory.mktemp("torchserve"), stack)


@pytest.fixture(scope="module")
def register(torchserves: TorchServes) -> Iterator[Callable[..., Running]]:
    """Registers archives on a server of the session until the file's tests end."""
    registered: set[tuple[str, str]] = set()

    def register(*archives: Path, envelope: str = "") -> Running:
        running = torchserves.register(*archives, envelope=envelope)
        registered.update((read_archive(path, verify=False).name, envelope) for path in archives)
        return running

    yield register
    torchserves.unregister(registered)
