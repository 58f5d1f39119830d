"""The TorchServe handler that receives labels; its workers share a ledger, and one is enough.

A label is in the ledger before it is acknowledged, and the server's metrics page shows the ledger's sums as
gauges of absolute values: TorchServe adds to a counter what it is sent, and keeps a gauge as it was set. So a
worker that dies loses nothing and publishes nothing twice: the next one sets the same sums.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calib_serve.core.errors import CalibServeError, InputError, ModelError, UnknownFate
from calib_serve.core.options.base import given_fields
from calib_serve.core.options.pack import FeedbackOptions, FeedbackPack
from calib_serve.monitor import (
    BIN_WINDOWS,
    TOTALS,
    Kept,
    Row,
    Watch,
    Watched,
    detector_rows,
    read_versions,
    sum_rows,
    sums_of,
    trouble_rows,
    window_rows,
)
from calib_serve.receipts import (
    BY_NAME,
    CORRECTORS,
    KEYRING,
    LEDGER,
    MODELS,
    MOST_ITEMS,
    OTHER,
    SOURCE,
    SOURCE_HEADER,
    Outcome,
    TooManyItems,
    Version,
    batch_items,
    check_number,
    from_environment,
    is_source,
    read_document,
    read_lines,
)
from calib_serve.torchserve._channel import Emitter
from calib_serve.torchserve._observer import host_sample_log, live_keyring
from calib_serve.torchserve._replies import refusal
from calib_serve.torchserve._requests import Message, read_messages
from calib_serve.torchserve._worker import WorkerHandler, check_requests
from calib_serve.torchserve.mar_options import SECTION

log = logging.getLogger(__name__)


class CalibrationFeedback(WorkerHandler):
    """Takes ``{"receipt": ..., "label": ...}`` items, one or many a request, as JSON or as instances."""

    def initialize(self, ctx: Any) -> None:
        """Open the watch, and publish its sums."""
        self.without_envelope()
        self._names = {
            "model": str(ctx.manifest["model"]["modelName"]),
            "version": str(ctx.manifest["model"]["modelVersion"]),
        }
        section = dict((ctx.model_yaml_config or {}).get(SECTION, {}))
        listed = section.pop("models", [])
        try:  # an unknown option, such as a typo, is refused
            options = FeedbackOptions(**section)
        except (TypeError, ValueError, InputError) as error:
            raise ModelError(f"the {SECTION} section of model-config.yaml cannot be read: {error}") from error
        path = from_environment(MODELS)
        self._emitter = Emitter(interval=options.flush_seconds)
        self._source = source_reader()
        self._correctors = {*filter(None, (from_environment(CORRECTORS) or "").split(","))}
        self._watch = Watch.open(
            # A host's list comes first: it also names versions that are packed later.
            {} if path else read_models(listed),
            follow=path,
            keyring=live_keyring(_setting(KEYRING), self._emitter),
            ledger=_setting(LEDGER),
            samples=host_sample_log(),
            **given_fields(FeedbackPack, options),
        )
        self._publisher = Publisher(self._watch, self._emitter)
        self._emitter.failed("keyring", "ledger", "publish", "samples", "emit", times=0)
        self._publisher.publish()
        threading.Thread(target=self._publisher.run, name="calib-publish", daemon=True).start()
        self.started(self._flush)

    def answer(self, data: Sequence[Any], ctx: Any) -> list[str]:
        """One JSON text per request: how many labels were counted, and the outcome of each."""
        check_requests(data, ctx)
        messages = read_messages(data, ctx)
        sources = [self._source(ctx.get_all_request_header(i)) for i in range(len(messages))]
        parsed = [self._admitted(_parse(one), source) for one, source in zip(messages, sources, strict=True)]
        # One call for all requests of the batch, so that their labels share a transaction.
        together = [
            (item, source)
            for items, source in zip(parsed, sources, strict=True)
            if not isinstance(items, str)
            for item in items
        ]
        try:
            counted = self._watch.labels([item for item, _ in together], source=[who for _, who in together])
            outcomes, lost = iter(counted), None
        except (CalibServeError, OSError) as error:
            # Clients may send them again: each is counted once.
            log.error("labels could not be kept: %s", type(error).__name__)
            self._emitter.failed("ledger")
            what = "the labels could not be kept"
            if isinstance(error, UnknownFate):
                what = "it is not known whether the labels were kept"
            outcomes, lost = iter(()), f"{what}; send them again, each is counted once"
        replies = []
        for index, (message, items) in enumerate(zip(messages, parsed, strict=True)):
            ctx.set_response_content_type(index, "application/json")
            if isinstance(items, str):
                ctx.set_response_status(400, "Bad Request", index)
                reply = refusal(message, 400, items, **self._names)
            elif lost is not None:
                ctx.set_response_status(503, "Service Unavailable", index)
                reply = refusal(message, 503, lost, **self._names)
            else:
                reply = _reply(message, [next(outcomes) for _ in items])
            replies.append(json.dumps(reply))
        self._publisher.wake()
        return replies

    def _admitted(self, items: list[object] | str, source: str) -> list[object] | str:
        """The items, or why they are refused: without tokens, the host names who may correct."""
        if source in self._correctors or isinstance(items, str):
            return items
        if any(isinstance(one, Mapping) and one.get("replaces") for one in items):
            return f"labels that replace others are taken from the sources that {CORRECTORS} names"
        return items

    def _flush(self) -> None:
        if self._watch.samples is not None:
            self._watch.samples.flush()
        self._publisher.publish()


class Publisher:
    """Publishes the sums of ``watch`` to the server, once a second at most."""

    def __init__(self, watch: Watch, emitter: Emitter) -> None:
        self._watch, self._emitter = watch, emitter
        self._sent: dict[tuple[str, tuple[str, ...]], float] = {}
        self._fresh = threading.Event()
        self._fresh.set()
        self._turn = threading.Lock()
        self._windows = Kept(self._window_rows)

    def wake(self) -> None:
        """Signal new sums."""
        self._fresh.set()

    def publish(self) -> None:
        """Send the values that changed since they were sent last."""
        with self._turn:
            try:
                self._send(self._rows())
            except Exception as error:  # retried next time
                log.error("the ledger's sums could not be published: %s", type(error).__name__)
                self._emitter.failed("publish")
                self._emitter.flush()
                self._fresh.set()

    def _rows(self) -> list[Row]:
        watch, versions = self._watch, list(self._watch.models)
        published = watch.ledger.published()
        sums = sums_of(published, versions, bins=watch.ledger.bins)
        return [
            *sum_rows(sums, published, names=TOTALS[1:]),  # the classifiers' workers count predictions
            *itertools.chain.from_iterable(self._windows.of({v: sums[v] for v in versions}).values()),
            *detector_rows(watch, versions, published),
            *trouble_rows(watch),
        ]

    def _window_rows(self, version: Version) -> list[Row]:
        found = self._watch.windows(version, BIN_WINDOWS)
        waits = [
            ("calib_window_provisional", (*version, name), float(one.provisional))
            for name, one in found.items()
        ]
        return [*waits, *(("calib_window_sums", *row) for row in window_rows(self._watch, found))]

    def _send(self, rows: list[Row]) -> None:
        for name, labels, value in rows:
            before = self._sent.get((name, labels))
            if before == value:
                continue
            if BY_NAME[name].in_torchserve == "gauge":
                self._emitter.set(name, value, *labels)
            else:  # what this process counted itself
                self._emitter.add(name, value - (before or 0.0), *labels)
            self._sent[name, labels] = value
        self._emitter.flush()

    def run(self) -> None:
        """Publish for ever."""
        while True:
            # Labels turn mature while none comes in.
            self._fresh.wait(5.0)
            self._fresh.clear()
            self.publish()
            time.sleep(1.0)


def source_reader() -> Callable[[Mapping[str, Any]], str]:
    """A function from HTTP headers to the sender of labels, by the host's settings alone.

    The value of the header that ``CALIB_SERVE_SOURCE_HEADER`` names, which the proxy in front must set or
    remove; where it is missing, and without it, the name in ``CALIB_SERVE_SOURCE``, if any.
    """
    header, fixed = (from_environment(SOURCE_HEADER) or "").lower(), from_environment(SOURCE) or ""
    if fixed and not is_source(fixed):
        raise ModelError(
            f"{SOURCE} must be up to 63 letters, digits, '.', '_' and '-', not 'other', got {fixed[:80]!r}"
        )

    def source(headers: Mapping[str, Any]) -> str:
        # Of the headers alone: parameters of a form or of gRPC are the client's own.
        texts = {name.lower(): value for name, value in headers.items() if isinstance(value, str)}
        if not header or header not in texts:
            return fixed
        return texts[header] if is_source(texts[header]) else OTHER

    return source


def _parse(message: Message) -> list[object] | str:
    """The items of one request, or the reason why there are none."""
    try:
        if message.form == "v2":
            raise InputError('send labels as JSON, {"receipt": ..., "label": ...}, to /predictions')
        return parse_items(message.body["instances"] if message.form == "v1" else message.body)
    except InputError as error:
        return str(error)


def _reply(message: Message, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    each = [outcome.as_dict() for outcome in outcomes]
    if message.form == "v1":
        return {"predictions": each}
    counted = sum(outcome.accepted for outcome in outcomes)
    return {"accepted": counted, "refused": len(each) - counted, "outcomes": each}


def parse_items(body: object) -> list[object]:
    r"""Parse a JSON list, a single JSON object, ``{"items": [...]}``, or NDJSON, one item a line.

    >>> parse_items(b'{"receipt": "a", "label": 1}\n{"receipt": "b", "label": 2}')[1]["label"]
    2
    """
    if isinstance(body, str):
        body = body.encode("utf-8", "replace")
    items: object = _loads(bytes(body)) if isinstance(body, (bytes, bytearray)) else body
    if isinstance(items, Mapping):
        items = batch_items(items) if "items" in items else [items]
    if not isinstance(items, list):
        raise InputError('send {"receipt": ..., "label": ...}, a JSON list of these, or one a line')
    check_number(len(items))
    return items


def _loads(body: bytes) -> object:
    try:
        return read_document(body)
    except TooManyItems:
        raise
    except InputError:
        lines = read_lines(body)
    if len(lines) < 2:
        raise InputError(f"the body is not JSON, nor NDJSON of at most {MOST_ITEMS} lines")
    return lines


def read_models(listed: Any) -> dict[Version, Watched]:
    """Read the model versions whose labels are accepted, as the archive lists them."""
    if not listed:
        raise ModelError(f"no model is named to accept labels of; set {MODELS} or pack with --for X.mar")
    try:
        return read_versions(listed)
    except (InputError, KeyError, TypeError) as error:
        raise ModelError(f"the archive's list of models cannot be read: {error!r}") from error


def _setting(variable: str) -> str:
    if not (value := from_environment(variable)):
        raise ModelError(f"the feedback model needs {variable} in its environment")
    return value
