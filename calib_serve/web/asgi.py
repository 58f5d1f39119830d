"""Labels, metrics and the live page inside an ASGI app of yours: FastAPI, Starlette or any other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from calib_serve.core.errors import InputError
from calib_serve.monitor import Watch
from calib_serve.web.app import create_app
from calib_serve.web.guard import LOOPBACK
from calib_serve.web.tokens import Tokens

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class WatchMiddleware:
    """Answers below a path with the app of a watch; all else is the application's.

        app.add_middleware(WatchMiddleware, watch=watch)  # FastAPI and Starlette
        app = WatchMiddleware(app, watch=watch)  # any ASGI app

    Args:
        app: The application.
        watch: The watch, which stays yours to close.
        path: Where it answers.
        tokens: Who may use it, as in ``calib_serve.create_app``.
        hosts: The names it answers to, as in ``calib_serve.create_app``.
        registry: A ``CollectorRegistry`` for the metrics; by default one of its own.
    """

    def __init__(
        self,
        app: App,
        *,
        watch: Watch,
        path: str = "/calibration",
        tokens: Tokens = (),
        hosts: Sequence[str] = LOOPBACK,
        registry: Any = None,
    ) -> None:
        if not path.startswith("/") or path.endswith("/"):
            raise InputError(f"path begins with / and does not end with it, got {path!r}")
        self._app, self._path = app, path
        self._watch: App = create_app(watch, tokens=tokens, hosts=hosts, registry=registry)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection, request or lifespan."""
        if scope["type"] in ("http", "websocket"):
            root: str = scope.get("root_path", "")
            # Behind a proxy, or mounted, the path begins with the root; some servers leave it out.
            path: str = scope["path"]
            if path.startswith(f"{root}/"):
                path = path.removeprefix(root)
            if f"{path}/".startswith(f"{self._path}/"):
                # As ASGI mounts: the path stays whole, and what of it was the mount's is its root.
                below = {**scope, "path": root + path, "root_path": root + self._path}
                await self._watch(below, receive, send)
                return
        await self._app(scope, receive, send)
