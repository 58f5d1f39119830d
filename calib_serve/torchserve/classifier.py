"""The TorchServe handler of a calibrated classifier.

A bad item does not affect the others of its batch, and monitoring never changes a prediction: decoding, the
model, and monitoring fail independently, each with its own counter. Request content is never logged: the
server reads metrics from the log, so a line in a request could forge one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError, ModelError
from calib_serve.receipts import Tag
from calib_serve.scores import proves_probabilities, to_logits
from calib_serve.torchserve._decoding import decode, decode_lists
from calib_serve.torchserve._handler import CalibratedHandler
from calib_serve.torchserve._model import load_runtime
from calib_serve.torchserve._predictions import (
    INVALID,
    AnyPrediction,
    Failure,
    Result,
    Row,
    all_or_none,
)
from calib_serve.torchserve._replies import columns, full_reply, refusal, v2_reply
from calib_serve.torchserve._requests import (
    Message,
    RequestRows,
    plain_tags,
    read_messages,
    read_request,
)
from calib_serve.torchserve._worker import check_requests
from calib_serve.torchserve.mar_options import ModelOptions

log = logging.getLogger(__name__)

_LOGITS = ("logits", "label_logits")
_PHRASE = {400: "Bad Request", 500: "Internal Server Error"}
_PLAIN = RequestRows(Message("plain", None, {}))
_ENCODE = json.JSONEncoder(allow_nan=False).encode  # made once: json.dumps would make one each time


class CalibratedClassifier(CalibratedHandler):
    """Answers a model's own file; preprocessing or replies of your own are those of a wrapped handler."""

    def initialize(self, ctx: Any) -> None:
        """Load the model and the calibration, warm up, and start the counters at 0."""
        if own := next(
            (name for name in ("preprocess", "inference", "postprocess") if hasattr(self, name)), ""
        ):
            raise ModelError(f"{own} is not asked here: write it in a handler, and pack that by --from")
        self.without_envelope()
        super().initialize(ctx)
        self._columns = columns(self.options, self.artifact)

    def load(self, folder: Path, ctx: Any) -> None:
        """Load the model, and run it once to check its outputs."""
        self._run = load_runtime(folder, self.options, self.artifact, device=_device_of(ctx, self.options))
        self._batch_size = int(ctx.system_properties.get("batch_size") or 1)
        # Both sizes: the first request then waits for no kernels.
        for n in sorted({1, self._batch_size}):
            self._warm_up(n)

    def answer(self, data: Sequence[Any], ctx: Any) -> list[str]:
        """One JSON text per request, in order; failed requests have their own status."""
        check_requests(data, ctx)
        # The common case at once: to decode each request by itself costs more than a small model.
        o, payloads = self.options, [row.get("data", row.get("body")) for row in data]
        batch = decode_lists(payloads, shape=o.input_shape, dtype=o.input_dtype)
        if any(ctx.get_request_header(i, "explain") == "True" for i in range(len(data))):
            batch = None
        if batch is not None:
            tags = plain_tags(data, ctx)
            results = self.predictions(self._rows(batch, [tag.segment for tag in tags]), tags)
            return [self._reply(index, _PLAIN, [result], ctx) for index, result in enumerate(results)]
        requests = [self._asked(message) for message in read_messages(data, ctx)]
        return [
            self._reply(index, request, results, ctx)
            for index, (request, results) in enumerate(zip(requests, self._results(requests), strict=True))
        ]

    def _warm_up(self, n: int) -> None:
        shape = [1 if size is None else size for size in self.options.input_shape]
        expected = self.options.outputs
        scores = self._run(np.zeros((n, *shape), self.options.input_dtype))
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

    def _asked(self, message: Message) -> RequestRows:
        if message.headers.get("explain") == "True":
            return RequestRows(message, refused="this model gives predictions, no explanations")
        return read_request(message, shape=self.options.input_shape)

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
        o = self.options
        try:
            return decode(
                payload,
                shape=o.input_shape,
                dtype=o.input_dtype,
                pictures=o.pictures,
                max_pixels=o.max_pixels,
            )
        except InputError as error:
            return Failure(400, str(error))
        except Exception as error:  # whatever a library makes of bytes costs one request
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
            rows, _ = self.calibrated(self._run(batch), segments)
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
        failure = results[0]
        if not isinstance(failure, Failure):
            return _ENCODE(self._written(request, cast("list[AnyPrediction]", results)))
        ctx.set_response_status(failure.status, _PHRASE[failure.status], index)
        return json.dumps(
            refusal(request.message, failure.status, failure.reason, model=self.name, version=self.version)
        )

    def _written(self, request: RequestRows, predictions: list[AnyPrediction]) -> Any:
        form, names = request.message.form, self.artifact.class_names
        who = {"model": self.name, "version": self.version}
        if form == "v2":
            outputs = [make(predictions) for make in self._columns.values()]
            return v2_reply(request.message, outputs, **who)
        replies = [full_reply(one, self.options, names, **who) for one in predictions]
        return {"predictions": replies} if form == "v1" else replies[0]


def _device_of(ctx: Any, options: ModelOptions) -> str:
    """The device of this worker: the GPU that it was given, else the CPU; ModelError without CUDA for it."""
    gpu = ctx.system_properties.get("gpu_id")
    if gpu is None:
        return "cpu"
    if options.kind != "onnx":  # onnxruntime has a CUDA of its own, and is asked when its session opens
        import torch  # noqa: PLC0415 - ONNX archives run without it

        if not torch.cuda.is_available():
            raise ModelError(
                f"this worker was given the GPU {gpu}, and its torch has no CUDA; install one that has, or "
                "give it none by number_of_gpu=0 in config.properties (calib-serve serve --option)"
            )
    return f"cuda:{gpu}"
