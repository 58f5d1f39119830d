"""Graceful exit of a worker: between two requests, when the server has counted its metrics.

When a worker's connection closes, the server kills the worker and stops reading its output. So metrics must
be sent and counted while the connection is still open. Requests that the server has taken from its queue for
a worker that leaves are never answered, and it takes the next ones right after a reply. So on SIGTERM the
worker replies and closes its connection at once, before the server takes the next requests. An idle worker
leaves after a second without a request.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from calib_serve.serve.emit import wait_until_counted

__all__ = ["end_cleanly"]

_PATIENCE = 30.0  # seconds after which a worker exits even during a prediction
_QUIET = 1.0  # seconds without a request after which a worker exits: more than a batch waits for requests
_STEP = 0.2  # seconds between looks


def end_cleanly(flush: Callable[[], object]) -> Callable[[], None]:
    """Call ``flush`` when this worker exits, and exit between requests after SIGTERM, see above.

    Returns a function to call before each reply: after SIGTERM, it waits until the server has counted that
    reply's metrics, and exits when the reply is sent.
    """
    ending = _Ending(flush)
    atexit.register(flush)  # the server may have exited first
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ending.asked)
        ending.watch_requests()
    return ending.before_answer


class _Ending:
    """Exits while the worker waits for a command, not during a prediction."""

    def __init__(self, flush: Callable[[], object]) -> None:
        self._flush = flush
        self._since: float | None = None  # when SIGTERM arrived
        self._last = 0.0  # when the last request did, or SIGTERM

    def asked(self, signum: int, frame: FrameType | None) -> None:
        """SIGTERM, from outside or from the timer that is set here."""
        now = time.monotonic()
        if self._since is None:
            self._since = self._last = now
        elif now - self._since > _PATIENCE:
            sys.exit(0)
        elif now - self._last > _QUIET:
            connection = _idle_connection(frame)
            if connection and not _has_sent(connection):
                self._settle()
                if not _has_sent(connection):
                    _leave(connection)
        timer = threading.Timer(_STEP, os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()

    def watch_requests(self) -> None:
        """Note when each request comes, before its handler does."""
        try:
            from ts.service import Service  # noqa: PLC0415
        except ImportError:  # not within TorchServe
            return
        predict = Service.predict

        def noted(service: Any, batch: list[dict[str, Any]]) -> Any:
            self._last = time.monotonic()
            return predict(service, batch)

        Service.predict = noted

    def before_answer(self) -> None:
        """What ``end_cleanly`` returns."""
        if self._since is not None:
            self._settle()
            sys.setprofile(_leave_when_sent)  # TorchServe has no hook for a sent reply

    def _settle(self) -> None:
        self._flush()
        wait_until_counted()


def _leave_when_sent(frame: FrameType, event: str, function: Any) -> None:
    if (
        event == "c_return"
        and frame.f_code.co_name == "handle_connection"
        and getattr(function, "__name__", "") == "sendall"
    ):
        _leave(frame.f_locals["cl_socket"])


def _leave(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)  # at once: the next request goes to another worker
    sys.exit(0)  # not a crash: the server starts another worker


def _idle_connection(frame: FrameType | None) -> socket.socket | None:
    """The connection on which TorchServe's loop waits for the first byte of the next command, or None."""
    if frame is None or frame.f_code.co_name != "_retrieve_buffer" or frame.f_locals.get("data"):
        return None
    caller = frame.f_back
    if caller is None or caller.f_code.co_name != "retrieve_msg" or "cmd" in caller.f_locals:
        return None
    connection: socket.socket = frame.f_locals["conn"]
    return connection


def _has_sent(connection: socket.socket) -> bool:
    """Whether unread data from the server are waiting."""
    return bool(select.select([connection], [], [], 0)[0])
