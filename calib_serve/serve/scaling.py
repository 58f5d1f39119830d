"""Another number of workers of a running server, without losing a request or a count.

TorchServe ends workers in the middle of what they do: ``WorkLoadManager.modelChanged`` takes the last
ones of its list, ``WorkerThread.shutdown`` closes their connections and puts their requests back into the
queue while their threads drop them, and then the processes are killed, with all they had not reported. So
each worker is first made to leave by itself, at a request that is ours. The server starts another process
in its place, which is stopped before it can load the model. Such a worker holds no request, and is removed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from calib_serve.errors import ServerError
from calib_serve.serve.lifecycle import LEAVE
from calib_serve.serve.management import Management, Tokens
from calib_serve.serve.properties import is_true, read_properties

__all__ = ["management_of", "scale"]

_PROC = Path("/proc")
_PATIENCE = 180.0  # seconds in which workers take one of our requests, and TorchServe replaces them
_STILL = 2.0  # seconds without a request after which a version counts as unused


def management_of(folder: Path) -> Management:
    """The management API of the server that runs in ``folder``; ServerError where it cannot be scaled."""
    properties = read_properties(folder / "config.properties")
    if is_true(properties.get("cpu_launcher_enable")):
        raise ServerError("cpu_launcher_enable=true: TorchServe restarts every worker at any change")
    token = None
    if not is_true(properties.get("disable_token_authorization")):
        token = Tokens.read(folder / "key_file.json").management
    return Management(properties.get("management_address", "http://127.0.0.1:8081"), token)


def scale(api: Management, model: str, workers: int, *, version: str | None = None) -> tuple[str, int]:
    """Give ``model``, its default version or ``version``, so many ``workers``; the version, and those it had.

    Without workers, requests for a version get 503, and it can be unregistered safely: ServerError where it
    still gets requests. Fewer workers need Linux, the server's user, and handlers of calib-serve.
    """
    if workers < 0:
        raise ServerError(f"workers is 0 or more, got {workers}")
    try:
        before = api.versions(model, version)[0]
        found = str(before["modelVersion"])
        last = before["workers"][workers:]
        if last:
            _remove(api, model, found, workers)
        else:
            api.set_workers(model, found, workers)
    except httpx.HTTPStatusError as error:
        raise ServerError(f"{api.url} has no model {model} {version or ''}: {error}") from error
    except httpx.HTTPError as error:
        raise ServerError(
            f"{api.url} does not answer ({error}); is the server running in that folder?"
        ) from error
    return found, len(before["workers"])


def _remove(api: Management, model: str, version: str, workers: int) -> None:
    def last() -> dict[str, dict[str, Any]]:
        """The workers that TorchServe removes: it keeps the first ones."""
        return {worker["id"]: worker for worker in api.versions(model, version)[0]["workers"][workers:]}

    leaving = {name: worker["pid"] for name, worker in last().items()}
    server = _check(leaving)
    if not workers:
        _check_unused(api, model, version)
    for pid in leaving.values():
        os.kill(pid, signal.SIGUSR1)
    with _held() as held:
        end = time.monotonic() + _PATIENCE
        while len(held) < len(leaving):
            _hold(held, leaving, server)
            if any(w["pid"] == leaving.get(name) and w["status"] == "READY" for name, w in last().items()):
                api.ask_a_worker(model, version, LEAVE)  # any worker may take it
            else:
                time.sleep(0.02)
            if time.monotonic() > end:
                raise ServerError(f"a worker of {model} {version} did not leave; see the server's log")
        # One that got further holds a request of the server's, to load the model.
        if any(worker["pid"] in held.values() for worker in last().values()):
            raise ServerError(f"a worker of {model} {version} came back too soon; try again")
        api.set_workers(model, version, workers)
        held.clear()
    if not workers and (left := _waiting(api, model, version)):
        api.set_workers(model, version, 1)
        raise ServerError(
            f"{model} {version} got {left} requests meanwhile, and has one worker again to answer them; send"
            " its requests elsewhere first"
        )


def _check(leaving: dict[str, int]) -> int:
    """The server's process, where its workers can be told to leave."""
    servers = set()
    for pid in leaving.values():
        try:
            lines = (_PROC / str(pid) / "status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines)
            caught = int(status["SigCgt"], 16)
        except (OSError, ValueError, KeyError) as error:
            raise ServerError(
                f"the worker {pid} is not a process of this host, or not ready; scale down on the server's"
                " host, which is a Linux, when all workers are ready"
            ) from error
        if not caught >> (signal.SIGUSR1 - 1) & 1:
            raise ServerError(
                f"the worker {pid} does not know how to leave: its handler is not one of calib-serve, or an"
                " older one. TorchServe's management API can end it, and may lose requests"
            )
        servers.add(int(status["PPid"]))
    return servers.pop()


def _check_unused(api: Management, model: str, version: str) -> None:
    """No worker would be left for requests that wait: so there must be none."""
    end = time.monotonic() + _STILL
    while time.monotonic() < end:
        if _waiting(api, model, version):
            raise ServerError(f"{model} {version} still gets requests; send them elsewhere first")
        time.sleep(0.01)


def _waiting(api: Management, model: str, version: str) -> int:
    return int(api.versions(model, version)[0]["jobQueueStatus"]["pendingRequests"])


@contextlib.contextmanager
def _held() -> Iterator[dict[str, int]]:
    """Stopped processes, by their workers; those that are not removed go on afterwards."""
    held: dict[str, int] = {}
    try:
        yield held
    finally:
        for pid in held.values():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)


def _hold(held: dict[str, int], leaving: dict[str, int], server: int) -> None:
    """Stop each process that has taken the place of one that left."""
    for folder in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid, words = int(folder.name), (folder / "cmdline").read_bytes().decode().split("\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == server and pid not in {*leaving.values(), *held.values()}:
                option = "--sock-name" if "--sock-name" in words else "--port"
                worker = words[words.index(option) + 1].rpartition(".")[2]
                if worker in leaving and worker not in held:
                    os.kill(pid, signal.SIGSTOP)
                    held[worker] = pid
