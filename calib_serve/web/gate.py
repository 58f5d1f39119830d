"""The gate before the ledger: bounded request bodies, and a bounded number of requests at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from anyio import CapacityLimiter, fail_after
from anyio.to_thread import run_sync
from fastapi import HTTPException, Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from calib_serve.core.errors import InputError, KeyringError, LedgerError, UnknownFate
from calib_serve.monitor import Watch
from calib_serve.receipts import TooManyItems, batch_items, check_number, read_document, read_lines
from calib_serve.web.bodies import Full, TooLarge, Waiting
from calib_serve.web.exporter import Batch
from calib_serve.web.guard import NDJSON, media_type
from calib_serve.web.limits import Limits

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_NOT_COUNTED = "the ledger cannot keep the batch; nothing was counted, send it again"
_UNKNOWN: dict[Batch, str] = {
    "labels": "the ledger did not answer in time: it is not known whether the labels were counted; send them "
    "again, each is counted once",
    "predictions": "the ledger did not answer in time: it is not known whether the batch was counted; send "
    "it again with the same Idempotency-Key: it is counted once",
    "predictions_without_key": "the ledger did not answer in time: it is not known whether the batch was "
    "counted, and it had no Idempotency-Key: if it was, sending it again counts it twice. Send every batch "
    "with an Idempotency-Key",
}

NOT_READ = "the ledger cannot be used; ask again"
"""What whoever only reads is told."""

Model = TypeVar("Model", bound=BaseModel)


class Gate:
    """At most ``Limits.WAITING`` requests of ``watch`` at work or in line; ``at_once`` are at work.

    By default they are parsed and counted one by one: a file of SQLite has one writer.
    """

    def __init__(self, watch: Watch, *, at_once: int = 1) -> None:
        self._counts, self._waiting, self._at_once = watch.counts, Waiting(Limits.WAITING), at_once
        self._limiter: CapacityLimiter | None = None

    async def run(self, work: Callable[[], Result], *, batch: Batch | None = None) -> Result:
        """Run ``work`` in a thread and return its result; 429 when full, 503 when the ledger cannot be used.

        ``batch``: what it counts, if anything.
        """
        # Made here, as it belongs to the event loop that runs.
        self._limiter = self._limiter or CapacityLimiter(self._at_once)
        try:
            with self._waiting.one(), fail_after(Limits.IN_LINE):  # the wait in line: what is at work ends
                return await run_sync(work, limiter=self._limiter)
        except Full as error:
            raise HTTPException(429, str(error), {"Retry-After": "1"}) from error
        except TimeoutError as error:
            if batch is not None:
                self._counts.errors["ledger"] += 1
            told = _NOT_COUNTED if batch else NOT_READ
            raise HTTPException(503, told, {"Retry-After": "5"}) from error
        except LedgerError as error:
            self._counts.errors["ledger"] += 1
            unknown = batch is not None and isinstance(error, UnknownFate)
            if batch is not None and unknown:
                self._counts.unknown[batch] += 1
            log.error("%s: %s", batch or "a request", error)
            told = _NOT_COUNTED if batch else NOT_READ
            raise HTTPException(
                503, _UNKNOWN[batch] if batch and unknown else told, {"Retry-After": "5"}
            ) from error
        except KeyringError as error:
            self._counts.errors["keyring"] += 1
            log.error("a batch was not signed or verified: %s", error)
            raise HTTPException(
                503,
                "receipts cannot be signed or verified; labels may be sent again, each is counted once",
                {"Retry-After": "5"},
            ) from error


async def read_body(request: Request, waiting: Waiting) -> bytes:
    """Read a body; HTTP 400, 413, 415 or 429, by its headers before it is read where they tell."""
    try:
        _check_headers(request, waiting)
        with waiting.body() as body:
            async for chunk in request.stream():
                body.add(chunk)
            return body.whole()
    except TooLarge as error:
        raise HTTPException(413, str(error)) from error
    except Full as error:
        raise HTTPException(429, str(error), {"Retry-After": "1"}) from error
    except ClientDisconnect as error:  # nobody reads the answer, and no traceback floods the log
        raise HTTPException(400, "the body was cut off, or came too slowly") from error


def parser_of(request: Request) -> Callable[[bytes], list[Any]]:
    """The parser of a body: of a JSON ``{"items": [...]}`` or list, or of NDJSON.

    The function takes as long as the body is large, so it belongs in a thread; it raises HTTP 400 and 413.
    """
    parse = read_lines if media_type(request) == NDJSON else _items_of_document

    def items(content: bytes) -> list[Any]:
        try:
            return parse(content)
        except InputError as error:
            raise HTTPException(413 if isinstance(error, TooManyItems) else 400, str(error)) from error

    return items


def read_model(content: bytes, model: type[Model]) -> Model:
    """Read ``content`` as ``model``; HTTP 400."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise HTTPException(400, what_is_wrong(error)) from error


def what_is_wrong(error: ValidationError) -> str:
    """The first validation error, and its place, without the content."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"


def _check_headers(request: Request, waiting: Waiting) -> None:
    """Raise TooLarge, or HTTP 415, for a body that will not be read."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise HTTPException(415, f"send the body as it is, without Content-Encoding: {encoding[:40]}")
    length = request.headers.get("content-length", "")
    if length.isdecimal():
        waiting.check_size(int(length[:20]))


def _items_of_document(body: bytes) -> list[Any]:
    content = read_document(body)
    items = batch_items(content) if isinstance(content, dict) else content
    if not isinstance(items, list):
        raise InputError('send {"items": [...]} or a list')
    check_number(len(items))
    return items
