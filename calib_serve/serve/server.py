"""A TorchServe over calibrated archives: configured, started, waited for, and stopped."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from calib_serve.errors import ServerError
from calib_serve.options.base import changed
from calib_serve.options.serve import ServeOptions
from calib_serve.serve.configuration import configure, ensure_keyring
from calib_serve.serve.management import Management, Tokens, client_of
from calib_serve.serve.process import Process
from calib_serve.serve.properties import Ports

__all__ = ["Server", "Tokens", "ensure_keyring"]


_ERROR = re.compile(
    r"(?:MODEL_LOG - |\bERROR\b.*? - )((?:[\w.]+(?:Error|Exception|Dependency)|.*rror)\b.*)"
    r"|^([\w.]+(?:Error|Exception): .*)",  # Java's own
    re.MULTILINE,
)
_LAST_WORDS = 0.5  # seconds until what a worker printed as it died is in the log
_PROCESS = 240.0  # seconds: TorchServe gives a process two minutes to start, and two more to be connected


class Server:
    """One TorchServe over the archives ``models`` in the folder ``store``.

    ``options``, or ``given`` one by one: see ``ServeOptions``. ``ports``: where it listens instead of where
    the configuration says; ``settings``: lines of config.properties. Values of ``properties`` stay, except
    for what ``notes`` tells. ServerError or KeyringError where these are wrong, before anything starts.
    Use it as a context manager: it always stops all processes.
    """

    def __init__(
        self,
        store: str | Path,
        models: Sequence[str],
        options: ServeOptions | None = None,
        *,
        ports: Ports | None = None,
        settings: Mapping[str, str] | None = None,
        **given: Any,
    ) -> None:
        found = changed(options or ServeOptions(), given)
        self._configuration = configure(store, models, found, ports=ports, settings=settings)
        self._process: Process | None = None
        self._failures: dict[str, str] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What differs from the configuration it was given, a line each."""
        return self._configuration.notes

    @property
    def failures(self) -> Mapping[str, str]:
        """Why, for each model that failed at the start; TorchServe keeps trying to load it."""
        return dict(self._failures)

    @property
    def served(self) -> list[str]:
        """The names of the models, without those that failed at the start."""
        return [name for name in self._configuration.names if name not in self._failures]

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
        return self._configuration.logs / "torchserve.log"

    @property
    def has_tokens(self) -> bool:
        """Whether the inference and management APIs ask for tokens."""
        return self._configuration.has_tokens

    @property
    def tokens(self) -> Tokens:
        """The tokens of the running server; ServerError where ``has_tokens`` is false."""
        if not self.has_tokens:
            raise ServerError("the server has no tokens: disable_token_authorization=true")
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

    def start(self, *, timeout: float | None = None, allow_failures: bool = False) -> Server:
        """Start, and return once every worker of every model is ready.

        A model is waited for as long as TorchServe itself waits: its startupTimeout. ``timeout``: seconds for
        all of it, at most. ServerError, and nothing runs, where a model fails; with ``allow_failures`` only
        where none is ready, and ``failures`` tells of the others.
        """
        self._configuration.write()
        self.key_file.unlink(missing_ok=True)  # an old one would be mistaken for the new server's
        log = Log.beginning_now(self.folder, self._configuration.logs)
        self._process = Process(self._configuration)
        try:
            self._failures = self._wait_until_ready(self._process, log, timeout)
            if self._failures and not (allow_failures and {*self._configuration.names} - {*self._failures}):
                raise ServerError("; ".join(f"{name}: {why}" for name, why in self._failures.items()))
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
        """A client of the inference API, with its token where it asks for one."""
        token = self.tokens.inference if self.has_tokens else None
        return client_of(self.inference, token, timeout=timeout)

    def scrape(self) -> str:
        """The metrics endpoint's text, as Prometheus sees it."""
        with client_of(self.metrics, None) as http:
            return http.get("/metrics").raise_for_status().text

    def workers(self, model: str) -> list[int]:
        """The pids of a model's ready workers."""
        return self._api().workers(model)

    def _api(self) -> Management:
        return Management(self.management, self.tokens.management if self.has_tokens else None)

    def _taken(self) -> str:
        """TorchServe's own log does not say that a port was taken."""
        taken = Ports.of(self._configuration.properties).taken()
        if not taken:
            return ""
        said = ", ".join(f"{port} ({name})" for name, port in taken.items())
        return f"another program has port {said}: end it, or take other ports (--free-ports); "

    def _running(self) -> Process:
        if self._process is None:
            raise ServerError("the server is not running; start it first")
        return self._process

    def _wait_until_ready(self, process: Process, log: Log, timeout: float | None) -> dict[str, str]:
        end = math.inf if timeout is None else time.monotonic() + timeout
        startup = Startup(self._configuration.names, log)
        while True:
            if (code := process.exit_code()) is not None:
                raise ServerError(f"TorchServe ended at once (code {code}); {self._taken()}{log.hint()}")
            with suppress(httpx.HTTPError, ServerError, KeyError, ValueError):
                if startup.done(self._api()):
                    return startup.failures
            if time.monotonic() > end:
                waiting = ", ".join(startup.still())
                raise ServerError(f"{waiting} was not ready after {timeout:.0f} s; {log.hint()}")
            time.sleep(0.1)


@dataclass(frozen=True)
class Log:
    """``file`` from byte ``start`` on; ``java``: Java's own output, for what is not logged to that file."""

    file: Path
    java: Path
    start: int

    @classmethod
    def beginning_now(cls, folder: Path, logs: Path) -> Log:
        """The log of a server that is about to start in ``folder`` and logs to ``logs``."""
        file = logs / "torchserve.log"
        return cls(file, folder / "java.out", file.stat().st_size if file.is_file() else 0)

    def text(self) -> str:
        """All of it."""
        with suppress(OSError), self.file.open("rb") as file:
            file.seek(self.start)
            return file.read().decode("utf-8", "replace")
        return self.java.read_text("utf-8", "replace")

    def hint(self, model: str = "") -> str:
        """Where the log is, and the last errors in it, or in what the workers of ``model`` said."""
        lines = [line for line in self.text().splitlines() if not model or f"-{model}_" in line]
        errors = [match[1] or match[2] for match in _ERROR.finditer("\n".join(lines))]
        return "\n  ".join(
            [f"see {self.file if self.file.is_file() else self.java}", *dict.fromkeys(errors[-3:])]
        )


class Startup:
    """The models ``names`` of a server that has just been started.

    A model is ready when every version has the workers it was configured with. It has failed when it was not
    registered, and when a worker died or took longer than its startupTimeout, as another process in its place
    shows. TorchServe starts failed workers again for ever, at growing intervals.
    """

    def __init__(self, names: Sequence[str], log: Log) -> None:
        self._log, self._waiting = log, list(names)
        self._pids: dict[tuple[str, str, str], int] = {}
        self._begun: dict[tuple[str, str], float] = {}
        self.failures: dict[str, str] = {}
        """Why, for each model that failed."""

    def done(self, management: Management) -> bool:
        """Whether each is ready or has failed; looks once. HTTPError while the server does not answer."""
        for name in tuple(self._waiting):
            try:
                versions = management.versions(name)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.NOT_FOUND:
                    raise
                # It answers once it has tried.
                self._failed(name, "TorchServe did not register it", self._log.hint())
                continue
            if all(_ready(version) for version in versions):
                self._waiting.remove(name)
            elif any(self._dead(version) for version in versions if not _ready(version)):
                time.sleep(_LAST_WORDS)
                self._failed(name, "it does not load", self._log.hint(name))
        return not self._waiting

    def still(self) -> list[str]:
        """Those that are neither ready nor failed."""
        return list(self._waiting)

    def _failed(self, name: str, what: str, hint: str) -> None:
        self._waiting.remove(name)
        self.failures[name] = f"{what}; {hint}"

    def _dead(self, version: dict[str, Any]) -> bool:
        name, number = version["modelName"], version["modelVersion"]
        begun = self._begun.setdefault((name, number), time.monotonic())
        if time.monotonic() - begun > float(version.get("startupTimeout", 120)) + _PROCESS:
            return True
        for worker in version["workers"]:
            if worker["pid"] > 0 and worker["status"] != "READY":
                first = self._pids.setdefault((name, number, worker["id"]), worker["pid"])
                if first != worker["pid"]:
                    return True
        return False


def _ready(version: dict[str, Any]) -> bool:
    return bool(sum(worker["status"] == "READY" for worker in version["workers"]) >= version["minWorkers"])
