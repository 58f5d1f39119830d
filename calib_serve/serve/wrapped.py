"""An existing handler with a calibration at its seam, the place where its class scores pass.

Its preprocess, postprocess and reply format do not change: what passes the seam is calibrated in the same
form. Receipts travel in the response header ``x-calib-receipt``, or in the body where the request or the
archive asks for it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.errors import ModelError
from calib_serve.fuse.mar_options import TRIAL, ModelOptions
from calib_serve.reporter.decisions import decisions
from calib_serve.reporter.recorder import Tag
from calib_serve.scores import Outputs, from_probs, to_logits
from calib_serve.seam import INFERENCE, Form, Request, ask, load_handler, put_around
from calib_serve.serve.carrying import (
    ASKING,
    MOST_IN_HEADER,
    AnySaid,
    Said,
    SaidOfLabels,
    in_body,
    in_headers,
    in_protocol,
)
from calib_serve.serve.decided import decide_rows
from calib_serve.serve.envelope import surround
from calib_serve.serve.observer import observe
from calib_serve.serve.protocols import Message, end_stream, read_messages
from calib_serve.serve.requests import message_tag
from calib_serve.serve.runtime import check_file

__all__ = ["CalibratedWrapper", "Passing", "Row"]


class Row(NamedTuple):
    """One row's calibrated probabilities (K,), and the logits (K,) that they are of."""

    probs: NDArray[np.float64]
    logits: NDArray[np.float64]


class Passing:
    """Called around each inference; keeps the rows of the batch since ``begin``.

    A failure of the calibration changes nothing: what was returned goes on as it is, and ``failed`` says why.
    ``order``: the place of a call in the batch, where a handler makes several in threads of its own.
    """

    def __init__(
        self,
        artifact: Artifact,
        form: Form,
        kind: Outputs,
        *,
        order: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._artifact, self._form, self._kind, self._order = artifact, form, kind, order
        self.begin()

    def begin(self) -> None:
        """A new batch."""
        self._calls: list[tuple[int | None, list[Row | None]]] = []
        self.failed: Exception | None = None

    def __call__(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of ``call``, calibrated."""
        returned = call(*args, **kwargs)
        try:
            rows, result = self._calibrated(returned)
        except Exception as error:  # fails open, and is counted
            self.failed = error
            return returned
        place = self._order()
        if place is None and threading.current_thread() is threading.main_thread():
            place = len(self._calls)
        self._calls.append((place, rows))
        return result

    def rows(self) -> list[Row | None]:
        """The batch's rows in order, None for one that is not finite; empty where their order is unknown."""
        if len(self._calls) > 1 and any(place is None for place, _ in self._calls):
            return []
        return [row for _, rows in sorted(self._calls, key=lambda call: call[0] or 0) for row in rows]

    @property
    def reached(self) -> bool:
        """Whether anything passed since ``begin``."""
        return bool(self._calls) or self.failed is not None

    def _calibrated(self, returned: Any) -> tuple[list[Row | None], Any]:
        found = self._form.scores(returned, self._artifact.classes)
        logits = to_logits(found.values, self._kind)
        finite = np.asarray(np.isfinite(logits).all(axis=1))
        probs = self._artifact.of_logits(logits if finite.all() else np.where(finite[:, None], logits, 0.0))
        rows = [Row(p, z) if ok else None for p, z, ok in zip(probs, logits, finite.tolist(), strict=True)]
        made = from_probs(probs, found.values, self._kind)
        return rows, self._form.put(returned, made, found.shape)


log = logging.getLogger(__name__)


class CalibratedWrapper:
    """Replaces the handler ``options.wraps`` of the archive."""

    options: ModelOptions
    artifact: Artifact

    def initialize(self, ctx: Any) -> None:
        """Make the wrapped handler load its model, and see that the calibration at its seam is reached."""
        folder = Path(ctx.system_properties["model_dir"])
        self.options = ModelOptions.read(ctx.model_yaml_config or {})
        self.artifact = Artifact.load(folder / self.options.artifact)
        self.options.check_artifact(self.artifact)
        if self.options.model:
            check_file(folder / self.options.model, self.options.sha256)
        self._passing = Passing(
            self.artifact, Form.parse(self.options.output), self.options.outputs, order=self._micro_batch
        )
        self._inner = load_handler(
            self.options.wraps or "", inference=self._passing if self.options.seam == INFERENCE else None
        )
        self._inner.initialize(ctx)
        # The envelope stays, and we are around it: its replies take receipts, too.
        self._ask = surround(ctx, self.handle, self._inner.handle)
        self._enveloped = self._ask != self._inner.handle
        self._change_model()
        put_around(self._inner, self.options.seam, self._passing)
        self._check(folder, ctx)
        model = ctx.manifest["model"]
        self._observer = observe(
            self.options,
            self.artifact,
            model=str(model["modelName"]),
            version=str(model["modelVersion"]),
            folder=folder,
        )
        self._worker = str(os.getpid())

    def handle(self, data: Sequence[dict[str, Any]], ctx: Any) -> Any:
        """The wrapped handler's reply, behind its envelope if the server has one."""
        messages = self._messages(data, ctx)
        self._passing.begin()
        replies = self._ask([_without_ours(row) for row in data], ctx)
        try:
            return self._with_receipts(replies, ctx, messages)
        except Exception as error:  # fails open
            self._observer.broken("receipt", error, times=len(data))
            return replies
        finally:
            self._observer.before_answer()

    def _messages(self, data: Sequence[dict[str, Any]], ctx: Any) -> list[Message]:
        try:
            return read_messages(data, ctx)
        except Exception as error:  # fails open
            self._observer.broken("record", error)
            return [Message("plain", None, {})] * len(ctx.request_processor)

    def _with_receipts(self, replies: Any, ctx: Any, messages: Sequence[Message]) -> Any:
        for index in range(len(messages)):
            ctx.set_response_header(index, "x-calib-worker", self._worker)
            end_stream(ctx, index)
        if not self._passing.reached or self._passing.failed is not None:
            if self._passing.failed is not None:
                log.warning("the calibration failed: %s", _without_content(self._passing.failed))
            self._observer.uncalibrated(sum(_wants_a_prediction(message) for message in messages))
            return replies
        rows = self._passing.rows()
        if self.options.padded:
            rows = rows[: len(messages)]
        proved = self.options.batches or len(messages) == 1
        sizes = _sizes(messages, len(rows)) if proved else None
        if sizes is None:
            # Which row is whose is not known: no receipt. Where rows are fewer, some requests went by.
            self._observer.broken("receipt", times=len(messages))
            self._observer.uncalibrated(max(0, len(messages) - len(rows)))
            return replies
        tags = [
            message_tag(message).of_row(row, n)
            for message, n in zip(messages, sizes, strict=True)
            for row in range(n)
        ]
        said = iter(self._said(rows, tags))
        aligned = isinstance(replies, list) and len(replies) == len(messages)
        for index, (message, size) in enumerate(zip(messages, sizes, strict=True)):
            own = [one for one in (next(said) for _ in range(size)) if one is not None]
            if not own or len(own) < size:
                continue  # what is not finite has no confidence
            in_body_too = aligned and self._asks_for_body(message)
            self._set_headers(ctx, index, own, elsewhere=in_body_too or self._enveloped)
            if in_body_too:
                replies[index] = in_body(replies[index], own)
            elif aligned and self._enveloped:
                replies[index] = in_protocol(replies[index], message, own)
        return replies

    def _asks_for_body(self, message: Message) -> bool:
        return self.options.receipts == "body" or message.headers.get(ASKING) == "body"

    def _set_headers(self, ctx: Any, index: int, said: Sequence[AnySaid], *, elsewhere: bool) -> None:
        receipts = sum(len(one.each) for one in said)
        if receipts <= MOST_IN_HEADER:
            whole = in_headers(lambda name, value: ctx.set_response_header(index, name, value), said)
            if not whole and not elsewhere:
                log.warning("sets of so many classes do not fit a header; ask for them in the body")
        elif not elsewhere:
            log.warning("%d receipts do not fit a header; ask for them in the body", receipts)
            self._observer.broken("receipt", times=receipts)

    def _said(self, rows: Sequence[Row | None], tags: Sequence[Tag]) -> list[AnySaid | None]:
        made = [row for row in rows if row is not None]
        own = [tag for tag, row in zip(tags, rows, strict=False) if row is not None]
        tell = self._of_labels if self.artifact.is_multilabel else self._of_classes
        said = iter(tell(made, own, len(rows) - len(made)))
        return [None if row is None else next(said) for row in rows]

    def _of_classes(self, rows: Sequence[Row], tags: Sequence[Tag], invalid: int) -> Sequence[AnySaid]:
        top = [(int(row.probs.argmax()), min(float(row.probs.max()), 1.0)) for row in rows]
        receipts = self._observer.served(top, logits=[row.logits for row in rows], tags=tags, invalid=invalid)
        segments = [tag.segment for tag in tags] if len(tags) == len(rows) else ""
        found = decide_rows(self.artifact, [row.probs for row in rows], segments=segments)
        names = self.artifact.class_names
        return [
            Said(confidence, receipt, decided, names, len(row.probs))
            for row, (_, confidence), receipt, decided in zip(rows, top, receipts, found, strict=True)
        ]

    def _of_labels(self, rows: Sequence[Row], tags: Sequence[Tag], invalid: int) -> Sequence[AnySaid]:
        found = decisions(
            self._observer,
            [row.probs for row in rows],
            threshold=self.options.threshold,
            tags=tags,
            invalid=invalid,
        )
        return [SaidOfLabels(one, self.artifact.class_names) for one in found]

    def _micro_batch(self) -> int | None:
        """The micro-batch of this thread, where the handler is TorchServe's MicroBatching."""
        index: Callable[[], int | None] | None = getattr(
            getattr(self._inner.subject, "handle", None), "get_micro_batch_idx", None
        )
        return None if index is None else index()

    def _change_model(self) -> None:
        steps = self.artifact.model_steps
        if steps:
            from calib_serve.fuse.torch import calibrated  # noqa: PLC0415 - only these need torch

            self._inner.subject.model = calibrated(
                self._inner.subject.model,
                self.artifact.only(*steps),
                returns="logits",
                last_linear=self.options.last_linear,
            )

    def _check(self, folder: Path, ctx: Any) -> None:
        """Ask the handler what it was asked while packing; ModelError if the calibration is not reached."""
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


def _without_content(error: Exception) -> str:
    """What may be logged of an error: our own words, which hold nothing of a request, or its type."""
    return str(error) if isinstance(error, ModelError) else type(error).__name__


def _without_ours(row: Any) -> Any:
    """A request's inputs but for ours, of which the handler knows nothing."""
    if not isinstance(row, dict) or len(row) < 2:
        return row
    return {name: value for name, value in row.items() if not name.lower().startswith("x-calib-")}


def _sizes(messages: Sequence[Message], rows: int) -> Sequence[int] | None:
    """How many of ``rows`` each request has; None where that is not known."""
    if rows == len(messages):
        return [1] * rows
    if len(messages) == 1:
        return [rows]
    listed = {"v1": "instances", "v2": "inputs"}
    instances = [len(m.body[listed[m.form]]) if m.form in listed else 1 for m in messages]
    return instances if sum(instances) == rows else None


def _wants_a_prediction(message: Message) -> bool:
    """Not an explanation or a description, as TorchServe's headers say."""
    return not any(message.headers.get(name) == "True" for name in ("explain", "describe"))
