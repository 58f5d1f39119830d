"""Processes that tests start: whatever happens, they end, and all they started with them."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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


def free_ports(n: int) -> list[int]:
    """Ports of this host on which nothing listens."""
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [one.getsockname()[1] for one in bound]


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
