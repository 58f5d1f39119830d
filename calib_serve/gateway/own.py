"""What the gateway itself answers: labels at /v1/labels, and metrics and a page below /calibration/."""

from __future__ import annotations

from calib_serve.errors import MissingDependency
from calib_serve.gateway.exporter import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from calib_serve.gateway.http import App, Receive, Scope, Send, stream_through
from calib_serve.gateway.upstream import HttpUpstream
from calib_serve.watch.http import Guard, Tokens

try:
    from fastapi import Depends, FastAPI, Response
except ImportError as error:
    raise MissingDependency("fastapi", "gateway") from error

__all__ = ["LABELS", "PREFIX", "of_watch_elsewhere", "of_watch_inside"]

LABELS = "/v1/labels"
PREFIX = "/calibration"
"""Below it are metrics, and the page of a watch in this process."""


def of_watch_inside(app: App) -> App:
    """Of a watch in this process, whose ``create_app`` made ``app``: labels, metrics, the page, incidents."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        below = scope["path"] != LABELS
        await app({**scope, "root_path": PREFIX} if below else scope, receive, send)

    return answer


def of_watch_elsewhere(watch: HttpUpstream, registry: CollectorRegistry, tokens: Tokens) -> App:
    """Of a watch at another address: labels go there with the client's token; metrics are the gateway's."""
    app = FastAPI(title="calib-serve gateway", docs_url=None, redoc_url=None, openapi_url=None)

    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    app.get("/metrics", dependencies=[Depends(Guard(tokens).needs("scrape"))])(metrics)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == LABELS:
            await stream_through(watch, scope, receive, send)
        else:
            await app({**scope, "root_path": PREFIX}, receive, send)

    return answer
