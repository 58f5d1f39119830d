"""The TorchServe handler of a calibrated classifier.

A bad item does not affect the others of its batch, and monitoring never changes a prediction: decoding, the
model, and monitoring fail independently, each with its own counter. Request content is never logged: the
server reads metrics from the log, so a line in a request could forge one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError, ModelError
from calib_serve.receipts import Tag
from calib_serve.scores import as_json, log_probs, proves_probabilities, to_logits
from calib_serve.torchserve._decoding import Payload, decode, decode_lists
from calib_serve.torchserve._handler import CalibratedHandler
from calib_serve.torchserve._model import load_runtime
from calib_serve.torchserve._predictions import (
    INVALID,
    AnyPrediction,
    Failure,
    LabelsPrediction,
    Prediction,
    Result,
    Row,
    all_or_none,
    row_decisions,
)
from calib_serve.torchserve._replies import columns, full_reply, refusal, v2_reply
from calib_serve.torchserve._requests import (
    Message,
    RequestRows,
    decode_base64,
    plain_tags,
    read_messages,
    read_request,
)
from calib_serve.torchserve._worker import check_requests
from calib_serve.torchserve.mar_options import ModelOptions
from calib_serve.torchserve.shown import Readings, chosen_rows, read_shown

__all__ = ["CalibratedClassifier", "Failure", "LabelsPrediction", "Prediction"]

log = logging.getLogger(__name__)

_LOGITS = ("logits", "label_logits")
_PHRASE = {400: "Bad Request", 500: "Internal Server Error"}
_PLAIN = RequestRows(Message("plain", None, {}))
_ENCODE = json.JSONEncoder(allow_nan=False).encode  # made once: json.dumps would make one each time


class CalibratedClassifier(CalibratedHandler):
    """Subclass it to change ``preprocess`` (one payload to one input) or ``postprocess`` (one reply)."""

    def initialize(self, ctx: Any) -> None:
        """Load the model and the calibration, warm up, and start the counters at 0."""
        self.without_envelope()
        super().initialize(ctx)
        own = type(self).postprocess is not CalibratedClassifier.postprocess
        reply = (lambda one: _ENCODE(self.postprocess(one))) if own else None
        self._shown = self._tried() if own else None
        self._columns = columns(self.options, self.artifact, reply=reply)

    def preprocess(self, payload: Payload) -> NDArray[Any]:
        """Turn one request's payload into one input of the model, without the batch.

        Args:
            payload: Bytes of the request, or what its JSON holds.

        Raises:
            InputError: For an invalid payload: its message is sent to the client as a 400.
        """
        o = self.options
        return decode(
            decode_base64(payload),
            shape=o.input_shape,
            dtype=o.input_dtype,
            pictures=o.pictures,
            max_pixels=o.max_pixels,
        )

    def inference(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Run the model on a batch of inputs; the scores (n, K) that it returns are calibrated.

        Args:
            batch: Inputs (n, *input_shape).
        """
        return self._run(batch)

    def postprocess(self, prediction: Any) -> Any:
        """Write the reply to one request: anything that JSON can hold.

        Args:
            prediction: A Prediction, of a multi-label model a LabelsPrediction.
        """
        names = self.artifact.class_names
        return full_reply(prediction, self.options, names, model=self.name, version=self.version)

    def load(self, folder: Path, ctx: Any) -> None:
        """Load the model, as CalibratedHandler says, and run it once to check its outputs.

        Args:
            folder: Where the archive is unpacked.
            ctx: TorchServe's context.
        """
        self._run = load_runtime(folder, self.options, self.artifact, device=_device_of(ctx, self.options))
        self._batch_size = int(ctx.system_properties.get("batch_size") or 1)
        # Both sizes: the first request then waits for no kernels.
        for n in sorted({1, self._batch_size}):
            self._warm_up(n)

    def answer(self, data: Sequence[Any], ctx: Any) -> list[str]:
        """Return one JSON text per request, in order; failed requests have their own status.

        Args:
            data: Requests, names to values, one dict each.
            ctx: TorchServe's context.
        """
        check_requests(data, ctx)
        # The common case at once: to decode each request by itself costs more than a small model.
        batch = self._one_array(data, ctx)
        if batch is not None:
            tags = plain_tags(data, ctx)
            results = self.predictions(self._rows(batch, [tag.segment for tag in tags]), tags)
            return [self._reply(index, _PLAIN, [result], ctx) for index, result in enumerate(results)]
        requests = [self._asked(message) for message in read_messages(data, ctx)]
        return [
            self._reply(index, request, results, ctx)
            for index, (request, results) in enumerate(zip(requests, self._results(requests), strict=True))
        ]

    def _tried(self) -> Readings:
        """What a subclass's replies show of a prediction, by made-up ones."""
        k, labels = self.artifact.classes, self.artifact.is_multilabel
        asked = []
        try:
            for p in chosen_rows(k, of_labels=labels) if k > 1 else ():
                true = tuple(np.flatnonzero(p >= self.options.threshold).tolist())
                (decided,) = row_decisions(self.artifact, [p], abstain_below=self.options.abstain_below)
                if self.artifact.choice is not None:  # an action may be another class: it tells no prediction
                    decided = decided._replace(decision=self.artifact.choice.actions[0])
                of_class = Prediction(p, int(p.argmax()), float(p.max()), log_probs(p), decisions=decided)
                made = LabelsPrediction(p, true, (), log_probs(p)) if labels else of_class
                asked.append((as_json(self.postprocess(made)), p))
            return read_shown(asked, self.artifact.class_names or ()) if asked else Readings()
        except (Exception, SystemExit) as error:  # a subclass's postprocess may raise anything
            log.warning(
                "replies are not compared: postprocess fails on a prediction: %s", type(error).__name__
            )
            return Readings()

    def _matched(self, one: AnyPrediction) -> tuple[AnyPrediction, Any]:
        """A prediction and its reply: without a receipt where a subclass's shows another class or number."""
        reply = self.postprocess(one)
        if self._shown is None:
            return one, reply
        reason = self._shown.compare(reply, one.probabilities).reason
        wrong = reason in ("class", "number")  # what shows nothing was still made of this prediction
        self._observer.unmatched([(reason if wrong else "", 1)])
        if not wrong:
            return one, reply
        unsigned = _unsigned(one)
        return unsigned, self.postprocess(unsigned)

    def _warm_up(self, n: int) -> None:
        shape = [1 if size is None else size for size in self.options.input_shape]
        expected = self.options.outputs
        scores = self.inference(np.zeros((n, *shape), self.options.input_dtype))
        logits = to_logits(scores, expected)
        if logits.shape[1] != self.artifact.classes:
            raise ModelError(
                f"the model returns {logits.shape[1]} classes, the artifact is for {self.artifact.classes}"
            )
        if not np.isfinite(scores).all():
            return  # on zeros alone
        matrix = np.asarray(scores).reshape(len(scores), -1)
        found = "probabilities" if proves_probabilities(matrix) else "no such scores"
        if not np.isfinite(logits).all() or (found == "probabilities" and expected in _LOGITS):
            raise ModelError(
                f"the model returns {found}, and the archive says {expected}; pack it with the --outputs of "
                "its scores, and an artifact that was fitted on such"
            )

    def _one_array(self, data: Sequence[Any], ctx: Any) -> NDArray[Any] | None:
        """Decode all inputs at once, where each request is one JSON array; else None."""
        if type(self).preprocess is not CalibratedClassifier.preprocess:
            return None
        o, payloads = self.options, [row.get("data", row.get("body")) for row in data]
        batch = decode_lists(payloads, shape=o.input_shape, dtype=o.input_dtype)
        if any(ctx.get_request_header(i, "explain") == "True" for i in range(len(data))):
            return None
        return batch

    def _asked(self, message: Message) -> RequestRows:
        request = read_request(message, shape=self.options.input_shape)
        if message.headers.get("explain") == "True":
            return RequestRows(message, refused="this model gives predictions, no explanations")
        if unknown := sorted(set(request.outputs) - self._columns.keys()):
            text = f"there is no output {unknown[0][:40]!r}; there are {', '.join(self._columns)}"
            return RequestRows(message, refused=text)
        return request

    def _results(self, requests: Sequence[RequestRows]) -> list[list[Result]]:
        """One result a row for each request, or one failure with the reason."""
        payloads = [p for one in requests for p in (one.payloads or [Failure(400, one.refused)])]
        of = [tag.segment for one in requests for tag in (one.tags if one.payloads else [Tag()])]
        piece = max(self._batch_size, 64)  # rows decoded and run at once
        rows: list[Row | Failure] = []
        for i in range(0, len(payloads), piece):
            rows += self._rows_of([self._read(one) for one in payloads[i : i + piece]], of[i : i + piece])
        # Counted before a request fails for its worst row, which hides the others.
        rest, invalid = iter(rows), sum(row is INVALID for row in rows)
        own = [[next(rest) for _ in one.payloads or [None]] for one in requests]
        own = [
            part if one.refused or one.message.form == "plain" else all_or_none(part)
            for one, part in zip(requests, own, strict=True)
        ]
        tags: list[Tag] = []
        for one, part in zip(requests, own, strict=True):
            tags += one.tags if len(part) == len(one.tags) else [Tag()] * len(part)
        results = iter(self.predictions([row for part in own for row in part], tags, invalid=invalid))
        return [[next(results) for _ in part] for part in own]

    def _read(self, payload: Any) -> NDArray[Any] | Failure:
        if isinstance(payload, Failure):
            return payload
        if payload is None or (isinstance(payload, (bytes, bytearray, str)) and not payload):
            return Failure(400, "the request has no body")
        try:
            return self.preprocess(payload)
        except InputError as error:
            return Failure(400, str(error))
        except (Exception, SystemExit) as error:  # a subclass's preprocess may raise anything
            return Failure(400, f"the input cannot be read ({type(error).__name__})")

    def _rows_of(self, inputs: list[NDArray[Any] | Failure], segments: Sequence[str]) -> list[Row | Failure]:
        """Run inputs of one shape and type at once; a failure stays in its place."""
        by_kind: dict[tuple[Any, ...], list[int]] = {}
        for index, item in enumerate(inputs):
            if not isinstance(item, Failure):
                by_kind.setdefault((item.shape, item.dtype.str), []).append(index)
        found: dict[int, Row | Failure] = {i: one for i, one in enumerate(inputs) if isinstance(one, Failure)}
        for indices in by_kind.values():
            # Failed items keep their rows: in a batch of another size, some kernels would round the other
            # rows differently.
            places = range(len(inputs)) if len(by_kind) == 1 else indices
            blank = np.zeros_like(inputs[indices[0]])
            batch = np.stack([b if not isinstance(b := inputs[i], Failure) else blank for i in places])
            rows = dict(zip(places, self._rows(batch, [segments[i] for i in places]), strict=True))
            found |= {i: rows[i] for i in indices}
        return [found[i] for i in range(len(inputs))]

    def _rows(self, batch: NDArray[Any], segments: Sequence[str]) -> list[Row | Failure]:
        try:
            rows, _ = self.calibrated(self.inference(batch), segments)
            if len(rows) != len(batch):
                raise ModelError(f"the model returned {len(rows)} rows for {len(batch)} inputs")
        except (Exception, SystemExit) as error:  # a model may raise anything
            if len(batch) > 1:  # one input may be to blame: the others are run without it
                each = range(len(batch))
                return [self._rows(batch[i : i + 1], segments[i : i + 1])[0] for i in each]
            log.warning("the model failed on an input: %s", type(error).__name__)
            return [Failure(500, "the model failed on this input")]
        return rows

    def _reply(self, index: int, request: RequestRows, results: list[Result], ctx: Any) -> str:
        ctx.set_response_content_type(index, "application/json")
        failure = results[0] if isinstance(results[0], Failure) else None
        if failure is None:
            try:
                return _ENCODE(self._written(request, cast("list[AnyPrediction]", results)))
            except (Exception, SystemExit) as error:  # a subclass's postprocess may raise anything
                log.warning("postprocess failed: %s", type(error).__name__)
                failure = Failure(500, "the reply could not be written")
        ctx.set_response_status(failure.status, _PHRASE[failure.status], index)
        return json.dumps(
            refusal(request.message, failure.status, failure.reason, model=self.name, version=self.version)
        )

    def _written(self, request: RequestRows, predictions: list[AnyPrediction]) -> Any:
        form = request.message.form
        if form != "v2":
            replies = [self._matched(one)[1] for one in predictions]
            return {"predictions": replies} if form == "v1" else replies[0]
        if self._shown is not None:
            predictions = [self._matched(one)[0] for one in predictions]
        asked = request.outputs or self._columns
        outputs = [make(predictions) for name, make in self._columns.items() if name in asked]
        return v2_reply(request.message, outputs, model=self.name, version=self.version)


def _unsigned(one: AnyPrediction) -> AnyPrediction:
    """A prediction without its receipts."""
    if isinstance(one, Prediction):
        return replace(one, receipt=None)
    return replace(one, choices=[choice._replace(receipt=None) for choice in one.choices])


def _device_of(ctx: Any, options: ModelOptions) -> str:
    """Return where this worker runs: the GPU the server gave it, else the CPU.

    Raises ModelError where torch has no CUDA for that GPU, unless the archive allows the CPU in its place.
    """
    gpu = ctx.system_properties.get("gpu_id")
    if gpu is None:
        return "cpu"
    if options.kind != "onnx":  # onnxruntime has a CUDA of its own, and is asked when its session opens
        import torch  # noqa: PLC0415 - ONNX archives run without it

        if not torch.cuda.is_available():
            if options.allow_cpu_fallback:
                return "cpu"
            raise ModelError(
                f"this worker was given the GPU {gpu}, and its torch has no CUDA; install one that has, or "
                "pack the archive with --option allow_cpu_fallback=true"
            )
    return f"cuda:{gpu}"
