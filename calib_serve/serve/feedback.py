"""The TorchServe handler that receives labels. Run it with exactly one worker.

The ledger is authoritative: a label and the sums are on disk before the label is acknowledged. The server's
counters get the ledger's unpublished sums, so a killed worker loses nothing: the next one publishes the rest.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calib_serve.artifact import Contract
from calib_serve.errors import REASONS, CalibServeError, InputError, LedgerError, ModelError, UnknownFate
from calib_serve.files import FollowedFile
from calib_serve.fuse.mar_options import (
    ALLOW_VOLATILE,
    KEYRING,
    LABEL_JOURNAL,
    LEDGER,
    MODELS,
    SECTION,
    SOURCE,
    SOURCE_HEADER,
    WRITER,
    from_environment,
)
from calib_serve.receipts import DAY, Label
from calib_serve.serve.emit import Emitter
from calib_serve.serve.envelope import check_requests, take_place
from calib_serve.serve.lifecycle import end_cleanly
from calib_serve.serve.observer import FEEDBACK, host_sample_log, live_keyring
from calib_serve.serve.protocols import Message, as_text, end_stream, read_messages, read_tensors
from calib_serve.serve.publish import Publisher, consumer_name
from calib_serve.serve.replies import numbers, refusal, texts, v2_reply
from calib_serve.watch.checks import Checks
from calib_serve.watch.contracts import ContractFollower
from calib_serve.watch.drift import Detector
from calib_serve.watch.feed import DriftFeed
from calib_serve.watch.host_checks import counting_checks, drift_check, file_check, samples_check
from calib_serve.watch.intake import Classes, Intake, Outcome
from calib_serve.watch.items import MOST_ITEMS, TooManyItems, check_number, read_document, read_lines
from calib_serve.watch.journal import LabelJournal
from calib_serve.watch.ledger import Ledger, Version, WriterLease, open_ledger
from calib_serve.watch.maturity import AUTO, parse_maturity
from calib_serve.watch.samples import SampleLog
from calib_serve.watch.shadow import ShadowFollower
from calib_serve.watch.slices import OTHER, Slices
from calib_serve.watch.sources import is_source

__all__ = ["CalibrationFeedback", "parse_items"]

log = logging.getLogger(__name__)

BINS = 15


class CalibrationFeedback:
    """Takes ``{"receipt": ..., "label": ...}`` items, one or many a request, in every protocol."""

    def initialize(self, ctx: Any) -> None:
        """Open keyring and ledger, and publish what an earlier worker had counted but not published."""
        take_place(ctx, self.handle)
        self._names = {
            "model": str(ctx.manifest["model"]["modelName"]),
            "version": str(ctx.manifest["model"]["modelVersion"]),
        }
        config = (ctx.model_yaml_config or {}).get(SECTION, {})
        path = from_environment(MODELS)
        self._listed = None if path is None else FollowedFile(path, lambda _: read_models(config))
        self._known = read_models(config) if self._listed is None else self._listed.current()
        detector = read_detector(config)
        self._ledger = _open_ledger(config, retention=float(config.get("ttl_days", 30)) * DAY)
        self._emitter = Emitter(interval=float(config.get("flush_seconds", 1.0)))
        self._keyring = live_keyring(_setting(config, "keyring", KEYRING), self._emitter)
        self._intake = Intake(
            self._keyring,
            self._ledger,
            models=self._known.classes,
            ttl=float(config.get("ttl_days", 30)) * DAY,
            on_counted=self._keep,
            slices=self._known.slices(),
            journal=_journal(self._ledger),
        )
        self._source = read_source()
        self._contracts = ContractFollower(self._ledger, self._known.contracts)
        self._feed = DriftFeed(
            self._ledger,
            detector=detector,
            maturity=parse_maturity(str(config.get("maturity", AUTO))),
            followers=[self._contracts, ShadowFollower(self._ledger)],
        )
        self._samples = host_sample_log()
        # The workers of a server publish between them, by marks: they hold one name together.
        lease = WriterLease(self._ledger, name=self._ledger.writer, shared=consumer_name(_writer()))
        self._publisher = Publisher(self._ledger, self._emitter, name=_writer(), feed=self._feed, lease=lease)
        self._checks = self._made_checks(config)
        self._start_counters(self._known.classes)
        self._worker = str(os.getpid())
        self._before_answer = end_cleanly(self._flush)

    def handle(self, data: Sequence[dict[str, Any]], ctx: Any) -> list[str]:
        """One JSON text per request: how many labels were counted, and the outcome of each."""
        check_requests(data, ctx)
        messages = read_messages(data, ctx)
        parsed = [_parse(message) for message in messages]
        sources = [self._source(ctx.get_all_request_header(i)) for i in range(len(messages))]
        together = [
            (item, source)
            for items, source in zip(parsed, sources, strict=True)
            if not isinstance(items, str)
            for item in items
        ]
        try:
            self._look_for_models()
            self._may_acknowledge()
            told = self._intake.take([item for item, _ in together], source=[who for _, who in together])
            outcomes = iter(told)
            lost = None
        except (CalibServeError, OSError) as error:
            # Clients may send them again: each is counted once.
            log.error("labels could not be kept: %s", type(error).__name__)
            self._emitter.failed("ledger")
            unknown = isinstance(error, UnknownFate)
            what = (
                "it is not known whether the labels were kept" if unknown else "the labels could not be kept"
            )
            outcomes, lost = iter(()), f"{what}; send them again, each is counted once"
        replies = []
        for index, (message, items) in enumerate(zip(messages, parsed, strict=True)):
            ctx.set_response_header(index, "x-calib-worker", self._worker)
            ctx.set_response_content_type(index, "application/json")
            end_stream(ctx, index)
            if isinstance(items, str):
                reply = self._refused(400, "Bad Request", items, message, ctx=ctx, index=index)
            elif lost is not None:
                reply = self._refused(503, "Service Unavailable", lost, message, ctx=ctx, index=index)
            else:
                reply = self._reply(message, [next(outcomes) for _ in items])
            replies.append(json.dumps(reply))
        self._publisher.wake()
        self._before_answer()
        return replies

    def _look_for_models(self) -> None:
        """Know the versions that the host's list names by now: one may be promoted while this worker runs."""
        found = self._known if self._listed is None else self._listed.changed()
        if found is self._known:
            return
        for model, version in found.classes.keys() - self._known.classes.keys():
            self._emitter.create(FEEDBACK, model=model, version=version, bins=BINS)
        self._known, self._contracts.contracts = found, dict(found.contracts)
        self._intake.know(found.classes, found.slices())

    def _made_checks(self, config: Mapping[str, Any]) -> Checks:
        """Checks that were made once: LedgerError where labels may not be acknowledged."""
        checks = Checks(
            *counting_checks(
                self._ledger,
                self._intake,
                program="torchserve",
                ttl=float(config.get("ttl_days", 30)) * DAY,
                volatile=from_environment(ALLOW_VOLATILE) is not None,
            ),
            drift_check(self._feed),
            file_check("keyring", self._keyring),
            *([file_check("models", self._listed)] if self._listed else []),
            *([samples_check(self._samples)] if self._samples else []),
        )
        checks.run()
        checks.told(self._tell)
        return checks

    def _tell(self, checks: Checks) -> None:
        for name, reason in checks.reasons().items():
            self._emitter.set("calib_check_ok", float(reason is None), name)
        self._publisher.wake()

    def _may_acknowledge(self) -> None:
        if (reason := self._checks.refused) is not None:
            raise LedgerError(reason)

    def _refused(
        self, status: int, phrase: str, reason: str, message: Message, *, ctx: Any, index: int
    ) -> dict[str, Any]:
        ctx.set_response_status(status, phrase, index)
        return refusal(message, status, reason, **self._names)

    def _reply(self, message: Message, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        refused = Counter(outcome.reason for outcome in outcomes if outcome.reason)
        for reason, count in refused.items():
            self._emitter.add("calib_feedback_refused_total", count, reason)
        told = [outcome.as_dict() for outcome in outcomes]
        if message.form == "v1":
            return {"predictions": told}
        if message.form == "v2":
            columns = [
                numbers("accepted", "BOOL", [outcome.accepted for outcome in outcomes]),
                texts("reason", [outcome.reason or "" for outcome in outcomes]),
            ]
            return v2_reply(message, columns, **self._names)
        counted = sum(outcome.accepted for outcome in outcomes)
        return {"accepted": counted, "refused": len(told) - counted, "outcomes": told}

    def _keep(self, labels: Sequence[Label]) -> None:
        self._sample(lambda samples: samples.labelled(labels))

    def _flush(self) -> None:
        self._sample(lambda samples: samples.flush())
        self._publisher.publish()

    def _sample(self, act: Callable[[SampleLog], None]) -> None:
        try:
            if self._samples:
                act(self._samples)
        except Exception as error:  # counted labels do not depend on their sample
            log.error("labels could not be sampled: %s", type(error).__name__)
            self._emitter.failed("samples")

    def _start_counters(self, models: Mapping[Version, Classes]) -> None:
        for model, version in models:
            self._emitter.create(FEEDBACK, model=model, version=version, bins=BINS)
        for reason in REASONS:
            self._emitter.add("calib_feedback_refused_total", 0, reason)
        stages = ("keyring", "ledger", "publish", "samples", "emit", "lease", "rollback")
        self._emitter.failed(*stages, times=0)
        self._may_acknowledge()
        self._tell(self._checks)
        self._emitter.flush()
        self._publisher.start()
        self._checks.start()


def read_source() -> Callable[[Mapping[str, Any]], str]:
    """Who sent a request's labels, of its HTTP headers: by the host's settings, not by what a client says.

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


def _journal(ledger: Ledger) -> LabelJournal | None:
    folder = from_environment(LABEL_JOURNAL)
    return LabelJournal(folder, ledger) if folder else None


def _parse(message: Message) -> list[object] | str:
    """The items of one request, or why there are none."""
    try:
        if message.form == "v2":
            return parse_items(_of_tensors(message))
        return parse_items(message.body["instances"] if message.form == "v1" else message.body)
    except InputError as error:
        return str(error)


def _of_tensors(message: Message) -> list[object]:
    """Items of the input tensors ``receipt``, ``label``, maybe ``by`` and ``segment``: one value an item."""
    columns: dict[str, list[Any]] = {}
    for name, tensor in read_tensors(message).items():
        values = tensor.values if isinstance(tensor.values, list) else tensor.values.ravel().tolist()
        columns[name] = [_unquoted(as_text(v)) if isinstance(v, (str, bytes)) else v for v in values]
    if not {"receipt", "label"} <= columns.keys() <= {"receipt", "label", "by", "segment"}:
        raise InputError("send the input tensors receipt and label, one value each for every prediction")
    if len({len(values) for values in columns.values()}) != 1:
        raise InputError("the input tensors receipt and label must be of one length")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _unquoted(text: str) -> str:
    """Without the quotes that TorchServe puts around the texts of a gRPC reply."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        with contextlib.suppress(ValueError):
            return str(json.loads(text))
    return text


def parse_items(body: object) -> list[object]:
    r"""Items of a JSON list, a single JSON object, ``{"items": [...]}``, or NDJSON, one per line.

    >>> parse_items(b'{"receipt": "a", "label": 1}\n{"receipt": "b", "label": 2}')[1]["label"]
    2
    """
    if isinstance(body, str):
        body = body.encode("utf-8", "replace")
    items: object = _loads(bytes(body)) if isinstance(body, (bytes, bytearray)) else body
    if isinstance(items, Mapping):
        items = items.get("items", [items])
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


class Listed(NamedTuple):
    """The model versions whose labels are accepted, and the contracts of those that have one."""

    classes: Mapping[Version, Classes]
    contracts: Mapping[Version, Contract]

    def slices(self) -> Slices:
        """What their labels count in."""
        return Slices({v: one.count for v, one in self.classes.items()}, contracts=self.contracts)


def read_models(config: Mapping[str, Any]) -> Listed:
    """The model versions whose labels are accepted: from the host's list, else from the archive."""
    path = from_environment(MODELS)
    try:
        listed = json.loads(Path(path).read_text("utf-8")) if path else config.get("models", [])
        models = {
            (str(m["name"]), str(m["version"])): (Classes.of_labels if m.get("multilabel") else Classes)(
                int(m["classes"]), tuple(map(str, m.get("class_names", ())))
            )
            for m in listed
        }
        contracts = {
            (str(m["name"]), str(m["version"])): Contract.of(m["contract"]) for m in listed if "contract" in m
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ModelError(
            f"the list of models whose labels are accepted cannot be read: {error!r}; "
            f"{path or 'the archive'} should hold name, version and classes of each"
        ) from error
    if not models:
        raise ModelError(f"no model is named to accept labels of; set {MODELS} or pack with --for X.mar")
    return Listed(models, contracts)


def _setting(config: Mapping[str, Any], key: str, variable: str) -> str:
    value = from_environment(variable) or config.get(key)
    if not value:
        raise ModelError(f"the feedback model needs a {key}; set {variable}")
    return str(value)


def _writer() -> str:
    return from_environment(WRITER) or socket.gethostname()


def read_detector(config: Mapping[str, Any]) -> Callable[[], Detector]:
    """Makes the detector that the archive's options say, which are validated here."""
    given: dict[str, Any] = {
        name: kind(config[name])
        for name, kind in (("arl", float), ("tolerance", float), ("block", int))
        if name in config
    }
    detector = functools.partial(Detector, bins=BINS, **given)
    detector()
    return detector


def _open_ledger(config: Mapping[str, Any], *, retention: float) -> Ledger:
    where = _setting(config, "ledger", LEDGER)
    # Servers that share a ledger publish separately; a file belongs to one server.
    return open_ledger(where, bins=BINS, writer=_writer() if "://" in where else "", retention=retention)
