"""Run the app until SIGINT or SIGTERM, within bounds: connections, time, files, messages in the log."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from calib_serve.errors import InputError, MissingDependency
from calib_serve.signals import interruptible
from calib_serve.watch.http.connections import Loop, connections
from calib_serve.watch.http.quiet import sparing

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

try:
    import uvicorn
except ImportError as error:
    raise MissingDependency("uvicorn", "watch") from error

__all__ = ["serve_app"]

log = logging.getLogger(__name__)

_PATIENCE = 10  # seconds that clients have to end what they began, once the server is to stop
_BACKLOG = 128  # connections that wait to be accepted, and are accepted at once
_FILES = 128 + 4 * _BACKLOG  # open files beside: ledger, samples, log, connections just made or ended
_LEAST = 16  # connections
_HEAD = 16 << 10  # bytes of a request's line and headers
_LOGGERS = ("asyncio", "uvicorn.error", "calib_serve.watch.http.app", "calib_serve.gateway")


def serve_app(
    app: Callable[..., Any],
    *,
    host: str = "127.0.0.1",
    port: int = 9300,
    max_connections: int = 512,
    request_seconds: float = 30.0,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
) -> None:
    """Serve the ASGI ``app`` and return after SIGINT or SIGTERM, once the requests in hand are answered.

    Also where SIGINT was ignored, as for a process that a shell started in the background. It speaks
    HTTP/1.1, without WebSockets. At most ``max_connections`` are open: one more takes the place of the one
    that has kept the server waiting longest. A request is there whole within ``request_seconds``, or its
    connection is closed. ``tls_cert`` and ``tls_key``: PEM files of a certificate (with its chain) and its
    key, for HTTPS by TLS 1.2 or later.
    Raises SystemExit where the port cannot be used, InputError for a certificate that cannot.
    """
    context = None if tls_cert is None and tls_key is None else _tls(tls_cert, tls_key)
    most = _within_files(max_connections)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=connections(most, request_seconds),
        ws="none",
        h11_max_incomplete_event_size=_HEAD,
        backlog=_BACKLOG,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_PATIENCE,
    )
    config.load()
    config.ssl = context
    loop = Loop(request_seconds)
    # uvicorn answers what is in hand, then raises the signal again: that ends here.
    with suppress(KeyboardInterrupt), interruptible(), sparing(*_LOGGERS):
        try:
            loop.run_until_complete(uvicorn.Server(config).serve())
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


def _within_files(wanted: int) -> int:
    """How many connections the system's limit of open files allows; the soft limit is raised if need be."""
    if wanted < _LEAST:
        raise InputError(f"max_connections must be at least {_LEAST}, got {wanted}")
    if resource is None:
        return wanted
    files = wanted + _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    most = max(_LEAST, min(wanted, (soft - _FILES) // 2))
    log.warning("only %d files may be open (ulimit -n): %d connections, not %d", soft, most, wanted)
    return most


def _tls(cert: str | Path | None, key: str | Path | None) -> ssl.SSLContext:
    if cert is None or key is None:
        raise InputError("a certificate needs its key: give --tls-cert and --tls-key (tls_cert=, tls_key=)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=lambda: "")  # never ask on a terminal
    except (OSError, ValueError) as error:
        raise InputError(
            f"{cert} and {key} are no certificate and its key, unencrypted, in PEM: {error}"
        ) from error
    return context
