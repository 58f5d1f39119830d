"""Processes that tests start: whatever happens, they end, and all they started with them."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil


def with_sigint_ignored(command: list[str]) -> list[str]:
    """``command`` as a shell's ``&`` or nohup starts it."""
    return ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command]


@contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """``command``, running; ended afterwards with all it started."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        end(process)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def ended_on_failure(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Ends ``process`` where what is done inside fails."""
    try:
        yield
    except BaseException:
        end(process)
        raise


def end(process: subprocess.Popen[Any], *, seconds: float = 60) -> None:
    """Ask ``process`` to end; after ``seconds`` end it, and whatever it started that is still there."""
    family = []
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()  # nothing where it has ended already
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    for one in (process, *psutil.wait_procs(family, timeout=1)[1]):
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


# Between the choice of a port and the server that listens there, nobody else is given it: the system takes
# its own from 32768 on, each worker of the tests has 4,000 of those below, and chooses each of them in turn.
_FIRST = 10_000 + 4_000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 5)
_PORTS = itertools.cycle([_FIRST + (os.getpid() + n) % 4_000 for n in range(4_000)])


def free_ports(n: int) -> list[int]:
    """Ports of this host on which nothing listens, and that no other test is given."""
    found: list[int] = []
    while len(found) < n:
        with socket.socket() as one, suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", port := next(_PORTS)))
            found.append(port)
    return found


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
