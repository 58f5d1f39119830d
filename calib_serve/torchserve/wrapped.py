"""A foreign handler with a calibration at its seam, the place where its class scores pass.

Its preprocess, postprocess and reply format do not change: what passes the seam is calibrated in the same
form. Receipts travel in the response header ``x-calib-receipt``, or in the body where the request or the
archive asks for it. A reply that does not show the row of its receipt goes out without one, and is counted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from calib_serve.core.errors import ModelError
from calib_serve.scores import Form
from calib_serve.torchserve._bound import Bond, Passing, Rows
from calib_serve.torchserve._handler import CalibratedHandler
from calib_serve.torchserve._model import check_file
from calib_serve.torchserve._predictions import INVALID, AnyPrediction, Failure, LabelsPrediction
from calib_serve.torchserve._replies import ASKING, MOST_IN_HEADER, columns, in_body, in_headers, in_protocol
from calib_serve.torchserve._requests import Message, read_messages, tag_of
from calib_serve.torchserve.declared import DECLARED, calibrate_with
from calib_serve.torchserve.mar_options import SHOWN, TRIAL
from calib_serve.torchserve.seam._handler import INFERENCE, load_handler, put_around
from calib_serve.torchserve.seam._host import ask
from calib_serve.torchserve.seam._requests import Request
from calib_serve.torchserve.shown import Readings

log = logging.getLogger(__name__)

_UNKNOWN: tuple[Rows, str] = ((), "rows")


class CalibratedWrapper(CalibratedHandler):
    """Replaces the handler ``options.wraps`` of the archive."""

    def load(self, folder: Path, ctx: Any) -> None:
        """Make the wrapped handler load its model, and check that it reaches the calibration at its seam."""
        self.envelope()  # it stays, and we are around it: its replies take receipts, too
        self._columns = columns(self.options, self.artifact)
        if self.options.model:
            check_file(folder / self.options.model, self.options.sha256)
        self._passing = Passing(
            self.calibrated,
            classes=self.artifact.classes,
            form=Form.parse(self.options.output),
            outputs=self.options.outputs,
            order=self._micro_batch,
        )
        shown = folder / SHOWN  # packed without a trial, an archive has none
        self._bond = Bond(
            Readings.from_dict(json.loads(shown.read_text("utf-8"))) if shown.is_file() else Readings()
        )
        at_inference = self._passing if self.options.seam == INFERENCE else None
        self._inner = load_handler(self.options.wraps or "", inference=at_inference)
        self._inner.initialize(ctx)
        if self.options.seam == DECLARED:
            calibrate_with(self._passing.declared)
        else:
            put_around(self._inner, self.options.seam, self._passing)
        self._check(folder, ctx)

    def inner(self, data: Sequence[Any], ctx: Any) -> Any:
        """The wrapped handler's own reply."""
        self._asked, self._replies = len(data), None
        self._replies = self._inner.handle(data, ctx)
        return self._replies

    def answer(self, data: Sequence[Any], ctx: Any) -> Any:
        """The wrapped handler's reply, behind its envelope if the server has one."""
        messages = self._messages(data, ctx)
        # The calibration fails open from here on: a reply without a receipt is better than none.
        self._passing.begin()
        rows = [_without_ours(row) for row in data]
        if self._envelope is None:
            replies = self.inner(rows, ctx)
        else:
            replies = type(self._envelope).handle(self._envelope, rows, ctx)
        try:
            return self._with_receipts(replies, ctx, messages) if self._is_calibrated(messages) else replies
        except Exception as error:  # fails open
            self._observer.broken("receipt", error, times=len(data))
            return replies

    def _messages(self, data: Sequence[dict[str, Any]], ctx: Any) -> list[Message]:
        try:
            return read_messages(data, ctx)
        except Exception as error:  # fails open
            self._observer.broken("record", error)
            return [Message("plain", None, {})] * len(ctx.request_processor)

    def _is_calibrated(self, messages: Sequence[Message]) -> bool:
        """Whether the calibration was reached, and worked; else the requests are counted."""
        error = self._passing.failed
        if error is not None:
            # Our own message holds nothing of a request; of any other error only the type is logged.
            ours = isinstance(error, ModelError)
            log.warning("the calibration failed: %s", error if ours else type(error).__name__)
        if self._passing.reached and error is None:
            return True
        self._observer.uncalibrated(sum(map(_wants_a_prediction, messages)))
        return False

    def _with_receipts(self, replies: Any, ctx: Any, messages: Sequence[Message]) -> Any:
        aligned = isinstance(replies, list) and len(replies) == len(messages)
        found = self._bound(messages) if aligned else [_UNKNOWN] * len(messages)
        labels = self.artifact.classes if self.artifact.is_multilabel else 1
        self._observer.unmatched(
            [
                (reason, labels * max(1, len(rows)))
                for (rows, reason), message in zip(found, messages, strict=True)
                if _wants_a_prediction(message)
            ]
        )
        signed = {
            index: rows
            for index, (rows, reason) in enumerate(found)
            if rows and not reason and not any(isinstance(row, Failure) for row in rows)
        }
        tags = [
            tag_of(messages[index].headers).of_row(k, len(rows))
            for index, rows in signed.items()
            for k in range(len(rows))
        ]
        invalid = sum(row is INVALID for rows, _ in found for row in rows)
        each = [row for rows in signed.values() for row in rows]
        results = iter(self.predictions(each, tags, invalid=invalid))
        for index, rows in signed.items():
            own = cast("list[AnyPrediction]", [next(results) for _ in rows])
            replies[index] = self._with_receipt(replies[index], own, ctx, index, messages[index])
        return replies

    def _with_receipt(
        self, reply: Any, own: Sequence[AnyPrediction], ctx: Any, index: int, message: Message
    ) -> Any:
        in_body_too = "body" in (self.options.receipts, message.headers.get(ASKING))
        self._set_headers(ctx, index, own, elsewhere=in_body_too or self._envelope is not None)
        if in_body_too:
            return in_body(reply, own, self.artifact.class_names)
        if self._envelope is not None:
            return in_protocol(reply, message, own, self.artifact.class_names, self._columns)
        return reply

    def _bound(self, messages: Sequence[Message]) -> list[tuple[Rows, str]]:
        """The rows of each request, and why they get no receipt; "" where they do."""
        # Behind an envelope the handler is asked for the instances of all requests.
        items = [1] * len(messages) if self._envelope is None else _sizes(messages, self._asked)
        try:
            own = self._passing.owned(self._asked, lambda rows: self._counts(messages, rows))
        except (ModelError, TypeError) as error:
            log.warning("no receipts: %s", error)
            own = None
        if own is None or items is None or sum(items) != len(own):
            # Requests beyond the rows were not calibrated.
            self._observer.uncalibrated(max(0, len(messages) - self._passing.passed))
            return [_UNKNOWN] * len(messages)
        reasons = self._bond.reasons(own, self._replies, declared=self._passing.are_declared)
        rest = iter(zip(own, reasons, strict=True))
        found: list[tuple[Rows, str]] = []
        for n in items:
            some = [next(rest) for _ in range(n)]
            rows = [row for rows, _ in some for row in rows]
            found.append((rows, next((reason for _, reason in some if reason), "")))
        return found

    def _counts(self, messages: Sequence[Message], rows: int) -> Sequence[int] | None:
        """The number of ``rows`` of each item that the handler was asked; None where it is unknown."""
        if rows == self._asked:
            return [1] * self._asked
        if self._envelope is None:
            return _sizes(messages, rows)
        return [rows] if self._asked == 1 else None

    def _set_headers(self, ctx: Any, index: int, rows: Sequence[AnyPrediction], *, elsewhere: bool) -> None:
        receipts = sum(len(one.choices) if isinstance(one, LabelsPrediction) else 1 for one in rows)
        if receipts <= MOST_IN_HEADER:
            whole = in_headers(lambda name, value: ctx.set_response_header(index, name, value), rows)
            if not whole and not elsewhere:
                log.warning("sets of so many classes do not fit a header; ask for them in the body")
        elif not elsewhere:
            log.warning("%d receipts do not fit a header; ask for them in the body", receipts)
            self._observer.broken("receipt", times=receipts)

    def _micro_batch(self) -> int | None:
        """The micro-batch of this thread, where the handler is TorchServe's MicroBatching."""
        handle = getattr(self._inner.subject, "handle", None)
        index: int | None = getattr(handle, "get_micro_batch_idx", lambda: None)()
        return index

    def _check(self, folder: Path, ctx: Any) -> None:
        """Ask the handler its trial request from packing; ModelError if the calibration is not reached."""
        path = folder / TRIAL
        if not path.is_file():
            return  # packed without a trial
        held = json.loads(path.read_text("utf-8"))
        self._passing.begin()
        got = ask(self._inner.handle, ctx, [Request.from_dict(held["request"])], bare=held["bare"])
        if self._passing.failed is not None:
            raise ModelError(f"the calibration does not fit what the model returns: {self._passing.failed}")
        if got.failure:
            log.warning("not checked: the handler failed on the request it was packed with: %s", got.failure)
        elif not self._passing.reached:
            raise ModelError(
                f"the calibration is not reached: nothing passes {self.options.seam!r}; "
                "pack the archive again"
            )


def _without_ours(row: Any) -> Any:
    """A request's inputs without our own, which the handler does not know."""
    if not isinstance(row, dict) or len(row) < 2:
        return row
    return {name: value for name, value in row.items() if not name.lower().startswith("x-calib-")}


def _sizes(messages: Sequence[Message], rows: int) -> Sequence[int] | None:
    """The number of ``rows`` of each request; None where it is unknown."""
    if rows == len(messages):
        return [1] * rows
    if len(messages) == 1:
        return [rows]
    listed = {"v1": "instances", "v2": "inputs"}
    instances = [len(m.body[listed[m.form]]) if m.form in listed else 1 for m in messages]
    return instances if sum(instances) == rows else None


def _wants_a_prediction(message: Message) -> bool:
    """Whether a request wants a prediction, and no explanation or description, by TorchServe's headers."""
    return not any(message.headers.get(name) == "True" for name in ("explain", "describe"))
