"""A foreign handler with a calibration at its seam, the place where its class scores pass.

Its preprocess, postprocess and reply format do not change: what passes the seam is calibrated in the same
form. Receipts travel in the response header ``x-calib-receipt``, or in the body where the request or the
archive asks for it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from calib_serve.core.errors import ModelError
from calib_serve.scores import Form, from_probs
from calib_serve.torchserve._foreign_replies import MOST_IN_HEADER, in_body, in_headers, in_protocol
from calib_serve.torchserve._handler import CalibratedHandler
from calib_serve.torchserve._model import check_file
from calib_serve.torchserve._predictions import AnyPrediction, Failure, LabelsPrediction, Row
from calib_serve.torchserve._replies import ASKING, columns
from calib_serve.torchserve._requests import Message, read_messages, tag_of
from calib_serve.torchserve.mar_options import TRIAL
from calib_serve.torchserve.seam._handler import INFERENCE, load_handler, put_around
from calib_serve.torchserve.seam._host import ask
from calib_serve.torchserve.seam._requests import Request

log = logging.getLogger(__name__)


class Passing:
    """A wrapper of each inference of the handler in ``wrapper``; keeps the rows since ``begin``.

    A failure of the calibration changes nothing: what was returned goes on as it is, and ``failed`` says why.
    ``order``: the place of a call in the batch, where a handler makes several in threads of its own.
    """

    def __init__(self, wrapper: CalibratedHandler, *, order: Callable[[], int | None] = lambda: None) -> None:
        self._wrapper, self._order = wrapper, order
        self._form = Form.parse(wrapper.options.output)
        self.begin()

    def begin(self) -> None:
        """Begin a new batch."""
        self._calls: list[tuple[int | None, list[Row | Failure]]] = []
        self.failed: Exception | None = None

    def __call__(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of ``call``, calibrated."""
        returned = call(*args, **kwargs)
        try:
            found = self._form.scores(returned, self._wrapper.artifact.classes)
            rows, probs = self._wrapper.calibrated(found.values)
            made = from_probs(probs, found.values, self._wrapper.options.outputs)
            result = self._form.put(returned, made, found.shape)
        except Exception as error:  # fails open, and is counted
            self.failed = error
            return returned
        place = self._order()
        if place is None and threading.current_thread() is threading.main_thread():
            place = len(self._calls)
        self._calls.append((place, rows))
        return result

    def rows(self) -> list[Row | Failure]:
        """The batch's rows in order; empty where their order is unknown."""
        if len(self._calls) > 1 and any(place is None for place, _ in self._calls):
            return []
        return [row for _, rows in sorted(self._calls, key=lambda call: call[0] or 0) for row in rows]

    @property
    def reached(self) -> bool:
        """Whether scores passed since ``begin``."""
        return bool(self._calls) or self.failed is not None


class CalibratedWrapper(CalibratedHandler):
    """Replaces the handler ``options.wraps`` of the archive."""

    def load(self, folder: Path, ctx: Any) -> None:
        """Make the wrapped handler load its model, and check that it reaches the calibration at its seam."""
        self.envelope()  # it stays, and we are around it: its replies take receipts, too
        self._columns = columns(self.options, self.artifact)
        if self.options.model:
            check_file(folder / self.options.model, self.options.sha256)
        self._passing = Passing(self, order=self._micro_batch)
        at_inference = self._passing if self.options.seam == INFERENCE else None
        self._inner = load_handler(self.options.wraps or "", inference=at_inference)
        self._inner.initialize(ctx)
        self._change_model()
        put_around(self._inner, self.options.seam, self._passing)
        self._check(folder, ctx)

    def inner(self, data: Sequence[Any], ctx: Any) -> Any:
        """The wrapped handler's own reply."""
        return self._inner.handle(data, ctx)

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
            return self._with_receipts(replies, ctx, messages)
        except Exception as error:  # fails open
            self._observer.broken("receipt", error, times=len(data))
            return replies

    def _messages(self, data: Sequence[dict[str, Any]], ctx: Any) -> list[Message]:
        try:
            return read_messages(data, ctx)
        except Exception as error:  # fails open
            self._observer.broken("record", error)
            return [Message("plain", None, {})] * len(ctx.request_processor)

    def _with_receipts(self, replies: Any, ctx: Any, messages: Sequence[Message]) -> Any:
        if not self._passing.reached or self._passing.failed is not None:
            if self._passing.failed is not None:
                # Our own message holds nothing of a request; of any other error only the type is logged.
                error = self._passing.failed
                own = isinstance(error, ModelError)
                log.warning("the calibration failed: %s", error if own else type(error).__name__)
            self._observer.uncalibrated(sum(_wants_a_prediction(message) for message in messages))
            return replies
        rows = self._passing.rows()
        if self.options.padded:
            rows = rows[: len(messages)]
        # A receipt of another request's row would count a wrong label as right: without proof there is none.
        proved = self.options.batches or len(messages) == 1
        sizes = _sizes(messages, len(rows)) if proved else None
        if sizes is None:
            # The owner of each row is unknown: no receipts. Requests beyond the rows were not calibrated.
            self._observer.broken("receipt", times=len(messages))
            self._observer.uncalibrated(max(0, len(messages) - len(rows)))
            return replies
        tags = [
            tag_of(message.headers).of_row(row, n)
            for message, n in zip(messages, sizes, strict=True)
            for row in range(n)
        ]
        results = iter(self.predictions(rows, tags))
        aligned = isinstance(replies, list) and len(replies) == len(messages)
        for index, (message, size) in enumerate(zip(messages, sizes, strict=True)):
            own = [one for one in (next(results) for _ in range(size)) if not isinstance(one, Failure)]
            if not own or len(own) < size:
                continue  # what is not finite has no confidence
            in_body_too = aligned and "body" in (self.options.receipts, message.headers.get(ASKING))
            self._set_headers(ctx, index, own, elsewhere=in_body_too or self._envelope is not None)
            if in_body_too:
                replies[index] = in_body(replies[index], own, self.artifact.class_names)
            elif aligned and self._envelope is not None:
                names = self.artifact.class_names
                replies[index] = in_protocol(replies[index], message, own, names, self._columns)
        return replies

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

    def _change_model(self) -> None:
        if steps := self.artifact.model_steps:
            from calib_serve.fuse import calibrated  # noqa: PLC0415 - only these need torch

            self._inner.subject.model = calibrated(
                self._inner.subject.model,
                self.artifact.only(*steps),
                returns="logits",
                last_linear=None if self.artifact.head is None else self.options.last_linear,
            )

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
