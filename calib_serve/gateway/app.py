"""The gateway over HTTP, as an ASGI app: calibrated models' traffic is read, all else streams through.

``open_gateway`` makes it of files and addresses: artifacts, a keyring, a watch here or elsewhere, and limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from calib_serve.artifact import Artifact
from calib_serve.core.errors import InputError
from calib_serve.core.files import read_whole
from calib_serve.core.options.base import changed, check_keywords
from calib_serve.core.options.servers import GatewayOptions
from calib_serve.gateway.answers import Question
from calib_serve.gateway.calibration import Calibration, Calibrations
from calib_serve.gateway.exporter import LabelledCounts, OneRegistry, UncalibratedReplies
from calib_serve.gateway.grpc_gateway import GrpcGateway
from calib_serve.gateway.http import (
    App,
    Headers,
    Message,
    NoAnswer,
    Receive,
    Scope,
    Send,
    answer_with,
    at_most_one,
    body_chunks,
    check_one_address,
    content_length,
    forwarded,
    target_of,
)
from calib_serve.gateway.inference import Inference, of_another_body, why_not
from calib_serve.gateway.rest import UNCALIBRATED, Route, check_reads, read_route
from calib_serve.gateway.tags import REASONS, TagReader
from calib_serve.gateway.upstream import HttpUpstream, stream_through
from calib_serve.monitor import Watch
from calib_serve.receipts import LiveKeyring, Reporter, read_token
from calib_serve.scores import Outputs, check_outputs
from calib_serve.web import (
    LOOPBACK,
    NO_CORRECTIONS,
    Full,
    Guard,
    Limits,
    TokenFile,
    Tokens,
    TooLarge,
    Waiting,
    allowed_hosts,
    create_app,
    may_correct,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import GatewayKeywords

from fastapi import HTTPException, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Part = Union[HttpUpstream, GrpcGateway]
Version = tuple[str, str]

LABELS = "/v1/labels"
PREFIX = "/calibration"
"""Below it are metrics, and the page of a watch in this process."""

_LABELS, _BELOW = LABELS.encode(), f"{PREFIX}/".encode()
_STATUS: tuple[tuple[type[Exception], int], ...] = ((Full, 429), (TooLarge, 413), (InputError, 400))


class Gateway:
    """The app in front of ``upstream``; ``own`` answers at /v1/labels and below /calibration/.

    ``parts`` are opened before the first request, in this order, and closed after the last.
    """

    def __init__(
        self,
        calibrations: Calibrations,
        upstream: HttpUpstream,
        own: App,
        *,
        guard: Guard,
        tags: TagReader,
        waiting: Waiting,
        counts: UncalibratedReplies,
        parts: tuple[Part, ...],
    ) -> None:
        self._upstream, self._own, self._waiting = upstream, own, waiting
        self._calibrations, self._tags, self._parts = calibrations, tags, (upstream, *parts)
        # Inference needs no token: on loopback it is for local programs, not for pages that a browser shows.
        self._guard = None if guard.is_open else guard
        self._counts = counts
        self._answers = any(one.words is not None for one in calibrations)
        self._unpacking = asyncio.Semaphore(4)  # bodies that are decompressed at the same time

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection, as ASGI calls it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            started = _Started(send)
            # The path that the client's proxy sent: uvicorn puts the root path before it.
            root: str = scope.get("root_path", "")
            path, raw = scope["path"].removeprefix(root), scope["raw_path"].removeprefix(root.encode())
            below = {**scope, "root_path": "", "path": path, "raw_path": raw}
            try:
                await self._serve(below, receive, started)
            except (NoAnswer, Full, TooLarge, InputError) as error:
                if not started.yes:
                    await _refuse(started, error)
                # A started answer just stops: without its end, the client sees that it is cut off.

    async def _live(self, receive: Receive, send: Send) -> None:
        async with contextlib.AsyncExitStack() as opened:
            await receive()
            try:
                for part in self._parts:
                    opened.push_async_callback(part.close)
                    await part.open()
            except Exception as error:  # reported by whoever serves this app
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = scope["headers"]
        # Two framings are how requests are smuggled past a proxy.
        if at_most_one(headers, b"transfer-encoding") and at_most_one(headers, b"content-length"):
            raise InputError("a request has either a length or chunks")
        if self._guard is not None and (wrong := self._guard.refusal(scope)):
            raise NoAnswer(*wrong)
        method, path = scope["method"], scope["raw_path"]
        route = read_route(method, path)
        check_one_address(headers, route.model)
        if path == _LABELS or path.startswith(_BELOW):
            await self._own(scope, receive, send)
        # Outside the bound of requests: a busy gateway must still answer its health checks.
        elif route.kind == "health":
            await stream_through(self._upstream, scope, receive, send)
        else:
            with self._waiting.one():
                output = self._calibrations.output_of(route.model)
                check_reads(route, method, calibrated=output is not None, answers=self._answers)
                if route.kind == "completion":
                    await self._complete(scope, receive, send)
                elif output is not None and route.kind == "infer":
                    await self._infer(route, output, scope, receive, send)
                else:
                    await stream_through(self._upstream, scope, receive, send)

    async def _infer(self, route: Route, output: str, scope: Scope, receive: Receive, send: Send) -> None:
        tag, headers = self._tags.read(scope["headers"], route.model)
        inference = Inference(self._calibrations, self._counts, route, output, tag, self._waiting.most)
        with self._waiting.body() as body:
            async for chunk in body_chunks(receive):
                body.add(chunk)
            raw = body.whole()
            sent, headers = await self._off_the_loop(inference.ask, raw, headers)
            if sent is not raw:
                body.hold(len(sent))
            async with self._upstream.request("POST", target_of(scope), headers, sent, whole=True) as answer:
                content = await answer.read()
        given = forwarded(answer.raw_headers, b"date")
        if answer.status == 200:
            content, given = await self._off_the_loop(inference.reply, content, given)
        await answer_with(send, answer.status, given, content)

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a completion: read where its model's answers are calibrated, else passed unchanged."""
        with self._waiting.body() as body:
            async for chunk in body_chunks(receive):
                body.add(chunk)
            held, headers = body.whole(), scope["headers"]
            read = functools.partial(Question.read, path=scope["path"], most=self._waiting.most)
            question = await self._off_the_loop(read, held, headers)
            calibration = self._calibrations.find(question.model, "")
            words = None if calibration is None else calibration.words
            if calibration is None or words is None:
                if self._calibrations.output_of(question.model) is not None:
                    raise NoAnswer(501, f"{question.model} is calibrated, and not by this address")
                await stream_through(self._upstream, scope, _again(held, receive), send)
                return
            if why := question.refusal(words):
                self._counts.passed(calibration.model, calibration.version)
                told = _telling(send, (UNCALIBRATED.encode(), why.encode()))
                await stream_through(self._upstream, scope, _again(held, receive), told)
                return
            about, headers = self._tags.read(headers, question.model)
            sent = question.sent(words)
            body.hold(len(sent))
            kept = forwarded(headers, b"host", b"content-length", b"content-encoding", b"accept-encoding")
            async with self._upstream.request(
                "POST", target_of(scope), [*kept, content_length(sent)], sent, whole=True
            ) as answer:
                content = await answer.read()
        given = forwarded(answer.raw_headers, b"date", b"content-length")
        if answer.status == 200:
            answered = functools.partial(question.answered, words=words, calibration=calibration, about=about)
            try:
                content, more = await self._off_the_loop(answered, content, given)
                given = [*of_another_body(given), *more]
            except Exception as error:  # fails open, and is counted
                self._counts.passed(calibration.model, calibration.version)
                why = why_not(error, calibration.model, calibration.version)
                given.append((UNCALIBRATED.encode(), why.encode()))
        await answer_with(send, answer.status, [*given, content_length(content)], content)

    async def _off_the_loop(self, work: Callable[..., Any], body: bytes, headers: Headers) -> Any:
        """Do small work at once, and large work in a thread, so that others need not wait for it.

        What comes compressed is large whatever its bytes are: sixty kilobytes may hold sixty megabytes.
        """
        if any(name.lower() == b"content-encoding" for name, _ in headers):
            async with self._unpacking:
                return await asyncio.to_thread(work, body, headers)
        return work(body, headers) if len(body) < 1 << 16 else await asyncio.to_thread(work, body, headers)


def _again(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives a body that was read, and then what comes after it."""
    held: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def given() -> Message:
        return held.pop() if held else await receive()

    return given


def _telling(send: Send, header: tuple[bytes, bytes]) -> Send:
    """A ``send`` that adds a header to the answer."""

    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], header]}
        await send(message)

    return adding


class _Started:
    """A ``send`` that knows whether anything was sent."""

    def __init__(self, send: Send) -> None:
        self._send, self.yes = send, False

    async def __call__(self, message: Message) -> None:
        self.yes = True
        await self._send(message)


async def _refuse(send: Send, error: Exception) -> None:
    """Send an error in the protocol's form; only NoAnswer is the server's fault."""
    known = (status for kind, status in _STATUS if isinstance(error, kind))
    status = error.status if isinstance(error, NoAnswer) else next(known)
    known_more: dict[int, Headers] = {429: [(b"retry-after", b"1")], 405: [(b"allow", b"POST")]}
    more = known_more.get(status, [])
    if status in (400, 413):  # nothing after it on this connection is believed
        more = [(b"connection", b"close")]
    body = json.dumps({"error": str(error)}).encode()
    kind = (b"content-type", b"application/json")
    await answer_with(send, status, [*more, kind, content_length(body)], body)


def _of_watch_inside(app: App) -> App:
    """Answer by the app of a watch in this process: labels, metrics, the page, incidents."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        below = scope["path"] != LABELS
        await app({**scope, "root_path": PREFIX} if below else scope, receive, send)

    return answer


def of_watch_elsewhere(watch: HttpUpstream, registry: CollectorRegistry, guard: Guard) -> App:
    """Hand labels on to a watch at another address, with the client's token; metrics are the gateway's.

    Both need what ``guard`` asks for: the watch itself may be open to this host alone.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        labels = scope["path"] == LABELS
        try:
            request = Request(scope)
            await guard.needs(request, "label" if labels else "scrape")
        except HTTPException as error:
            found: Response = JSONResponse({"detail": error.detail}, error.status_code, error.headers)
        else:
            if labels:
                query = b"" if may_correct(request) else NO_CORRECTIONS.encode()
                await stream_through(watch, {**scope, "query_string": query}, receive, send)
                return
            if (scope["method"], scope["path"]) == ("GET", f"{PREFIX}/metrics"):
                found = Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
            else:
                found = JSONResponse({"detail": "Not Found"}, 404)
        await found(scope, receive, send)

    return guard.around(answer)


def by_model(texts: Sequence[str], option: str, models: Sequence[str]) -> dict[str, str]:
    """Read VALUE, for every model, and MODEL=VALUE of an option; InputError for another model, or one twice.

    >>> by_model(["logits", "digits=scores"], "--output", ["digits", "letters"])
    {'digits': 'scores', 'letters': 'logits'}
    """
    found: dict[str, str] = {}
    for text in texts:
        model, _, value = text.rpartition("=")
        if not value or model in found:
            raise InputError(f"{option} is VALUE or MODEL=VALUE, once each; got {text!r}")
        if model and model not in models:
            raise InputError(f"{option} names {model!r}, which is none of the models given")
        found[model] = value
    every = {} if "" not in found else dict.fromkeys(models, found.pop(""))
    return {**every, **found}


@contextlib.contextmanager
def open_gateway(
    models: Mapping[Version, Artifact | str | Path | int],
    options: GatewayOptions | None = None,
    *,
    tokens: Tokens = (),
    hosts: Sequence[str] = (),
    **keywords: Unpack[GatewayKeywords],
) -> Iterator[Gateway]:
    """Open the ASGI app before the server ``upstream``; inside the context it may be served.

    The app of a watch in this process is then the gateway's as well, for whoever has one of the tokens.

    Args:
        models: By (model, version), an artifact, its folder, or the number of classes of a model whose output
            is calibrated already.
        options: A ``GatewayOptions``; keywords replace its fields.
        tokens: Who may use it, as in ``create_app``.
        hosts: The names it answers to, as in ``create_app``.
        **keywords: Fields of ``GatewayOptions``, of which ``upstream`` and ``output`` are needed:
            ``allowed_hosts``, ``grpc_port``, ``grpc_upstream``, ``host``, ``keyring``, ``label_budget``,
            ``ledger``, ``log_format``, ``max_megabytes``, ``port``, ``scores``, ``shadow``, ``timeout``,
            ``tls_cert``, ``tls_key``, ``token_file``, ``trust_headers``, ``watch``, ``watch_token_file``.

    Raises:
        InputError: For models and options that do not fit together.
    """
    check_keywords(keywords, [field.name for field in fields(GatewayOptions)], open_gateway)
    options = GatewayOptions(**dict[str, Any](keywords)) if options is None else changed(options, keywords)
    names = [model for model, _ in models]
    output, scores = by_model(options.output, "--output", names), by_model(options.scores, "--scores", names)
    shadow = by_model(options.shadow, "--shadow", names)
    tokens, hosts = _door(options, tokens, hosts)
    grpc_tls = None if options.grpc_port is None else _pair(options.tls_cert, options.tls_key)
    token = read_token(options.watch_token_file) if options.watch_token_file else ""
    ring = options.keyring
    if isinstance(ring, (str, Path)):
        ring = LiveKeyring(ring)
    registry, counts = OneRegistry(), UncalibratedReplies(models, most=Limits.VERSIONS)
    waiting = Waiting(Limits.GATEWAY_WAITING, most=int(options.max_megabytes * 2**20))
    reach = functools.partial(HttpUpstream, timeout=options.timeout, connections=Limits.GATEWAY_WAITING)
    server = reach(options.upstream)
    parts: list[Part] = []
    with contextlib.ExitStack() as opened:
        watch = options.watch
        if options.ledger is not None:
            watch = opened.enter_context(
                Watch.open(models, keyring=ring, ledger=options.ledger, label_budget=options.label_budget)
            )
        found, reporters = [], list[Reporter]()
        opened.callback(Reporter.close_all, reporters)
        for (model, version), of in models.items():
            what = of if isinstance(of, (Artifact, int)) else Artifact.load(of)
            name, kind = output.get(model), _kind(what, scores.get(model), model)
            if name is None:
                raise InputError(f"say with --output which output of {model} holds its scores")
            beside = None if (folder := shadow.get(model)) is None else Artifact.load(folder)
            if beside is not None:
                beside.check_takes(kind, f"the scores of {model}, in whose shadow it runs")
            reporter = Reporter(
                what,
                model=model,
                version=version,
                keyring=ring,
                watch=watch,
                token=token,
                registry=registry,
                # A watch of this process holds the budget, and updates it with the ledger's counts.
                policy=None if isinstance(watch, Watch) else options.label_budget or None,
                shadow=beside,
            )
            reporters.append(reporter)
            found.append(Calibration(model, version, what, output=name, kind=kind, reports=reporter))
        calibrations, guard = Calibrations(found), Guard(tokens, hosts)
        dropped = LabelledCounts("calib_tags_dropped_total", product({model for model, _ in models}, REASONS))
        tags = TagReader(guard, dropped, all_trusted=options.trust_headers)
        registry.register(counts)
        registry.register(dropped)
        if isinstance(watch, Watch):
            app = create_app(watch, tokens=tokens, hosts=hosts, registry=registry)
            own = _of_watch_inside(app)
        else:
            elsewhere = reach(watch, folder=True)
            own = of_watch_elsewhere(elsewhere, registry, guard)
            parts.append(elsewhere)
        if options.grpc_upstream is not None:
            host = f"[{options.host}]" if ":" in options.host else options.host
            parts.append(
                GrpcGateway(
                    calibrations,
                    upstream=options.grpc_upstream,
                    listen=f"{host}:{options.grpc_port}",
                    tls=grpc_tls,
                    tags=tags,
                    waiting=waiting,
                    counts=counts,
                    timeout=options.timeout,
                )
            )
        yield Gateway(
            calibrations,
            server,
            own,
            guard=guard,
            tags=tags,
            waiting=waiting,
            counts=counts,
            parts=tuple(parts),
        )


def _door(options: GatewayOptions, tokens: Tokens, hosts: Sequence[str]) -> tuple[Tokens, Sequence[str]]:
    """The tokens and host names as given, else as options name them."""
    if options.token_file is not None and not tokens:
        tokens = TokenFile(options.token_file)
    return tokens, hosts or allowed_hosts(LOOPBACK[0], guarded=False, named=options.allowed_hosts)


def _pair(cert: Path | None, key: Path | None) -> tuple[bytes, bytes] | None:
    """Read certificate and key; InputError where one cannot be read."""
    if cert is None or key is None:
        return None
    try:
        return read_whole(Path(cert)), read_whole(Path(key))
    except OSError as error:
        raise InputError(f"cannot read the certificate and its key: {error}") from error


def _kind(what: Artifact | int, told: str | None, model: str) -> Outputs:
    """The kind of the scores; InputError where it is not given: a wrong kind would look right."""
    check_outputs(told)
    known = what.model.outputs if isinstance(what, Artifact) else None
    if told is None and known is None:
        raise InputError(f"say with --scores what the output of {model} holds, such as logits")
    kind: Outputs = told or known  # type: ignore[assignment]  # checked above
    return kind
