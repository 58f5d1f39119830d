"""The step of a Triton ensemble that signs receipts and counts predictions, on the Python backend.

Counters are those of every other way to serve, on Triton's own metrics port, and start at 0 for
every bin. It fails open: whatever breaks in here, the prediction goes out, with an empty receipt.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calib_serve.errors import ModelError
from calib_serve.fuse.mar_options import KEYRING, from_environment
from calib_serve.receipts import Keyring

__all__ = ["TritonPythonModel"]

_PREDICTIONS = "calib_predictions_total"
_CONFIDENCE = "calib_predictions_confidence_total"
_INVALID = "calib_invalid_outputs_total"
_ERRORS = "calib_monitor_errors_total"
_HELP = {
    _PREDICTIONS: "Predictions served.",
    _CONFIDENCE: "Sum of their top-1 confidences.",
    _INVALID: "Model outputs with NaN or infinity.",
    _ERRORS: "Failures of the monitoring itself.",
}


class TritonPythonModel:
    """What Triton calls: confidence, predicted and bin in, one receipt a prediction out.

    The keyring's path is in the environment variable CALIB_SERVE_KEYRING; without one, receipts
    are empty and predictions are counted all the same.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Read the settings and create every series at 0.

        Raises ModelError where this Triton misreads numpy's arrays: every row would count as the first.
        """
        self._triton = importlib.import_module("triton_python_backend_utils")
        _refuse_misread_arrays(self._triton)
        parameters = json.loads(args["model_config"])["parameters"]
        self._model = parameters["model"]["string_value"]
        self._version = args["model_version"]
        path = from_environment(KEYRING)
        self._keyring = None if path is None else Keyring.load(path)
        self._families = {name: self._family(name) for name in _HELP}
        own = {"model": self._model, "version": self._version}
        bins = [{**own, "bin": str(b)} for b in range(int(parameters["bins"]["string_value"]))]
        self._predictions = [self._families[_PREDICTIONS].Metric(labels=b) for b in bins]
        self._confidence = [self._families[_CONFIDENCE].Metric(labels=b) for b in bins]
        self._invalid = self._families[_INVALID].Metric(labels=own)
        self._errors = {s: self._families[_ERRORS].Metric(labels={"stage": s}) for s in ("record", "receipt")}

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response a request, each with a receipt a prediction."""
        return [self._answer(request) for request in requests]

    def _family(self, name: str) -> Any:
        return self._triton.MetricFamily(
            name=name, description=_HELP[name], kind=self._triton.MetricFamily.COUNTER
        )

    def _answer(self, request: Any) -> Any:
        confidence, predicted, index = (
            self._triton.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("confidence", "predicted", "bin")
        )
        numbers = confidence.astype(np.float64).ravel().tolist()
        tokens = [
            self._served(c, int(k), int(b))
            for c, k, b in zip(numbers, predicted.ravel(), index.ravel(), strict=True)
        ]
        receipts = np.array([t.encode() for t in tokens], np.object_).reshape(confidence.shape)
        return self._triton.InferenceResponse([self._triton.Tensor("receipt", receipts)])

    def _served(self, confidence: float, predicted: int, index: int) -> str:
        if not math.isfinite(confidence):
            self._count(self._invalid, 1)
            return ""
        self._count(self._predictions[index], 1)
        self._count(self._confidence[index], confidence)
        if self._keyring is None:
            return ""
        try:
            return self._keyring.sign(
                model=self._model, version=self._version, predicted=predicted, confidence=confidence
            )
        except Exception:  # fails open
            self._count(self._errors["receipt"], 1)
            return ""

    def _count(self, metric: Any, amount: float) -> None:
        try:
            metric.increment(amount)
        except Exception:  # fails open
            self._errors["record"].increment(1)


def _refuse_misread_arrays(triton: Any) -> None:
    """Backends built for numpy 1 take numpy 2 and give arrays whose strides are 0."""
    if int(np.__version__.split(".")[0]) < 2:
        return
    sent = np.array([1.0, 2.0])
    if triton.Tensor.from_dlpack("probe", sent).as_numpy().tolist() != sent.tolist():
        raise ModelError(
            f"this Triton's Python backend misreads the arrays of numpy {np.__version__}; "
            'install "numpy<2" in its Python'
        )
