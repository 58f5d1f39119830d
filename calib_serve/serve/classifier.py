"""The TorchServe handler of a calibrated classifier.

A bad item does not affect the others of its batch, and monitoring never changes a prediction: decoding, the
model, and monitoring fail independently, each with its own counter. Request content is never logged: the
server reads metrics from the log, so a line in a request could forge one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.errors import InputError, ModelError
from calib_serve.fuse.mar_options import ModelOptions
from calib_serve.reporter.decisions import decisions
from calib_serve.reporter.recorder import Tag
from calib_serve.scores import measured, to_logits
from calib_serve.serve.decided import decide_rows
from calib_serve.serve.envelope import check_requests, take_place
from calib_serve.serve.inputs import Payload, decode, decode_lists
from calib_serve.serve.observer import observe
from calib_serve.serve.protocols import Message, end_stream, read_messages
from calib_serve.serve.replies import (
    in_full,
    label_columns,
    of_labels,
    own_columns,
    prediction_columns,
    refusal,
    v2_reply,
)
from calib_serve.serve.requests import Request, opened, plain_tags, read_request
from calib_serve.serve.results import (
    AnyPrediction,
    Failure,
    LabelsPrediction,
    Prediction,
    Result,
    all_or_none,
)
from calib_serve.serve.runtime import Run, load_runtime

__all__ = ["CalibratedClassifier", "Failure", "LabelsPrediction", "Prediction"]

log = logging.getLogger(__name__)


Row = tuple[NDArray[np.float64], NDArray[Any]]  # probabilities, and the logits that they are of


class CalibratedClassifier:
    """Subclass it to change ``preprocess`` (one payload to one input) or ``postprocess`` (one reply).

    ``options``, ``artifact``, ``name`` and ``version`` are set once the model is loaded.
    """

    options: ModelOptions
    artifact: Artifact
    name: str
    version: str

    def initialize(self, ctx: Any) -> None:
        """Load the model and the calibration, warm up, and start the counters at 0."""
        take_place(ctx, self.handle)
        folder = Path(ctx.system_properties["model_dir"])
        self.options = ModelOptions.read(ctx.model_yaml_config or {})
        self.artifact = Artifact.load(folder / self.options.artifact)
        self.options.check_artifact(self.artifact)
        self.name = str(ctx.manifest["model"]["modelName"])
        self.version = str(ctx.manifest["model"]["modelVersion"])
        self._run = self._load(folder, ctx)
        self._batch_size = int(ctx.system_properties.get("batch_size") or 1)
        self._warm_up(self._batch_size)
        self._observer = observe(
            self.options, self.artifact, model=self.name, version=self.version, folder=folder
        )
        self._worker = str(os.getpid())
        if type(self).postprocess is CalibratedClassifier.postprocess:
            columns = label_columns if self.artifact.is_multilabel else prediction_columns
            self._columns = columns(self.options, self.artifact)
        else:
            self._columns = own_columns(
                lambda one: _ENCODE(self.postprocess(one)), multilabel=self.artifact.is_multilabel
            )

    def preprocess(self, payload: Payload) -> NDArray[Any]:
        """One request's payload as one input of the model, without the batch.

        Raise InputError for an invalid payload: its message is sent to the client as a 400.
        """
        o = self.options
        return decode(
            opened(payload),
            shape=o.input_shape,
            dtype=o.input_dtype,
            pictures=o.pictures,
            max_pixels=o.max_pixels,
        )

    def postprocess(self, prediction: Any) -> Any:
        """The reply to one request: anything that JSON can hold.

        ``prediction``: a Prediction, of a multi-label model a LabelsPrediction.
        """
        o, names, own = self.options, self.artifact.class_names, {"model": self.name, "version": self.version}
        if isinstance(prediction, LabelsPrediction):
            return of_labels(prediction, o, names, **own)
        return in_full(prediction, o, names, **own)

    def handle(self, data: Sequence[dict[str, Any]], ctx: Any) -> list[str]:
        """One JSON text per request, in order; failed requests have their own status."""
        check_requests(data, ctx)
        batch = self._one_array(data, ctx)
        if batch is not None:
            rows, tags = self._run_rows(batch), plain_tags(data, ctx)
            results = self._observed(rows, tags, invalid=sum(row is _INVALID for row in rows))
            return [self._reply(index, _PLAIN, [result], ctx) for index, result in enumerate(results)]
        requests = [self._asked(message) for message in read_messages(data, ctx)]
        return [
            self._reply(index, request, answer, ctx)
            for index, (request, answer) in enumerate(zip(requests, self._answers(requests), strict=True))
        ]

    def _load(self, folder: Path, ctx: Any) -> Run:
        return load_runtime(folder, self.options, self.artifact, device=device_of(ctx))

    def _warm_up(self, batch_size: int) -> None:
        shape = [1 if size is None else size for size in self.options.input_shape]
        told = self.options.outputs
        for n in sorted({1, batch_size}):
            scores = self._run(np.zeros((n, *shape), self.options.input_dtype))
            logits = to_logits(scores, told)
            if logits.shape[1] != self.artifact.classes:
                raise ModelError(
                    f"the model returns {logits.shape[1]} classes, "
                    f"the artifact is for {self.artifact.classes}"
                )
            if not np.isfinite(scores).all():
                continue  # on zeros alone
            found = measured(scores)
            if not np.isfinite(logits).all() or (found == "probabilities" and told in _LOGITS):
                raise ModelError(
                    f"the model returns {found}, and the archive says {told}; pack it with --outputs "
                    f"{found}, and an artifact that was fitted on such"
                )

    def _one_array(self, data: Sequence[dict[str, Any]], ctx: Any) -> NDArray[Any] | None:
        """All inputs at once, where each request is one JSON array; else each payload by itself."""
        if type(self).preprocess is not CalibratedClassifier.preprocess:
            return None
        o, payloads = self.options, [row.get("data", row.get("body")) for row in data]
        batch = decode_lists(payloads, shape=o.input_shape, dtype=o.input_dtype)
        if any(ctx.get_request_header(i, "explain") == "True" for i in range(len(data))):
            return None
        return batch

    def _asked(self, message: Message) -> Request:
        request = read_request(message, shape=self.options.input_shape)
        if message.headers.get("explain") == "True":
            return Request(message, refused="this model gives predictions, no explanations")
        if unknown := sorted(set(request.outputs) - self._columns.keys()):
            text = f"there is no output {unknown[0][:40]!r}; there are {', '.join(self._columns)}"
            return Request(message, refused=text)
        return request

    def _answers(self, requests: Sequence[Request]) -> list[list[Result]]:
        """Of each request one result a row, or the one reason why it has none."""
        payloads = [p for one in requests for p in (one.payloads or [Failure(400, one.refused)])]
        piece = max(self._batch_size, _PIECE)
        rows = [
            row
            for i in range(0, len(payloads), piece)
            for row in self._rows([self._read(payload) for payload in payloads[i : i + piece]])
        ]
        rest, invalid = iter(rows), sum(row is _INVALID for row in rows)
        own = [[next(rest) for _ in one.payloads or [None]] for one in requests]
        own = [
            part if one.refused or one.message.form == "plain" else all_or_none(part)
            for one, part in zip(requests, own, strict=True)
        ]
        tags = [
            tag
            for one, part in zip(requests, own, strict=True)
            for tag in (one.tags if len(part) == len(one.tags) else [Tag()] * len(part))
        ]
        results = iter(self._observed([row for part in own for row in part], tags, invalid=invalid))
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

    def _rows(self, inputs: list[NDArray[Any] | Failure]) -> list[Row | Failure]:
        rows: list[Row | Failure] = [item if isinstance(item, Failure) else _PENDING for item in inputs]
        by_kind: dict[tuple[Any, ...], list[int]] = {}
        for index, item in enumerate(inputs):
            if not isinstance(item, Failure):
                by_kind.setdefault((item.shape, item.dtype.str), []).append(index)
        for indices in by_kind.values():
            # Failed items keep their rows: in a batch of another size, some kernels would round the other
            # rows differently.
            places = range(len(inputs)) if len(by_kind) == 1 else indices
            blank = np.zeros_like(inputs[indices[0]])
            batch = np.stack([b if not isinstance(b := inputs[i], Failure) else blank for i in places])
            for i, row in zip(places, self._run_rows(batch), strict=True):
                if i in indices:
                    rows[i] = row
        return rows

    def _run_rows(self, batch: NDArray[Any]) -> list[Row | Failure]:
        try:
            logits = to_logits(self._run(batch), self.options.outputs)
            if len(logits) != len(batch):
                raise ModelError(f"the model returned {len(logits)} rows for {len(batch)} inputs")
        except (Exception, SystemExit) as error:  # a model may raise anything
            if len(batch) > 1:  # one input may be to blame: the others are run without it
                return [self._run_rows(batch[i : i + 1])[0] for i in range(len(batch))]
            log.warning("the model failed on an input: %s", type(error).__name__)
            return [Failure(500, "the model failed on this input")]
        finite = np.asarray(np.isfinite(logits).all(axis=1))
        fine = finite.tolist()
        probs = self.artifact.of_logits(logits if all(fine) else np.where(finite[:, None], logits, 0.0))
        return [(p, z) if ok else _INVALID for p, z, ok in zip(probs, logits, fine, strict=True)]

    def _observed(self, rows: list[Row | Failure], tags: Sequence[Tag], *, invalid: int) -> list[Result]:
        made = [row for row in rows if not isinstance(row, Failure)]
        own = [tag for tag, row in zip(tags, rows, strict=True) if not isinstance(row, Failure)]
        tell = self._labels if self.artifact.is_multilabel else self._classes
        told = iter(tell(made, own, invalid))
        return [row if isinstance(row, Failure) else next(told) for row in rows]

    def _classes(self, rows: list[Row], tags: Sequence[Tag], invalid: int) -> Sequence[AnyPrediction]:
        top = [int(p.argmax()) for p, _ in rows]
        said = [(k, min(float(p[k]), 1.0)) for (p, _), k in zip(rows, top, strict=True)]
        receipts = self._observer.served(said, logits=[z for _, z in rows], tags=tags, invalid=invalid)
        found = decide_rows(
            self.artifact,
            [p for p, _ in rows],
            abstain_below=self.options.abstain_below,
            segments=[tag.segment for tag in tags],
        )
        return [
            Prediction(p, *one, z, receipt, decided)
            for (p, z), one, receipt, decided in zip(rows, said, receipts, found, strict=True)
        ]

    def _labels(self, rows: list[Row], tags: Sequence[Tag], invalid: int) -> Sequence[AnyPrediction]:
        threshold = self.options.threshold
        told = decisions(
            self._observer, [p for p, _ in rows], threshold=threshold, tags=tags, invalid=invalid
        )
        return [
            LabelsPrediction(p, tuple(np.flatnonzero(p >= threshold).tolist()), one, z)
            for (p, z), one in zip(rows, told, strict=True)
        ]

    def _reply(self, index: int, request: Request, results: list[Result], ctx: Any) -> str:
        ctx.set_response_header(index, "x-calib-worker", self._worker)
        ctx.set_response_content_type(index, "application/json")
        end_stream(ctx, index)
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

    def _written(self, request: Request, predictions: list[AnyPrediction]) -> Any:
        form = request.message.form
        if form != "v2":
            replies = [self.postprocess(one) for one in predictions]
            return {"predictions": replies} if form == "v1" else replies[0]
        asked = request.outputs or self._columns
        outputs = [make(predictions) for name, make in self._columns.items() if name in asked]
        return v2_reply(request.message, outputs, model=self.name, version=self.version)


_ENCODE = json.JSONEncoder(allow_nan=False).encode  # made once: json.dumps would make one each time
_PLAIN = Request(Message("plain", None, {}))
_PIECE = 64  # rows decoded and run at once, if the model's batches are smaller
_PENDING = Failure(500, "the model gave no answer")
_INVALID = Failure(500, "the model's output for this input is NaN or infinite")
_LOGITS = ("logits", "label_logits")
_PHRASE = {400: "Bad Request", 500: "Internal Server Error"}


def device_of(ctx: Any) -> str:
    """Where this worker runs: the GPU the server gave it, else the CPU."""
    gpu = ctx.system_properties.get("gpu_id")
    if gpu is None:
        return "cpu"
    with contextlib.suppress(ImportError):
        import torch  # noqa: PLC0415

        if not torch.cuda.is_available():
            return "cpu"
    return f"cuda:{gpu}"
