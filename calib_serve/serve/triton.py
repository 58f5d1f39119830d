"""The step of a Triton ensemble that signs receipts and counts predictions, on the Python backend.

Counters are the same as in other servers, on Triton's own metrics port, and start at 0 for every bin. It
fails open: after a failure here the prediction goes out with an empty receipt.
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
from calib_serve.serve.metric_lines import BY_NAME
from calib_serve.watch.series import PUBLISHED

__all__ = ["TritonPythonModel"]

_PREDICTIONS = tuple(one for one in PUBLISHED if one.of == "predictions")


class TritonPythonModel:
    """What Triton calls: confidence, predicted and bin in, one receipt per prediction out.

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
        self._create_counters(int(parameters["bins"]["string_value"]))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request, with one receipt per prediction."""
        return [self._answer(request) for request in requests]

    def _create_counters(self, bins: int) -> None:
        self._families: list[Any] = []  # a counter lives as long as its family
        own = {"model": self._model, "version": self._version}
        labels = [{**own, "bin": str(b)} for b in range(bins)]
        counters = [self._counters(one.name, labels) for one in _PREDICTIONS]
        self._sums = list(zip(_PREDICTIONS, counters, strict=True))
        (self._invalid,) = self._counters("calib_invalid_outputs_total", [own])
        stages = ("record", "receipt")
        errors = self._counters("calib_monitor_errors_total", [{"stage": stage} for stage in stages])
        self._errors = dict(zip(stages, errors, strict=True))

    def _counters(self, name: str, labels: Sequence[dict[str, str]]) -> list[Any]:
        """The counters of one series, each at 0."""
        family = self._triton.MetricFamily(
            name=name, description=BY_NAME[name].help, kind=self._triton.MetricFamily.COUNTER
        )
        self._families.append(family)
        return [family.Metric(labels=one) for one in labels]

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
        for one, counters in self._sums:
            self._count(counters[index], one.adds(confidence, 0, 1))
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
