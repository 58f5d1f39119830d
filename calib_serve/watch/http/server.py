"""Run the app until SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from calib_serve.errors import MissingDependency

try:
    import uvicorn
    from fastapi import FastAPI
except ImportError as error:
    raise MissingDependency("uvicorn", "watch") from error

__all__ = ["serve_app"]

_PATIENCE = 10  # seconds that clients have to end what they began, once the server is to stop


def serve_app(app: FastAPI, *, host: str = "127.0.0.1", port: int = 9300) -> None:
    """Serve ``app`` and return after SIGINT or SIGTERM, once the requests in hand are answered.

    Also where SIGINT was ignored, as for a process that a shell started in the background. Raises
    SystemExit where the port cannot be used.
    """
    with _until_interrupted():
        uvicorn.run(
            app,
            host=host,
            port=port,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=_PATIENCE,
        )


@contextmanager
def _until_interrupted() -> Iterator[None]:
    """End the block at SIGINT or SIGTERM; handlers are set back afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal comes here
        return
    # uvicorn answers what is in hand, then raises the signal again: let that end here.
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
