"""A reader's terminal: real commands in a scratch folder, real servers on ports of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from doc_blocks import ROOT
from processes import free_ports

from calib_serve.torchserve.process import find_java
from calib_serve.torchserve.properties import read_properties

PORTS = (8000, 8080, 8081, 8082, 7070, 7071, 9300, 9090)  # those that pages name
_NUMBER = re.compile(rf"(?<![\d.])({'|'.join(map(str, PORTS))})(?!\d)")
_ELIDED = re.compile(r"AQ\w+\.\.\.")  # a receipt as pages write it
_RECEIPT = re.compile(r'"receipt": ?\[?"([^"]{40,})"')


def http_ok(url: str, *, has: Sequence[str] = ("",)) -> bool:
    """Whether ``url`` is answered 200, by a text that holds each of ``has``."""
    with suppress(httpx.TransportError):
        answer = httpx.get(url, timeout=5, trust_env=False)
        return answer.status_code == 200 and all(text in answer.text for text in has)
    return False


def http_text(url: str) -> str:
    """What ``url`` answers."""
    return httpx.get(url, timeout=30, trust_env=False).raise_for_status().text


@dataclass(frozen=True)
class ServerCommand:
    """A command that stays: where it listens, what is typed after it here, and when it is ready."""

    starts: str
    port: int
    more: Callable[[Terminal], str]
    ready: Callable[[Terminal, str], bool]


SERVERS = (
    ServerCommand(
        "calib-serve serve",
        8080,
        lambda t: "".join(f" --option {key}={value}" for key, value in t.properties().items()),
        lambda _, printed: "Ctrl-C stops it" in printed,
    ),
    ServerCommand(
        "torchserve --start",
        8080,
        lambda _: "",
        lambda t, _: http_ok(
            t.url(8082, "metrics"), has=("calib_predictions_total{", "calib_feedback_total{")
        ),
    ),
    ServerCommand(
        "calib-serve watch",
        9300,
        lambda t: f" --port {t.ports[9300]}",
        lambda t, _: http_ok(t.url(9300, "healthz")),
    ),
    ServerCommand("calib-serve gateway", 8080, lambda _: "", lambda _, printed: " before http" in printed),
    ServerCommand("python model.py", 8000, lambda _: "", lambda _, printed: "answers at" in printed),
    ServerCommand(
        "uvicorn ",
        8000,
        lambda _: "",
        lambda t, _: http_ok(t.url(8000, "openapi.json")),
    ),
    ServerCommand("prometheus --config", 9090, lambda _: "", lambda t, _: http_ok(t.url(9090, "-/ready"))),
)


class Terminal:
    """What one command sets, the next one finds; what it starts runs on until ``close``.

    ``python`` is the interpreter of an environment in which the package is installed from its wheel.

    The ports that pages name become free ones, in commands and in files that ``copy`` brings; a
    receipt that a page cuts short becomes the last one that was really given.
    """

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self._python = folder, python
        self.output = ""  # of the last command
        self.receipt = ""
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self._own = folder.with_name(f"{folder.name}.terminal")
        self._own.mkdir()
        (self._own / "cwd").write_text(str(folder))
        (self._own / "env").touch()
        # A refused request is a failed command; loopback goes through no proxy.
        (self._own / ".curlrc").write_text('silent\nshow-error\nfail-with-body\nnoproxy = "*"\n')
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:  # every one is stopped, whatever becomes of the others
            for port in list(self._running):
                stack.callback(self.stop, port)

    def url(self, port: int, path: str) -> str:
        """Where what a page calls ``port`` really listens."""
        return f"http://127.0.0.1:{self.ports[port]}/{path}"

    def here(self, text: str) -> str:
        """A page's text as it has to be typed here."""
        text = _NUMBER.sub(lambda found: str(self.ports[int(found[1])]), text)
        return _ELIDED.sub(lambda _: self.receipt, text) if self.receipt else text

    def copy(self, *names: str) -> None:
        """Files of the repository's, at the same places."""
        for name in names:
            for path in [p for p in (ROOT / name).rglob("*") if p.is_file()] or [ROOT / name]:
                copied = self.folder / path.relative_to(ROOT)
                copied.parent.mkdir(parents=True, exist_ok=True)
                copied.write_text(self.here(path.read_text("utf-8")), "utf-8")

    def properties(self) -> dict[str, str]:
        """The lines of config.properties that name ports."""
        lines = read_properties(ROOT / "config.properties")
        return {key: self.here(value) for key, value in lines.items() if _NUMBER.search(value)}

    def type(self, command: str) -> None:
        """Run a shell command to its end, or start it and wait until it is ready if it is a server."""
        command = self.here(command)
        for server in SERVERS:
            if server.starts in command:
                self._start(server, command + server.more(self))
                self.output = self._log(server.port).read_text("utf-8", "replace")
                return
        self._run(
            [
                "bash",
                "-c",
                'set -aeuo pipefail; cd "$(cat "$T/cwd")"; . "$T/env"\n'
                f'{command}\nexport -p >"$T/env"; pwd >"$T/cwd"',
            ]
        )

    def python(self, program: str) -> None:
        """Run a program."""
        python = [str(self._python), "-W", "ignore", "-c", self.here(program)]
        self._run(["bash", "-c", 'cd "$(cat "$T/cwd")"; set -a; . "$T/env"; exec "$@"', "bash", *python])

    def answer(self) -> Any:
        """What the last command printed, as JSON."""
        return json.loads(self.output)

    def stop(self, port: int) -> str:
        """Ctrl-C to what listens on ``port``; what it has printed."""
        process = self._running.pop(port)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return self._log(port).read_text("utf-8", "replace")

    def _run(self, program: list[str]) -> None:
        done = subprocess.run(
            program,
            check=False,
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{program[-1]}\nprinted\n{done.stdout}\n{done.stderr}"
        self.output = done.stdout
        if given := _RECEIPT.findall(done.stdout):
            self.receipt = given[-1]

    def _start(self, server: ServerCommand, command: str) -> None:
        if server.port in self._running:
            self.stop(server.port)
        with self._log(server.port).open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", f'cd "$(cat "$T/cwd")"; . "$T/env"\n{command}'],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running[server.port] = process
        end = time.monotonic() + 300
        while not server.ready(self, printed := self._log(server.port).read_text("utf-8", "replace")):
            assert process.poll() is None, f"{command}\nended:\n{printed}"
            assert time.monotonic() < end, f"{command}\nis not ready after 300 s:\n{printed}"
            time.sleep(0.1)

    def _log(self, port: int) -> Path:
        return self._own / f"{port}.log"

    def _environment(self) -> dict[str, str]:
        folders = (self._python.parent, Path(sys.executable).parent, find_java().parent)
        programs = (*map(str, folders[:2]), os.environ["PATH"], str(folders[2]))
        return {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "PATH": os.pathsep.join(programs),
            "T": str(self._own),
            "CURL_HOME": str(self._own),
            "COLUMNS": "100",
            "PYTHONUNBUFFERED": "1",
        }
