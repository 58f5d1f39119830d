"""A TorchServe over calibrated archives: configured, started, waited for, and stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import httpx

from calib_serve.errors import ServerError
from calib_serve.serve.configuration import configure, ensure_keyring
from calib_serve.serve.log import Log
from calib_serve.serve.management import Management, Tokens
from calib_serve.serve.process import Process
from calib_serve.serve.properties import Ports

__all__ = ["Server", "Tokens", "ensure_keyring"]

_LAST_WORDS = 0.5  # seconds until what a worker printed as it died is in the log


class Server:
    """One TorchServe over the archives ``models`` in the folder ``store``.

    ``folder``: where it runs, made if missing: config, logs, ``key_file.json``, keyring and ledger.
    ``config``: a config.properties to start from (default: the package's);
    ``settings`` overrides single lines. ``ports``: None keeps the config's. ``keyring``,
    ``ledger``: default to files in ``folder`` of an earlier run, or as the environment says. ``writer``:
    this server's name among those that share a ledger (default: the host's name). ``samples``: a folder
    for the logits and labels of a share ``sample_rate`` of the predictions, written every
    ``sample_seconds``. ``label_budget``: which labels workers ask for, such as "500/day" (default: all).
    ServerError or KeyringError where these are wrong, before anything starts.
    Use it as a context manager: it always stops all processes.
    """

    def __init__(
        self,
        store: str | Path,
        models: Sequence[str],
        *,
        folder: str | Path,
        config: str | Path | None = None,
        ports: Ports | None = None,
        settings: Mapping[str, str] | None = None,
        keyring: str | Path | None = None,
        ledger: str | Path | None = None,
        writer: str | None = None,
        samples: str | Path | None = None,
        sample_rate: float = 0.1,
        label_budget: str = "",
        sample_seconds: float = 60.0,
    ) -> None:
        self._configuration = configure(
            store,
            models,
            folder=folder,
            config=config,
            ports=ports,
            settings=settings,
            keyring=keyring,
            ledger=ledger,
            writer=writer,
            samples=samples,
            sample_rate=sample_rate,
            label_budget=label_budget,
            sample_seconds=sample_seconds,
        )
        self._process: Process | None = None

    @property
    def folder(self) -> Path:
        """Where it runs."""
        return self._configuration.folder

    @property
    def store(self) -> Path:
        """Where its archives are."""
        return self._configuration.store

    @property
    def config_file(self) -> Path:
        """The configuration it runs with."""
        return self._configuration.file

    @property
    def key_file(self) -> Path:
        """Where the tokens are."""
        return self.folder / "key_file.json"

    @property
    def log_file(self) -> Path:
        """The log of the server and its workers, of bounded size, see handlers/log4j2.xml."""
        return self.folder / "logs" / "torchserve.log"

    @property
    def tokens(self) -> Tokens:
        """The tokens of the running server."""
        return Tokens.read(self.key_file)

    @property
    def inference(self) -> str:
        """Base URL of the inference API."""
        return self._configuration.address("inference")

    @property
    def management(self) -> str:
        """Base URL of the management API."""
        return self._configuration.address("management")

    @property
    def metrics(self) -> str:
        """Base URL of the metrics API; needs no token."""
        return self._configuration.address("metrics")

    @property
    def grpc(self) -> str:
        """host:port of the gRPC inference API."""
        return self._configuration.grpc

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._running().pid

    def start(self, *, timeout: float = 120.0) -> Server:
        """Start, and return once every worker of every model is ready; ``timeout`` in seconds."""
        self._configuration.write()
        self.key_file.unlink(missing_ok=True)  # an old one would be mistaken for the new server's
        log = Log.beginning_now(self.folder)
        self._process = Process(self._configuration)
        try:
            self._wait_until_ready(self._process, log, timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and its workers; may be called at any time, and twice."""
        process, self._process = self._process, None
        try:
            if process is not None:
                process.stop()
        finally:
            self.key_file.unlink(missing_ok=True)

    def wait(self) -> int:
        """Wait until the server ends by itself; its exit code."""
        return self._running().wait()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def client(self, *, timeout: float = 60.0) -> httpx.Client:
        """A client of the inference API with its token."""
        headers = {"Authorization": f"Bearer {self.tokens.inference}"}
        # Loopback never goes through the environment's proxies.
        return httpx.Client(base_url=self.inference, headers=headers, timeout=timeout, trust_env=False)

    def scrape(self) -> str:
        """The metrics endpoint's text, as Prometheus sees it."""
        reply = httpx.get(f"{self.metrics}/metrics", timeout=30.0, trust_env=False)
        return reply.raise_for_status().text

    def workers(self, model: str) -> list[int]:
        """The pids of a model's ready workers."""
        return self._api().workers(model)

    def _api(self) -> Management:
        return Management(self.management, self.tokens.management)

    def _running(self) -> Process:
        if self._process is None:
            raise ServerError("the server is not running; start it first")
        return self._process

    def _wait_until_ready(self, process: Process, log: Log, timeout: float) -> None:
        end = time.monotonic() + timeout
        names = self._configuration.names
        while True:
            if (code := process.exit_code()) is not None:
                raise ServerError(f"TorchServe ended at once (code {code}); {log.hint()}")
            if log.tells_that_a_load_failed():
                time.sleep(_LAST_WORDS)
                raise ServerError(f"a model does not load; {log.hint()}")
            with contextlib.suppress(httpx.HTTPError, ServerError, KeyError, ValueError):
                if all(self._api().ready(name) for name in names):
                    return
            if time.monotonic() > end:
                raise ServerError(f"TorchServe was not ready after {timeout:.0f} s; {log.hint()}")
            time.sleep(0.1)
