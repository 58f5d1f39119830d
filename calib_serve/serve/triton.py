"""Receipts and counters inside Triton's Python backend, and the step of an ensemble that adds them.

Counters are the same as in other servers, on Triton's own metrics port, and start at 0 for every bin. It
fails open: after a failure here the prediction goes out with an empty receipt.
"""

from __future__ import annotations

import importlib
import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import ModelError
from calib_serve.fuse.mar_options import KEYRING, from_environment
from calib_serve.receipts import LiveKeyring
from calib_serve.serve.metric_lines import BY_NAME
from calib_serve.watch.series import PUBLISHED

__all__ = ["Monitor", "TritonPythonModel", "open_triton"]

Array = NDArray[Any]

_PREDICTIONS = tuple(one for one in PUBLISHED if one.of == "predictions")
_VERSION = "calib_serve.version"


class TritonPythonModel:
    """What Triton calls: the graph's outputs in, the same out, with one receipt per prediction.

    The keyring's path is in the environment variable CALIB_SERVE_KEYRING; without one, receipts
    are empty and predictions are counted all the same.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Read the settings and create every series at 0.

        Raises ModelError where this Triton misreads numpy's arrays.
        """
        self._triton = open_triton()
        config = json.loads(args["model_config"])
        self._names = [tensor["name"] for tensor in config["output"] if tensor["name"] != "receipt"]
        # Repositories of 0.1.0 send no version: there, the step's own is the graph's.
        self._told = any(tensor["name"] == _VERSION for tensor in config["input"])
        self._version = args["model_version"]
        parameters = config["parameters"]
        self._monitor = Monitor(
            self._triton,
            model=parameters["model"]["string_value"],
            bins=int(parameters["bins"]["string_value"]),
            multilabel="multilabel" in parameters,
        )
        self._monitor.start(self._version)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request, with one receipt per prediction."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        version = self._version
        if self._told:
            version = str(int(self._array(request, _VERSION).flat[0]))
        seen = [self._array(request, name) for name in ("confidence", "predicted", "bin")]
        receipts = self._monitor.receipts(version, *seen)
        made = [self._triton.Tensor(name, self._array(request, name)) for name in self._names]
        return self._triton.InferenceResponse([*made, self._triton.Tensor("receipt", receipts)])

    def _array(self, request: Any, name: str) -> Array:
        array: Array = self._triton.get_input_tensor_by_name(request, name).as_numpy()
        return array


class Monitor:
    """Counts a model's predictions on Triton's metrics port, and signs their receipts."""

    def __init__(self, triton: Any, *, model: str, bins: int, multilabel: bool = False) -> None:
        path = from_environment(KEYRING)
        self._keyring = None if path is None else LiveKeyring(path)
        self._triton, self._model, self._bins, self._multilabel = triton, model, bins, multilabel
        self._families: dict[str, Any] = {}  # a counter lives as long as its family
        self._versions: dict[str, _Counters] = {}
        stages = ("record", "receipt", "keyring")
        errors = self._create("calib_monitor_errors_total", [{"stage": stage} for stage in stages])
        self._errors = dict(zip(stages, errors, strict=True))
        if self._keyring is not None:
            self._keyring.failed = lambda: self._count(self._errors["keyring"], 1)

    def start(self, version: str) -> _Counters:
        """The series of a version, each at 0 for every bin."""
        if version not in self._versions:
            own = {"model": self._model, "version": version}
            labels = [{**own, "bin": str(b)} for b in range(self._bins)]
            sums = [(one, self._create(one.name, labels)) for one in _PREDICTIONS]
            (invalid,) = self._create("calib_invalid_outputs_total", [own])
            self._versions[version] = _Counters(sums, invalid)
        return self._versions[version]

    def receipts(
        self, version: str, confidence: Array, predicted: Array, index: Array, *, sign: bool = True
    ) -> NDArray[np.object_]:
        """One receipt per prediction, of the arrays' shape: (n, 1), or one column a label; b"" for none.

        Of labels, a receipt is of a decision, and the decisions of a row are a group (``watch.decisions``).
        """
        counters = self.start(version)
        groups = np.zeros(confidence.shape, np.int64)
        if self._multilabel:
            predicted = 2 * np.arange(predicted.shape[-1]) + predicted
            drawn = [(secrets.randbits(63) or 1) for _ in range(confidence.size // confidence.shape[-1])]
            groups = groups + np.array(drawn, np.int64).reshape(*confidence.shape[:-1], 1)
        numbers = confidence.astype(np.float64).ravel().tolist()
        rows = zip(numbers, predicted.ravel(), index.ravel(), groups.ravel(), strict=True)
        tokens = [
            self._served(version, counters, c, int(k), int(b), group=int(group) if sign else None)
            for c, k, b, group in rows
        ]
        return np.array([t.encode() for t in tokens], np.object_).reshape(confidence.shape)

    def _served(
        self,
        version: str,
        counters: _Counters,
        confidence: float,
        predicted: int,
        index: int,
        *,
        group: int | None,
    ) -> str:
        """Count a prediction; its receipt, if it is to have one: then it has a ``group``, 0 for none."""
        if not math.isfinite(confidence):
            self._count(counters.invalid, 1)
            return ""
        for one, metrics in counters.sums:
            self._count(metrics[index], one.adds(confidence, 0, 1))
        if self._keyring is None or group is None:
            return ""
        try:
            return self._keyring.current().sign(
                model=self._model, version=version, predicted=predicted, confidence=confidence, group=group
            )
        except Exception:  # fails open
            self._count(self._errors["receipt"], 1)
            return ""

    def _create(self, name: str, labels: Sequence[dict[str, str]]) -> list[Any]:
        """The counters of one series, each at 0."""
        if name not in self._families:
            self._families[name] = self._triton.MetricFamily(
                name=name, description=BY_NAME[name].help, kind=self._triton.MetricFamily.COUNTER
            )
        return [self._families[name].Metric(labels=one) for one in labels]

    def _count(self, metric: Any, amount: float) -> None:
        try:
            metric.increment(amount)
        except Exception:  # fails open
            self._errors["record"].increment(1)


@dataclass(frozen=True)
class _Counters:
    """The series of one version: a metric per bin for each sum, and one of predictions that are none."""

    sums: list[tuple[Any, list[Any]]]
    invalid: Any


def open_triton() -> Any:
    """The module that Triton gives to its Python models.

    Raises ModelError where arrays do not pass it: backends built for numpy 1 take numpy 2, but read every
    element as the first, and send strings of zero bytes.
    """
    triton = importlib.import_module("triton_python_backend_utils")
    sent = np.array([1.0, 2.0])
    # Every backend reads numpy 1; there, Triton 2.51 fails without end to free what it took by DLPack.
    if int(np.__version__.split(".")[0]) < 2:
        return triton
    if triton.Tensor.from_dlpack("probe", sent).as_numpy().tolist() != sent.tolist():
        raise ModelError(
            f"this Triton's Python backend misreads the arrays of numpy {np.__version__}; "
            'install "numpy<2" in its Python, or take Triton 25.01 or newer'
        )
    return triton
