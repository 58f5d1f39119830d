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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.errors import InputError, ModelError
from calib_serve.fuse.mar_options import ModelOptions
from calib_serve.receipts import SignedReceipt
from calib_serve.serve.inputs import ImageOptions, Payload, decode, decode_lists
from calib_serve.serve.observer import Tag, observe
from calib_serve.serve.runtime import Run, load_runtime, to_logits

__all__ = ["CalibratedClassifier", "Failure", "Prediction"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Prediction:
    """One prediction: ``probabilities`` (K,) float64 of ``logits``; ``receipt`` None if receipts are off."""

    probabilities: NDArray[np.float64]
    predicted: int
    confidence: float
    logits: NDArray[Any]
    receipt: SignedReceipt | None = None


@dataclass(frozen=True)
class Failure:
    """Why one item has no prediction; ``reason`` is shown to the client."""

    status: int
    reason: str


Result = Union[Prediction, Failure]
Row = tuple[NDArray[np.float64], int, float, NDArray[Any]]  # a Prediction's fields, before its receipt


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
        folder = Path(ctx.system_properties["model_dir"])
        self.options = ModelOptions.read(ctx.model_yaml_config or {})
        self.artifact = Artifact.load(folder / self.options.artifact)
        self.name = str(ctx.manifest["model"]["modelName"])
        self.version = str(ctx.manifest["model"]["modelVersion"])
        self._run = self._load(folder, ctx)
        self._warm_up(int(ctx.system_properties.get("batch_size") or 1))
        self._observer = observe(self.options, self.artifact, model=self.name, version=self.version)
        self._worker = str(os.getpid())

    def preprocess(self, payload: Payload) -> NDArray[Any]:
        """One request's payload as one input of the model, without the batch.

        Raise InputError for an invalid payload: its message is sent to the client as a 400.
        """
        o = self.options
        image = ImageOptions(o.mean, o.std, o.max_pixels)
        return decode(payload, shape=o.input_shape, dtype=o.input_dtype, image=image)

    def postprocess(self, prediction: Prediction) -> Any:
        """The reply to one request: anything that JSON can hold."""
        p, names = prediction.probabilities.tolist(), self.artifact.class_names
        reply: dict[str, Any] = {
            "predicted": prediction.predicted,
            **({"label": names[prediction.predicted]} if names else {}),
            "confidence": prediction.confidence,
            "model": self.name,
            "version": self.version,
        }
        if self.options.top:
            order = np.argsort(-prediction.probabilities, kind="stable")[: self.options.top].tolist()
            reply["top"] = [
                {"class": k, **({"label": names[k]} if names else {}), "probability": p[k]} for k in order
            ]
        if self.options.probabilities:
            reply["probabilities"] = p
        if self.options.abstain_below is not None:
            reply["abstain"] = prediction.confidence < self.options.abstain_below
        if prediction.receipt is not None:
            reply["receipt"] = prediction.receipt
            if not prediction.receipt.wanted:
                reply["label_wanted"] = False
        return reply

    def handle(self, data: Sequence[dict[str, Any]], ctx: Any) -> list[str]:
        """One JSON text per item, in order; failed items have their own status."""
        results = self._predict(self._read_all(data), self._observer.tags(ctx))
        return [self._reply(index, result, ctx) for index, result in enumerate(results)]

    def _load(self, folder: Path, ctx: Any) -> Run:
        return load_runtime(folder, self.options, self.artifact, device=device_of(ctx))

    def _warm_up(self, batch_size: int) -> None:
        shape = [1 if size is None else size for size in self.options.input_shape]
        for n in sorted({1, batch_size}):
            outputs = to_logits(
                self._run(np.zeros((n, *shape), self.options.input_dtype)), self.options.outputs
            )
            if outputs.shape[1] != self.artifact.classes:
                raise ModelError(
                    f"the model returns {outputs.shape[1]} classes, "
                    f"the artifact is for {self.artifact.classes}"
                )

    def _read_all(self, data: Sequence[dict[str, Any]]) -> NDArray[Any] | list[NDArray[Any] | Failure]:
        """One array if possible, else one input per item."""
        if type(self).preprocess is CalibratedClassifier.preprocess:
            # Fast path for the whole batch; all other payloads are decoded one by one.
            o, payloads = self.options, [row.get("data", row.get("body")) for row in data]
            batch = decode_lists(payloads, shape=o.input_shape, dtype=o.input_dtype)
            if batch is not None:
                return batch
        return [self._read(row) for row in data]

    def _read(self, row: dict[str, Any]) -> NDArray[Any] | Failure:
        payload = row.get("data", row.get("body"))
        if payload is None or (isinstance(payload, (bytes, bytearray, str)) and not payload):
            return Failure(400, "the request has no body")
        try:
            return self.preprocess(payload)
        except InputError as error:
            return Failure(400, str(error))
        except (Exception, SystemExit) as error:  # a subclass's preprocess may raise anything
            return Failure(400, f"the input cannot be read ({type(error).__name__})")

    def _predict(
        self, inputs: NDArray[Any] | list[NDArray[Any] | Failure], tags: Sequence[Tag]
    ) -> list[Result]:
        if isinstance(inputs, np.ndarray):
            return self._observed(self._run_rows(inputs), tags)
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
        return self._observed(rows, tags)

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
        probs = self.artifact.probs(logits if all(fine) else np.where(finite[:, None], logits, 0.0))
        top = probs.argmax(axis=1).tolist()
        return [
            (p, k, min(float(p[k]), 1.0), z) if ok else _INVALID
            for p, k, z, ok in zip(probs, top, logits, fine, strict=True)
        ]

    def _observed(self, rows: list[Row | Failure], tags: Sequence[Tag]) -> list[Result]:
        made = [row for row in rows if not isinstance(row, Failure)]
        receipts = iter(
            self._observer.served(
                [(predicted, confidence) for _, predicted, confidence, _ in made],
                logits=[logits for *_, logits in made],
                tags=[tag for tag, row in zip(tags, rows, strict=False) if not isinstance(row, Failure)],
                invalid=sum(row is _INVALID for row in rows),
            )
        )
        return [row if isinstance(row, Failure) else Prediction(*row, next(receipts)) for row in rows]

    def _reply(self, index: int, result: Result, ctx: Any) -> str:
        ctx.set_response_header(index, "x-calib-worker", self._worker)
        ctx.set_response_content_type(index, "application/json")
        if isinstance(result, Prediction):
            try:
                return _ENCODE(self.postprocess(result))
            except (Exception, SystemExit) as error:  # a subclass's postprocess may raise anything
                log.warning("postprocess failed: %s", type(error).__name__)
                result = Failure(500, "the reply could not be written")
        ctx.set_response_status(result.status, _PHRASE[result.status], index)
        return json.dumps({"code": result.status, "message": result.reason})


_ENCODE = json.JSONEncoder(allow_nan=False).encode  # made once: json.dumps would make one each time
_PENDING = Failure(500, "the model gave no answer")
_INVALID = Failure(500, "the model's output for this input is NaN or infinite")
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
