"""A TorchServe over calibrated archives: started, waited for, asked of its models, and stopped."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from calib_serve.core.errors import ServerError
from calib_serve.core.options.base import changed
from calib_serve.core.options.servers import ServeOptions
from calib_serve.torchserve.configuration import configure
from calib_serve.torchserve.management import NOT_FOUND, Management, Tokens, client_of
from calib_serve.torchserve.process import Process
from calib_serve.torchserve.properties import ADDRESSES, Ports

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ServeKeywords

_ERROR = re.compile(
    r"(?:MODEL_LOG - |\bERROR\b.*? - )((?:[\w.]+(?:Error|Exception|Dependency)|.*rror)\b.*)"
    r"|^([\w.]+(?:Error|Exception): .*)",  # Java's own
    re.MULTILINE,
)


class Server:
    """One TorchServe over archives; use it as a context manager: it always stops all processes.

    Values of ``properties`` stay, except for what ``notes`` tells.

    Args:
        store: The folder of the archives.
        models: Their files in it, such as ``digits.mar``.
        options: A ``ServeOptions``; keywords replace its fields.
        settings: Lines of config.properties, by name, such as those of ``Ports.free().as_properties()``.
        **keywords: Fields of ``ServeOptions``: ``folder``, ``keyring``, ``ledger``, ``properties``,
            ``samples``.

    Raises:
        ServerError: Where these are wrong, before anything starts; KeyringError for an unusable keyring.
    """

    def __init__(
        self,
        store: str | Path,
        models: Sequence[str],
        options: ServeOptions | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        **keywords: Unpack[ServeKeywords],
    ) -> None:
        found = changed(options or ServeOptions(), keywords, Server)
        self._configuration = configure(store, models, found, settings or {})
        self._process: Process | None = None
        self.failures: Mapping[str, str] = {}
        """Why, for each model that failed at the start; TorchServe keeps trying to load it."""
        self.notes = self._configuration.notes
        """What differs from the configuration it was given, a line each."""
        self.folder, self.store = self._configuration.folder, self._configuration.store
        """Where it runs, and where its archives are."""
        self.config_file, self.key_file = self._configuration.file, self.folder / "key_file.json"
        """The configuration it runs with, and its tokens."""
        self.log_file = self._configuration.logs / "torchserve.log"
        """The log of the server and its workers, of bounded size, see handlers/log4j2.xml."""
        self.has_tokens = self._configuration.has_tokens
        """Whether the inference and management APIs ask for tokens; that of the metrics needs none."""
        self.inference, self.management, self.metrics = map(self._configuration.address, ADDRESSES)
        """The base URLs of the APIs."""
        self.grpc = self._configuration.grpc
        """The host:port of the gRPC inference API."""

    @property
    def served(self) -> list[str]:
        """The names of the models, without those that failed at the start."""
        return [name for name in self._configuration.names if name not in self.failures]

    @property
    def tokens(self) -> Tokens:
        """Read the tokens of the running server; ServerError where ``has_tokens`` is false."""
        if not self.has_tokens:
            raise ServerError("the server has no tokens: disable_token_authorization=true")
        return Tokens.read(self.key_file)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._running().java.pid

    def start(self, *, allow_failures: bool = False) -> Server:
        """Start, and return once every worker of every model is ready.

        A model is waited for as long as TorchServe itself waits: its startupTimeout.

        Args:
            allow_failures: Whether to go on where some models fail; ``failures`` tells of them.

        Raises:
            ServerError: Where a model fails, with ``allow_failures`` where none is ready; then nothing runs.
        """
        self._configuration.write()
        self.key_file.unlink(missing_ok=True)  # an old one would be mistaken for the new server's
        start = self.log_file.stat().st_size if self.log_file.is_file() else 0
        log = Log(self.log_file, self.folder / "java.out", start)
        self._process = Process(self._configuration)
        try:
            self.failures = self._wait_until_ready(self._process, log)
            if self.failures and not (allow_failures and self.served):
                raise ServerError("; ".join(f"{name}: {why}" for name, why in self.failures.items()))
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
        return self._running().java.wait()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def client(self, *, timeout: float = 60.0) -> httpx.Client:
        """Make a client of the inference API, with its token; ``timeout``: seconds to wait for an answer."""
        token = self.tokens.inference if self.has_tokens else None
        return client_of(self.inference, token, timeout=timeout)

    def scrape(self) -> str:
        """Read the metrics endpoint's text, as Prometheus sees it."""
        with client_of(self.metrics, None) as http:
            return http.get("/metrics").raise_for_status().text

    def workers(self, model: str) -> list[int]:
        """List the pids of a model's ready workers."""
        return self._api().workers(model)

    def _api(self) -> Management:
        return Management(self.management, self.tokens.management if self.has_tokens else None)

    def _taken(self) -> str:
        """Name the port that another program has, which TorchServe's own log does not."""
        taken = Ports.of(self._configuration.properties).taken()
        if not taken:
            return ""
        said = ", ".join(f"{port} ({name})" for name, port in taken.items())
        return f"another program has port {said}: end it, or take other ports (--free-ports); "

    def _running(self) -> Process:
        if self._process is None:
            raise ServerError("the server is not running; start it first")
        return self._process

    def _wait_until_ready(self, process: Process, log: Log) -> dict[str, str]:
        startup = _Startup(self._configuration.names, log)
        while True:
            if (code := process.java.poll()) is not None:
                raise ServerError(f"TorchServe ended at once (code {code}); {self._taken()}{log.hint()}")
            with suppress(httpx.HTTPError, ServerError, KeyError, ValueError):
                if startup.done(self._api()):
                    return startup.failures
            time.sleep(0.1)


@dataclass(frozen=True)
class Log:
    """The log in ``file`` from byte ``start`` on; ``java``: Java's own output, which that file lacks."""

    file: Path
    java: Path
    start: int

    def text(self) -> str:
        """Read the whole log."""
        with suppress(OSError), self.file.open("rb") as file:
            file.seek(self.start)
            return file.read().decode("utf-8", "replace")
        return self.java.read_text("utf-8", "replace")

    def hint(self, model: str = "") -> str:
        """Name the log, and the last errors in it, or in the output of the workers of ``model``."""
        lines = [line for line in self.text().splitlines() if not model or f"-{model}_" in line]
        errors = [match[1] or match[2] for match in _ERROR.finditer("\n".join(lines))]
        file = self.file if self.file.is_file() else self.java
        return "\n  ".join([f"see {file}", *dict.fromkeys(errors[-3:])])


class _Startup:
    """The start of the models ``names`` on a new server.

    A model is ready when every version has the workers it was configured with. It has failed when it was not
    registered, and when a worker died or took longer than its startupTimeout, as another process in its place
    shows. TorchServe starts failed workers again for ever, at growing intervals.
    """

    def __init__(self, names: Sequence[str], log: Log) -> None:
        self._log, self.waiting = log, list(names)
        """The models that are neither ready nor failed."""
        self._pids: dict[tuple[str, str, str], int] = {}
        self._begun: dict[tuple[str, str], float] = {}
        self.failures: dict[str, str] = {}
        """Why, for each model that failed."""

    def done(self, management: Management) -> bool:
        """Look once whether each model is ready or failed; HTTPError while the server does not answer."""
        for name in tuple(self.waiting):
            try:
                versions = management.versions(name)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != NOT_FOUND:
                    raise
                # It answers once it has tried.
                self._failed(name, "TorchServe did not register it", self._log.hint())
                continue
            if all(_ready(version) for version in versions):
                self.waiting.remove(name)
            elif any(self._dead(version) for version in versions if not _ready(version)):
                time.sleep(0.5)  # until what a worker printed as it died is in the log
                self._failed(name, "it does not load", self._log.hint(name))
        return not self.waiting

    def _failed(self, name: str, what: str, hint: str) -> None:
        self.waiting.remove(name)
        self.failures[name] = f"{what}; {hint}"

    def _dead(self, version: dict[str, Any]) -> bool:
        name, number = version["modelName"], version["modelVersion"]
        begun = self._begun.setdefault((name, number), time.monotonic())
        # Beyond its model's start a process may take two minutes to start, and two more to be connected.
        if time.monotonic() - begun > float(version.get("startupTimeout", 120)) + 240:
            return True
        for worker in version["workers"]:
            if worker["pid"] > 0 and worker["status"] != "READY":
                first = self._pids.setdefault((name, number, worker["id"]), worker["pid"])
                # TorchServe starts a dead worker again: another process tells that the first one died.
                if first != worker["pid"]:
                    return True
        return False


def _ready(version: dict[str, Any]) -> bool:
    return bool(sum(worker["status"] == "READY" for worker in version["workers"]) >= version["minWorkers"])
