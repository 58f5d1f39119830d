"""A TorchServe process: configured, started, waited for, and stopped with all it started."""

from __future__ import annotations

import contextlib
import ctypes
import functools
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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import httpx

from calib_serve.errors import ServerError
from calib_serve.fuse.mar_options import (
    KEYRING,
    LEDGER,
    METRICS,
    MODELS,
    SAMPLE_RATE,
    SAMPLE_SECONDS,
    SAMPLES,
    WRITER,
    from_environment,
)
from calib_serve.fuse.torchserve import labelled_models, read_archive, shipped
from calib_serve.receipts import Keyring
from calib_serve.serve.java import find_java
from calib_serve.serve.metrics_file import metrics_file
from calib_serve.serve.properties import Ports, changed, read_properties

__all__ = ["Server", "Tokens"]

_STOP_SECONDS = 15.0
_LAST_WORDS = 0.5  # seconds until what a worker printed as it died is in the log
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOAD_FAILED = "Backend worker process died."
_ERROR = re.compile(r"(?:MODEL_LOG - |\bERROR\b.*? - )((?:[\w.]+(?:Error|Exception|Dependency)|.*rror)\b.*)")


@dataclass(frozen=True, repr=False)
class Tokens:
    """What ``key_file.json`` holds; send one as ``Authorization: Bearer ...``."""

    inference: str
    management: str
    api: str

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Of a server that runs in the file's folder."""
        try:
            keys = json.loads(path.read_text("utf-8"))
            return cls(keys["inference"]["key"], keys["management"]["key"], keys["API"]["key"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ServerError(f"cannot read the tokens in {path}: {error}") from error


class Server:
    """One TorchServe over the archives ``models`` in the folder ``store``.

    ``folder``: where it runs, made if missing: config, logs, ``key_file.json``, keyring and ledger.
    ``config``: a config.properties to start from (default: the one that travels with the package);
    ``settings`` overrides single lines. ``ports``: None keeps the config's. ``keyring``,
    ``ledger``: default to files in ``folder`` of an earlier run, or as the environment says. ``writer``:
    this server's name among those that share a ledger (default: the host's name).
    Use it as a context manager: whatever happens inside, nothing is left running.
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
        sample_seconds: float = 60.0,
    ) -> None:
        self.folder, self.store = Path(folder).resolve(), Path(store).resolve()
        self._models = tuple(models)
        if not self._models:
            raise ServerError("name at least one archive of the model store to serve, such as digits.mar")
        base = Path(config) if config else shipped("config.properties")
        values = {**(ports.as_properties() if ports else {}), **(settings or {})}
        self._text = changed(base.read_text("utf-8"), {**values, **self._paths()})
        self._environment = self._worker_settings(keyring, ledger) | ({WRITER: writer} if writer else {})
        if not (0 < sample_rate <= 1 and 0 < sample_seconds < math.inf):
            raise ServerError(
                f"sample_rate is above 0 and at most 1, sample_seconds above 0; "
                f"got {sample_rate} and {sample_seconds}"
            )
        if samples is not None:
            self._environment |= {
                SAMPLES: str(Path(samples).resolve()),
                SAMPLE_RATE: repr(sample_rate),
                SAMPLE_SECONDS: repr(sample_seconds),
            }
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: Path | None = None
        self._log_start = 0

    @property
    def config_file(self) -> Path:
        """The configuration it runs with."""
        return self.folder / "config.properties"

    @property
    def key_file(self) -> Path:
        """Where the tokens are."""
        return self.folder / "key_file.json"

    @property
    def log_file(self) -> Path:
        """What the server and its workers told; it is bounded, see handlers/log4j2.xml."""
        return self.folder / "logs" / "torchserve.log"

    @property
    def tokens(self) -> Tokens:
        """The tokens of the running server."""
        return Tokens.read(self.key_file)

    @property
    def inference(self) -> str:
        """Base URL of the inference API."""
        return self._properties()["inference_address"]

    @property
    def management(self) -> str:
        """Base URL of the management API."""
        return self._properties()["management_address"]

    @property
    def metrics(self) -> str:
        """Base URL of the metrics API; needs no token."""
        return self._properties()["metrics_address"]

    @property
    def grpc(self) -> str:
        """host:port of the gRPC inference API."""
        properties = self._properties()
        return f"{urlsplit(self.inference).hostname}:{properties['grpc_inference_port']}"

    @property
    def pid(self) -> int:
        """The server's process."""
        if self._process is None:
            raise ServerError("the server is not running; start it first")
        return self._process.pid

    def start(self, *, timeout: float = 120.0) -> Server:
        """Start, and return once every worker of every model is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config_file.write_text(self._text, "utf-8")
        (self.folder / "metrics.yaml").write_text(metrics_file(), "utf-8")
        (self.folder / "models.json").write_text(self._labelled(), "utf-8")
        self.key_file.unlink(missing_ok=True)  # an old one would be taken for the new server's
        # Sockets of workers live here, and a socket's path may have 108 bytes: keep it short.
        self._scratch = Path(tempfile.mkdtemp(prefix="calib-"))
        self._log_start = self.log_file.stat().st_size if self.log_file.is_file() else 0
        with (self.folder / "java.out").open("wb") as output:
            self._process = subprocess.Popen(
                self._command(find_java()),
                cwd=self.folder,
                env={**os.environ, **self._environment, METRICS: self.metrics},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C comes to us, and we stop it in order
                preexec_fn=_end_with_parent(),  # noqa: PLW1509 - one system call, nothing that locks
            )
        try:
            self._wait_until_ready(timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and its workers; may be called at any time, and twice."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            # Workers are in the server's process group; whoever is still there is ended.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None
        self.key_file.unlink(missing_ok=True)

    def wait(self) -> int:
        """Wait until the server ends by itself; its exit code."""
        if self._process is None:
            raise ServerError("the server is not running; start it first")
        return self._process.wait()

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
        reply = httpx.get(f"{self.metrics}/metrics", timeout=10.0, trust_env=False)
        return reply.raise_for_status().text

    def workers(self, model: str) -> list[int]:
        """The pids of a model's ready workers."""
        headers = {"Authorization": f"Bearer {self.tokens.management}"}
        url = f"{self.management}/models/{model}/all"
        reply = httpx.get(url, headers=headers, timeout=10.0, trust_env=False)
        versions = reply.raise_for_status().json()
        return [w["pid"] for v in versions for w in v["workers"] if w["status"] == "READY" and w["pid"] > 0]

    def _paths(self) -> dict[str, str]:
        for name in self._models:
            if Path(name).name != name or not (self.store / name).is_file():
                raise ServerError(
                    f"there is no archive {name} in {self.store}; pack it with: calib-serve pack"
                )
        return {
            "model_store": str(self.store),
            "load_models": ",".join(self._models),
            "metrics_config": str(self.folder / "metrics.yaml"),
        }

    def _worker_settings(self, keyring: str | Path | None, ledger: str | Path | None) -> dict[str, str]:
        settings = {MODELS: str(self.folder / "models.json"), "PYTHONUNBUFFERED": "1"}
        own = self.folder / "keyring.json"
        if keyring is not None or (KEYRING not in os.environ and own.is_file()):
            settings[KEYRING] = str(Path(keyring or own).resolve())
        if path := settings.get(KEYRING) or from_environment(KEYRING):
            Keyring.load(path)  # what is wrong with it is said here, not by a worker that does not start
        if ledger is not None or LEDGER not in os.environ:
            settings[LEDGER] = (
                str(ledger)
                if "://" in str(ledger)
                else str(Path(ledger or self.folder / "ledger.sqlite").resolve())
            )
        return settings

    def _labelled(self) -> str:
        # Every calibrated archive in the store, served or not: labels of a retired version come late.
        return json.dumps(labelled_models(sorted(self.store.glob("*.mar"))), ensure_ascii=False)

    def _command(self, java: Path) -> list[str]:
        found = importlib.util.find_spec("ts")
        if found is None or not found.submodule_search_locations:
            raise ServerError("TorchServe is not installed; run: pip install 'calib-serve[torchserve]'")
        package = Path(next(iter(found.submodule_search_locations)))
        return [
            str(java),
            *self._properties().get("vmargs", "").split(),
            f"-Dmodel_server_home={package.parent}",
            f"-Djava.io.tmpdir={self._scratch}",
            f"-Dlog4j.configurationFile={shipped('handlers/log4j2.xml').as_uri()}",
            "-cp",
            f"{package / 'frontend'}/*",
            "org.pytorch.serve.ModelServer",
            "--python",
            sys.executable,
            "-f",
            str(self.config_file),
            "-s",
            str(self.store),
            "-ncs",
        ]

    def _properties(self) -> dict[str, str]:
        return read_properties(self.config_file)

    def _wait_until_ready(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        names = [read_archive(self.store / model, verify=False).name for model in self._models]
        while True:
            if self._process is not None and self._process.poll() is not None:
                raise ServerError(
                    f"TorchServe ended at once (code {self._process.returncode}); {self._hint()}"
                )
            if _LOAD_FAILED in self._log():
                time.sleep(_LAST_WORDS)
                raise ServerError(f"a model does not load; {self._hint()}")
            with contextlib.suppress(httpx.HTTPError, ServerError, KeyError, ValueError):
                if all(self._is_ready(name) for name in names):
                    return
            if time.monotonic() > end:
                raise ServerError(f"TorchServe was not ready after {timeout:.0f} s; {self._hint()}")
            time.sleep(0.1)

    def _is_ready(self, name: str) -> bool:
        headers = {"Authorization": f"Bearer {self.tokens.management}"}
        url = f"{self.management}/models/{name}/all"
        reply = httpx.get(url, headers=headers, timeout=5.0, trust_env=False).raise_for_status().json()
        return all(
            sum(w["status"] == "READY" for w in version["workers"]) >= max(1, version["minWorkers"])
            for version in reply
        )

    def _log(self) -> str:
        """What was logged since the start; what Java itself printed where it did not get so far."""
        with contextlib.suppress(OSError), self.log_file.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode("utf-8", "replace")
        return (self.folder / "java.out").read_text("utf-8", "replace")

    def _hint(self) -> str:
        """The last errors in the log, for whoever must mend it."""
        told = _ERROR.findall(self._log())
        return "\n  ".join([f"see {self.log_file}", *dict.fromkeys(told[-3:])])


def _end_with_parent() -> Callable[[], object] | None:
    """What makes the server end with this process, even one that is killed outright (on Linux)."""
    # The kernel watches the thread that started it, so only the main thread's life will do.
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    return functools.partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGTERM)
