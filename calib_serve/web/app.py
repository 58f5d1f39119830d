"""A ``Watch`` over HTTP: FastAPI, to run by ``calib-serve watch`` or to mount in an app of yours.

    app.mount("/calibration", create_app(watch))

A batch is acknowledged when the ledger holds it; when too many wait, the next one is answered 429 at once.
"""

from __future__ import annotations

import functools
import gzip
import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from anyio.to_thread import run_sync
from fastapi import FastAPI, HTTPException, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import TypeAdapter, ValidationError

from calib_serve.core.errors import ConflictError, InputError, LedgerError, Refused
from calib_serve.monitor import Watch, file_check
from calib_serve.receipts import (
    Item,
    ServedPrediction,
    ServedReceipt,
    ServedSums,
    Shadow,
    SignedReceipt,
    UnboundReceipt,
)
from calib_serve.report import STATIC
from calib_serve.web.bodies import Waiting
from calib_serve.web.exporter import Batch, WatchCollector, export
from calib_serve.web.gate import Gate, parser_of, read_body, read_model, what_is_wrong
from calib_serve.web.guard import LOOPBACK, Guard, id_source, may_correct, source_of
from calib_serve.web.limits import Limits
from calib_serve.web.monitoring.files import WINDOWS as RULED
from calib_serve.web.page import render_page
from calib_serve.web.runbooks import render_runbooks
from calib_serve.web.tokens import Scope, TokenFile, Tokens
from calib_serve.web.wire import (
    ClauseOut,
    CloseIn,
    ContractOut,
    HealthOut,
    IncidentOut,
    IncidentsOut,
    LabelsIn,
    LabelsOut,
    LedgerOut,
    PredictionIn,
    PredictionsIn,
    PredictionsOut,
    ShadowOut,
    ShadowsOut,
    SignedIn,
    SumsIn,
    SumsOut,
    VersionIn,
    VersionOut,
    answers,
    body,
    not_text,
)

_SECURE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

_PREDICTION, _SIGNED = TypeAdapter(PredictionIn), TypeAdapter(SignedIn)
_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", re.IGNORECASE)


def create_app(
    watch: Watch,
    *,
    tokens: Tokens = (),
    hosts: Sequence[str] = LOOPBACK,
    registry: CollectorRegistry | None = None,
) -> FastAPI:
    """Return the app over a watch, which stays yours to close.

    Tokens come by ``Authorization: Bearer TOKEN`` or as the password of HTTP Basic (for browsers). Whatever
    they say, a page of another site is refused what changes anything.

    Args:
        watch: An open watch.
        tokens: Who may use it: a text may do everything, a ``Token`` what its scopes say; a ``TokenFile`` is
            read again when it changes. By default everybody who reaches it.
        hosts: The names it answers to, ``["*"]`` for any; by default loopback's.
        registry: Where to register the metrics; by default one of its own.
    """
    registry = registry or CollectorRegistry()
    app = _Watched(title="calib-serve watch", docs_url=None, redoc_url=None)
    if isinstance(tokens, TokenFile):
        _follow(tokens, watch)
    guard = Guard(tokens, hosts)
    app.add_middleware(guard.around)
    collector = export(watch, registry)
    app.middleware("http")(_secured)
    app.exception_handler(RequestValidationError)(_invalid)
    routes = _Routes(watch, registry, collector)

    def needs(*scopes: Scope) -> dict[str, Any]:
        return {"dependencies": [Security(guard.check, scopes=scopes)]}

    for name, secured_by, batch, reply, more, route in (
        ("predictions", needs("predict"), PredictionsIn, PredictionsOut, (409,), routes.predictions),
        ("sums", needs("predict"), SumsIn, SumsOut, (409,), routes.sums),
        ("labels", needs("label"), LabelsIn, LabelsOut, (), routes.labels),
    ):
        responses = answers(reply, 400, 401, 403, *more, 413, 415, 429, 503)
        app.post(f"/v1/{name}", **secured_by, openapi_extra=body(batch), responses=responses)(route)
    app.get(
        "/metrics",
        **needs("scrape"),
        response_class=PlainTextResponse,
        responses=not_text(400, 401, 403),
    )(routes.metrics)
    looking = needs("scrape", "admin")
    for name, told, look in (
        ("contract", ContractOut, routes.contract),
        ("shadows", ShadowsOut, routes.shadows),
    ):
        app.get(f"/v1/{name}", **looking, responses=answers(told, 401, 403, 404, 429, 503))(look)
    app.get("/v1/incidents", **looking, responses=answers(IncidentsOut, 401, 403, 429, 503))(routes.incidents)
    app.post(
        "/v1/incidents/{number}/close",
        **needs("admin"),
        openapi_extra=body(CloseIn),
        responses=answers(IncidentOut, 400, 401, 403, 404, 413, 415, 429, 503),
    )(routes.close_incident)
    app.post(
        "/v1/versions",
        **needs("admin"),
        openapi_extra=body(VersionIn),
        responses=answers(VersionOut, 400, 401, 403, 413, 415, 429, 503),
    )(routes.register_version)
    app.get("/healthz", responses={200: {"model": HealthOut}, 503: {"model": HealthOut}})(routes.healthz)
    app.get("/", **looking, include_in_schema=False)(routes.page)
    app.get("/runbooks", include_in_schema=False)(routes.runbooks)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app


class _Watched(FastAPI):
    """An app whose schema lists each scope by itself: of those that a route takes, a token needs one."""

    def openapi(self) -> dict[str, Any]:
        said = super().openapi()
        for route in (one for path in said["paths"].values() for one in path.values()):
            if "security" in route:
                every = [(name, scope) for one in route["security"] for name in one for scope in one[name]]
                route["security"] = [{name: [scope]} for name, scope in every]
        return said


def _follow(tokens: TokenFile, watch: Watch) -> None:
    """Add a followed token file to the watch's checks and failure counts."""
    before = tokens.failed

    def failed() -> None:
        before()
        watch.counts.errors["tokens"] += 1

    tokens.failed = failed
    watch.checks.add(file_check("tokens", tokens))


class _Routes:
    """Answers each route from the watch; the docstrings are those of the OpenAPI schema."""

    def __init__(
        self,
        watch: Watch,
        registry: CollectorRegistry,
        collector: WatchCollector,
    ) -> None:
        self._watch, self._registry, self._collector = watch, registry, collector
        self._bodies = Waiting(Limits.WAITING, most=Limits.LARGEST)
        self._gate = Gate(watch)
        # What counts never waits for what looks, which holds so many of the ledger's connections at most.
        self._looks = Gate(watch, at_once=4)
        self._scrapes = Gate(watch, at_once=2)
        self._ledger: tuple[float, LedgerOut | None] = (-math.inf, None)

    async def predictions(self, request: Request) -> Response:
        """Count served predictions; returns a signed receipt for each, to send back with its label.

        With an ``Idempotency-Key`` header a batch that is sent again within 30 days is counted once, and gets
        the same receipts. A key stands for one batch of one client: another batch under it is a conflict.
        """
        parse, content = parser_of(request), await read_body(request, self._bodies)
        key = request.headers.get("idempotency-key")
        once = None if key is None else key.encode()
        source = source_of(request)

        def count() -> Response:
            items = [_prediction(item) for item in parse(content)]
            receipts = self._watch.predictions(items, once=once, source=source)
            return self._counted(list(map(_answer, items, receipts)))

        batch: Batch = "predictions_without_key" if once is None else "predictions"
        try:
            return await self._gate.run(count, batch=batch)
        except ConflictError as error:
            raise HTTPException(409, str(error)) from error

    async def sums(self, request: Request) -> Response:
        """Count predictions that were signed where they were made, and added up there; once by their key."""
        key = request.headers.get("idempotency-key")
        if key is None:
            raise HTTPException(400, "sums are sent under an Idempotency-Key, so that they count once")
        content, source = await read_body(request, self._bodies), source_of(request)

        def count() -> Response:
            said = read_model(content, SumsIn)
            served = [ServedSums(**one.model_dump()) for one in said.items]
            wrong = self._watch.served(served, time=said.time, once=key.encode(), source=source)
            return self._counted([{"accepted": True} if one is None else _refused(one) for one in wrong])

        try:
            return await self._gate.run(count, batch="predictions")
        except ConflictError as error:
            raise HTTPException(409, str(error)) from error

    def _counted(self, items: list[dict[str, Any]]) -> Response:
        return JSONResponse({"items": items, "sample_rate": self._watch.sample_rate})

    async def labels(self, request: Request) -> Response:
        """Count late labels, once each; says of each whether it was accepted, and why not.

        One that replaces another, which needs the scope ``correct``, is counted in its place.
        """
        parse, content = parser_of(request), await read_body(request, self._bodies)
        source, whose, corrects = source_of(request), id_source(request), may_correct(request)

        def count() -> Response:
            items = parse(content)
            if not corrects and any(isinstance(one, dict) and one.get("replaces") for one in items):
                raise HTTPException(403, "labels that replace others need a token of scope correct")
            outcomes = self._watch.labels(items, source=source, ids_of=whose)
            accepted = sum(one.accepted for one in outcomes)
            return JSONResponse(
                {
                    "accepted": accepted,
                    "refused": len(outcomes) - accepted,
                    "items": [one.as_dict() for one in outcomes],
                }
            )

        return await self._gate.run(count, batch="labels")

    async def contract(self, model: str, version: str) -> Response:
        """The state of each clause of a version's contract; none where it has none."""
        self._check_known(model, version)
        found = await self._looks.run(lambda: self._watch.contract_states((model, version)))
        names = self._watch.models[model, version].classes.names
        clauses = [ClauseOut.of(one, names) for one in found]
        return JSONResponse(ContractOut(model=model, version=version, clauses=clauses).model_dump())

    async def shadows(self, model: str, version: str) -> Response:
        """The comparison of each shadow of a version with the served model."""
        self._check_known(model, version)
        found = await self._looks.run(lambda: self._watch.shadow_states((model, version)))
        compared = [ShadowOut.of(one) for one in found]
        return JSONResponse(ShadowsOut(model=model, version=version, shadows=compared).model_dump())

    def _check_known(self, model: str, version: str) -> None:
        if (model, version) not in self._watch.models:
            raise HTTPException(404, "no such model and version here")

    async def incidents(self) -> Response:
        """The latest drift incidents, oldest first."""
        found = await self._looks.run(self._watch.incidents)
        return JSONResponse({"items": [one.as_dict() for one in found]})

    async def close_incident(self, number: int, request: Request) -> Response:
        """Close an open incident by hand."""
        said = read_model(await read_body(request, self._bodies), CloseIn)
        work = functools.partial(
            self._watch.close_incident, number, by=_who(said.by, request), note=said.note
        )
        try:
            closed = await self._gate.run(work)
        except InputError as error:
            raise HTTPException(404, str(error)) from error
        return JSONResponse(closed.as_dict())

    async def register_version(self, request: Request) -> Response:
        """Watch another version from now on, in all programs on this ledger; held items are counted."""
        said = read_model(await read_body(request, self._bodies), VersionIn)
        facts = said.model_dump(exclude={"model", "version"}, exclude_none=True)
        work = functools.partial(self._watch.register_version, (said.model, said.version), facts)
        try:
            await self._gate.run(work)
        except InputError as error:
            raise HTTPException(400, str(error)) from error
        known = self._watch.models[said.model, said.version]
        return JSONResponse({"model": said.model, "version": said.version, "classes": known.classes.count})

    async def metrics(self, request: Request, window: str = "24h") -> Response:
        """Metrics in Prometheus exposition format, compressed where that is asked for.

        ``window``: 1h, 24h, 7d or 30d, that of the rules which read them; 24h is always there.
        """
        if window not in RULED:
            raise HTTPException(400, f"a window is one of {', '.join(RULED)}")
        self._collector.ask(window)
        text = await self._scrapes.run(functools.partial(generate_latest, self._registry))
        headers = {"Vary": "Accept-Encoding"}
        if _GZIP.search(request.headers.get("accept-encoding", "")):
            # In a thread, as megabytes take a while: a middleware would hold up the batches.
            text = await run_sync(functools.partial(gzip.compress, text, 1))
            headers["Content-Encoding"] = "gzip"
        return Response(text, headers=headers, media_type=CONTENT_TYPE_LATEST)

    async def healthz(self) -> Response:
        """Return the checks' results: 200 while batches are counted, ready or degraded; else 503, failing."""
        checks = self._watch.checks
        await run_sync(lambda: checks.run("ledger", older=Limits.LEDGER_ASKED))
        status = checks.status
        found = {name: reason or "ok" for name, reason in checks.reasons(public=True).items()}
        # One that was not there just now is not waited for again.
        ledger = await run_sync(self._told_ledger) if found["ledger"] == "ok" else None
        told = HealthOut(status=status, checks=found, ledger=ledger)
        return JSONResponse(told.model_dump(), 503 if status == "failing" else 200)

    def _told_ledger(self) -> LedgerOut | None:
        """The ledger's kind, size and lag, asked once in a while, as anybody may ask."""
        asked, known = self._ledger
        if time.monotonic() - asked < Limits.LEDGER_ASKED:
            return known
        try:
            of = self._watch.ledger.database
            known = LedgerOut(
                database=of.kind, bytes=of.size(), behind_seconds=of.lag(), durability=of.durability()
            )
        except LedgerError:
            known = None
        self._ledger = (time.monotonic(), known)
        return known

    async def page(self, model: str = "", version: str = "", segment: str = "", window: str = "") -> Response:
        """The page of a version, segment and window."""
        asked = {"model": model, "version": version, "segment": segment, "window": window}
        return HTMLResponse(await self._looks.run(lambda: render_page(self._watch, **asked)))

    async def runbooks(self) -> Response:
        """The runbooks, which are of no watch's numbers: an alert's link opens without a token."""
        return HTMLResponse(await run_sync(render_runbooks))


def _who(by: str, request: Request) -> str:
    """The person who closes an incident, as they say, and the name of their token."""
    source = source_of(request)
    return f"{by} (token {source})" if source else by


def _invalid(_: Request, error: RequestValidationError) -> Response:
    """The errors of an invalid request, without its content: that may be no JSON, nor any text."""
    told = [{key: one[key] for key in ("loc", "msg", "type")} for one in error.errors()]
    return Response(json.dumps({"detail": told}), 422, media_type="application/json")


def _prediction(item: object) -> Item:
    kind: TypeAdapter[Any] = _SIGNED if isinstance(item, dict) and "receipt" in item else _PREDICTION
    try:
        one = kind.validate_python(item)
    except ValidationError as error:
        return Refused("malformed", what_is_wrong(error))
    logits = None if one.logits is None else tuple(one.logits)
    if isinstance(one, SignedIn):
        return ServedReceipt(one.receipt, one.id, logits)
    shadow = None
    if one.shadow is not None:
        shadow = Shadow(one.shadow.predicted, one.shadow.confidence, bytes.fromhex(one.shadow.tag))
    return ServedPrediction(
        one.model,
        one.version,
        one.predicted,
        one.confidence,
        one.segment,
        one.group,
        logits,
        one.id,
        shadow,
    )


def _answer(item: Item, one: SignedReceipt | Refused) -> dict[str, Any]:
    if isinstance(one, Refused):
        return _refused(one)
    bound = {"id_bound": False} if isinstance(one, UnboundReceipt) else {}
    if isinstance(item, ServedReceipt):
        return {"accepted": True, **bound}
    return {"receipt": one, **({} if one.wanted else {"label_wanted": False}), **bound}


def _refused(one: Refused) -> dict[str, Any]:
    return {"accepted": False, "reason": one.reason, "message": str(one)}


async def _secured(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add the headers that keep browsers to what the page needs."""
    response = await proceed(request)
    response.headers.update(_SECURE)
    return response
