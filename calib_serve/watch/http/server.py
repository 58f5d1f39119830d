"""Run the app until SIGINT or SIGTERM."""

from __future__ import annotations

from contextlib import suppress

from calib_serve.errors import MissingDependency
from calib_serve.signals import interruptible

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
    # uvicorn answers what is in hand, then raises the signal again: that ends here.
    with suppress(KeyboardInterrupt), interruptible():
        uvicorn.run(
            app,
            host=host,
            port=port,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=_PATIENCE,
        )
