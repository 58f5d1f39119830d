"""An existing handler with a calibration around its inference.

Its preprocess, postprocess and reply format do not change: instead of logits it gets calibrated
log-probabilities, whose softmax are the calibrated probabilities. Receipts travel in the response header
``x-calib-receipt``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.errors import ModelError
from calib_serve.fuse.mar_options import ModelOptions
from calib_serve.metrics import log_probs
from calib_serve.receipts import SignedReceipt
from calib_serve.serve.observer import Tag, observe
from calib_serve.serve.runtime import check_file, to_logits

__all__ = ["CalibratedWrapper"]


class CalibratedWrapper:
    """Replaces the handler ``options.wraps`` of the archive."""

    options: ModelOptions
    artifact: Artifact

    def initialize(self, ctx: Any) -> None:
        """Make the wrapped handler load its model, then put the calibration around its inference."""
        folder = Path(ctx.system_properties["model_dir"])
        self.options = ModelOptions.read(ctx.model_yaml_config or {})
        self.artifact = Artifact.load(folder / self.options.artifact)
        if self.options.model:
            check_file(folder / self.options.model, self.options.sha256)
        self._inner = _handler_class(self.options.wraps or "")()
        self._inner.initialize(ctx)
        self._calibrate_model()
        self._inference = self._inner.inference
        self._inner.inference = self._calibrated
        model = ctx.manifest["model"]
        self._observer = observe(
            self.options, self.artifact, model=str(model["modelName"]), version=str(model["modelVersion"])
        )
        self._seen: list[tuple[float, SignedReceipt | None] | None] = []
        self._tags: list[Tag] = []
        self._worker = str(os.getpid())

    def handle(self, data: Sequence[dict[str, Any]], ctx: Any) -> Any:
        """The wrapped handler's reply; receipts and confidences go into the headers."""
        self._seen, self._tags = [], self._observer.tags(ctx)
        replies = self._inner.handle(data, ctx)
        requests = len(ctx.request_processor)
        for index in range(requests):
            ctx.set_response_header(index, "x-calib-worker", self._worker)
        # An envelope or a handler may make several rows of one request: then rows do not match requests.
        if len(self._seen) == requests:
            for index, seen in enumerate(self._seen):
                if seen is not None:
                    ctx.set_response_header(index, "x-calib-confidence", repr(seen[0]))
                    if seen[1] is not None:
                        ctx.set_response_header(index, "x-calib-receipt", seen[1])
                        if not seen[1].wanted:
                            ctx.set_response_header(index, "x-calib-label-wanted", "false")
        return replies

    def _calibrate_model(self) -> None:
        steps = self.artifact.model_steps
        if steps:
            from calib_serve.fuse.torch import calibrated  # noqa: PLC0415 - only these need torch

            self._inner.model = calibrated(
                self._inner.model,
                replace(self.artifact, steps=steps),
                returns="logits",
                last_linear=self.options.last_linear,
            )

    def _calibrated(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self._inference(*args, **kwargs)
        raw = outputs.detach().float().cpu().numpy() if hasattr(outputs, "detach") else np.asarray(outputs)
        logits = to_logits(raw, self.options.outputs)
        finite = np.asarray(np.isfinite(logits).all(axis=1))
        probs = self.artifact.probs(np.where(finite[:, None], logits, 0.0))
        top = probs.argmax(axis=1).tolist()
        shown = [(k, min(float(p[k]), 1.0)) for p, k, ok in zip(probs, top, finite, strict=True) if ok]
        receipts = iter(
            self._observer.served(
                shown, logits=list(logits[finite]), tags=self._tags_of(finite), invalid=int((~finite).sum())
            )
        )
        confidences = iter(shown)
        self._seen += [(next(confidences)[1], next(receipts)) if ok else None for ok in finite]
        result = probs if self.options.outputs == "probabilities" else log_probs(probs)
        result = np.where(finite[:, None], result, raw)  # what was NaN stays NaN
        return outputs.new_tensor(result) if hasattr(outputs, "new_tensor") else result.astype(raw.dtype)

    def _tags_of(self, finite: NDArray[np.bool_]) -> list[Tag]:
        """The tags of finite rows, where each row is one request's."""
        if len(self._tags) != len(finite):
            return []
        return [tag for tag, ok in zip(self._tags, finite, strict=True) if ok]


def _handler_class(name: str) -> Any:
    """The one class that ``name`` (a file of the archive, or a handler of TorchServe) defines."""
    module = _module(Path(name).name.removesuffix(".py"))
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "handle")
    ]
    if len(classes) != 1 or not hasattr(classes[0], "inference"):
        raise ModelError(
            f"the handler {name!r} is not one class with inference and handle; it cannot be wrapped"
        )
    return classes[0]


def _module(name: str) -> ModuleType:
    """Imported as TorchServe does: an importable file, else one of TorchServe's own."""
    for place in (name, f"ts.torch_handler.{name}"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name != place:
                raise ModelError(
                    f"the handler {name!r} needs the package {error.name!r}, which is not installed here"
                ) from error
    raise ModelError(f"there is no handler {name!r}, in the archive or in TorchServe")
