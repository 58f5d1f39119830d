"""The HTTP face of a ``Watch``: FastAPI, to run by ``calib-serve watch`` or to mount in an app of yours.

    app.mount("/calibration", create_app(watch))

Bodies are JSON or NDJSON, bounded in size, and read before anything is done with them. A batch is
acknowledged when the ledger holds it; when too many wait, the next one is told 429 at once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from calib_serve.errors import LedgerError, MissingDependency, Refused
from calib_serve.watch.http.exporter import Requests, export
from calib_serve.watch.http.page import STATIC, render
from calib_serve.watch.http.wire import (
    MOST_ITEMS,
    HealthOut,
    LabelsIn,
    LabelsOut,
    PredictionIn,
    PredictionsIn,
    PredictionsOut,
    answers,
    body,
)
from calib_serve.watch.service import Prediction, Watch

try:
    from anyio import CapacityLimiter
    from anyio.to_thread import run_sync
    from fastapi import Depends, FastAPI, HTTPException, Request, Response
    from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
    from fastapi.staticfiles import StaticFiles
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from pydantic import TypeAdapter, ValidationError
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import ClientDisconnect
except ImportError as error:
    raise MissingDependency("fastapi", "watch") from error

__all__ = ["create_app"]

log = logging.getLogger(__name__)

_SECURE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


_PREDICTION = TypeAdapter(PredictionIn)


def create_app(
    watch: Watch,
    *,
    tokens: Sequence[str] = (),
    hosts: Sequence[str] = ("localhost", "127.0.0.1"),
    max_bytes: int = 4 << 20,
    max_waiting: int = 32,
    registry: CollectorRegistry | None = None,
) -> FastAPI:
    """The app over ``watch``, which stays yours to close.

    ``tokens``: who may use it, by ``Authorization: Bearer TOKEN`` or as the password of HTTP Basic
    (for browsers); empty: everybody who reaches it. ``hosts``: the names it answers to, ``["*"]`` for
    any. ``max_waiting``: batches at work or in line, beyond which the answer is 429.
    """
    registry = registry or CollectorRegistry()
    requests = export(watch, registry)
    guard = Depends(_Guard(tokens))
    gate = _Gate(max_waiting)
    app = FastAPI(title="calib-serve watch", docs_url=None, redoc_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    app.middleware("http")(_observed(requests))

    @app.post(
        "/v1/predictions",
        dependencies=[guard],
        openapi_extra=body(PredictionsIn),
        responses=answers(PredictionsOut, 400, 401, 413, 415, 429, 503),
    )
    async def predictions(request: Request) -> Response:
        """Count served predictions; returns a signed receipt for each, to send back with its label.

        With an ``Idempotency-Key`` header a batch that is sent again is counted once.
        """
        items = await _items(request, max_bytes)
        once = request.headers.get("idempotency-key")
        name = None if once is None else hashlib.sha256(once.encode()).digest()
        parsed = [_prediction(item) for item in items]
        answers = await gate.run(lambda: watch.predictions(parsed, once=name), watch)
        return JSONResponse({"items": [_answer(one) for one in answers]})

    @app.post(
        "/v1/labels",
        dependencies=[guard],
        openapi_extra=body(LabelsIn),
        responses=answers(LabelsOut, 400, 401, 413, 415, 429, 503),
    )
    async def labels(request: Request) -> Response:
        """Count late labels, once each; says of each whether it was accepted, and why not."""
        items = await _items(request, max_bytes)
        outcomes = await gate.run(lambda: watch.labels(items), watch)
        accepted = sum(one.accepted for one in outcomes)
        return JSONResponse(
            {
                "accepted": accepted,
                "refused": len(outcomes) - accepted,
                "items": [one.as_dict() for one in outcomes],
            }
        )

    @app.get(
        "/metrics",
        dependencies=[guard],
        response_class=PlainTextResponse,
        responses={401: answers(HealthOut, 401)[401]},
    )
    async def metrics() -> Response:
        """Prometheus exposition."""
        return Response(await run_sync(generate_latest, registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/healthz", responses={200: {"model": HealthOut}, 503: {"model": HealthOut}})
    async def healthz() -> Response:
        """200 while the ledger can be read."""
        try:
            await run_sync(watch.ledger.load, "health")
        except LedgerError as error:
            log.error("health: %s", error)
            return JSONResponse({"status": "the ledger cannot be read"}, status_code=503)
        return JSONResponse({"status": "ok"})

    @app.get("/", dependencies=[guard], include_in_schema=False)
    async def page(model: str = "", version: str = "", segment: str = "") -> Response:
        """The page."""
        text = await run_sync(lambda: render(watch, model=model, version=version, segment=segment))
        return HTMLResponse(text)

    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


class _Guard:
    """Lets in who has a token; compares digests, so that time tells nothing about them."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(token.encode()).digest() for token in tokens]

    def __call__(self, request: Request) -> None:
        if not self._digests:
            return
        given = hashlib.sha256(_token(request.headers.get("authorization", "")).encode()).digest()
        if not any(hmac.compare_digest(given, digest) for digest in self._digests):
            raise HTTPException(
                401, "send Authorization: Bearer TOKEN", {"WWW-Authenticate": 'Basic realm="watch"'}
            )


def _token(header: str) -> str:
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


class _Gate:
    """At most ``most`` batches at work or in line; the ledger takes them one after another."""

    def __init__(self, most: int) -> None:
        self._most, self._inside = most, 0
        self._limiter: CapacityLimiter | None = None

    async def run(self, work: Callable[[], Any], watch: Watch) -> Any:
        """What ``work`` returns, done in a thread; 429 when full, 503 when the ledger cannot keep it."""
        if self._inside >= self._most:
            raise HTTPException(429, "too many batches are waiting; send it again", {"Retry-After": "1"})
        self._limiter = self._limiter or CapacityLimiter(1)
        self._inside += 1
        try:
            return await run_sync(work, limiter=self._limiter)
        except LedgerError as error:
            watch.counts.errors["ledger"] += 1
            log.error("a batch was not counted: %s", error)
            raise HTTPException(
                503,
                "the ledger cannot keep the batch; nothing was counted, send it again",
                {"Retry-After": "5"},
            ) from error
        finally:
            self._inside -= 1


async def _items(request: Request, max_bytes: int) -> list[Any]:
    """The items of a JSON ``{"items": [...]}``, a JSON list, or NDJSON; or 400, 413, 415."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", "application/x-ndjson"):
        raise HTTPException(415, "send application/json or application/x-ndjson")
    content = bytearray()
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > max_bytes:
                raise HTTPException(413, f"a batch has at most {max_bytes} bytes; send smaller ones")
    except ClientDisconnect as error:  # nobody reads the answer, and no traceback floods the log
        raise HTTPException(400, "the body was cut off") from error
    items = _lines(bytes(content)) if kind.endswith("ndjson") else _document(bytes(content))
    if len(items) > MOST_ITEMS:
        raise HTTPException(413, f"a batch has at most {MOST_ITEMS} items, got {len(items)}")
    return items


def _document(body: bytes) -> list[Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "the body is not JSON") from error
    items = content.get("items") if isinstance(content, dict) else content
    if not isinstance(items, list):
        raise HTTPException(400, 'send {"items": [...]} or a list')
    return items


def _lines(body: bytes) -> list[Any]:
    """One item a line; a line that is not JSON is an item that will be refused."""

    def parse(line: bytes) -> Any:
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            return None

    return [parse(line) for line in body.splitlines() if line.strip()]


def _prediction(item: object) -> Prediction | Refused:
    try:
        one = _PREDICTION.validate_python(item)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "item"
        return Refused("malformed", f"{where}: {first['msg']}")
    logits = None if one.logits is None else tuple(one.logits)
    return Prediction(one.model, one.version, one.predicted, one.confidence, one.segment, logits)


def _answer(one: str | Refused) -> dict[str, Any]:
    if isinstance(one, str):
        return {"receipt": one}
    return {"accepted": False, "reason": one.reason, "message": str(one)}


def _observed(
    requests: Requests,
) -> Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]:
    async def observe(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        began = time.perf_counter()
        response = await proceed(request)
        response.headers.update(_SECURE)
        route = getattr(request.scope.get("route"), "path", "other")
        requests.add(route, response.status_code, time.perf_counter() - began)
        return response

    return observe
