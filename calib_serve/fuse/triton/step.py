"""Receipts and counters inside Triton's Python backend, and the step of an ensemble that adds them.

Counters are the same as in other servers, on Triton's own metrics port, and start at 0 for every bin. It
fails open: after a failure here the prediction goes out with an empty receipt.
"""

from __future__ import annotations

import importlib
import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import ModelError
from calib_serve.fuse.triton._pbtxt import fields
from calib_serve.receipts import (
    BY_NAME,
    KEYRING,
    LABEL_BUDGET,
    LEDGER,
    ROUNDING,
    SAMPLES,
    LiveKeyring,
    Recorder,
    SeriesKey,
    Tag,
    from_environment,
)

log = logging.getLogger(__name__)

Array = NDArray[Any]

VERSION = "calib_serve.version"
"""The graph's output that tells the step behind it which version it is."""


class TritonPythonModel:
    """The model that Triton calls: it passes the graph's outputs on, with one receipt per prediction.

    The keyring's path is in the environment variable CALIB_SERVE_KEYRING; without one, receipts
    are empty and predictions are counted all the same.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Read the settings and create every series at 0.

        Raises ModelError where this Triton misreads numpy's arrays, or caches responses.
        """
        self._triton = open_triton()
        config = json.loads(args["model_config"])
        self._names = [tensor["name"] for tensor in config["output"] if tensor["name"] != "receipt"]
        parameters = parameters_of(config)
        self._actions = json.loads(parameters.get("actions", "[]"))
        self._uncached = Uncached(Path(args["model_repository"]).parent / parameters["model"])
        refuse_cache(config)
        self._uncached.check()
        self._monitor = Monitor(self._triton, parameters)
        self._monitor.start(args["model_version"])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request, with one receipt per prediction; errors once its ensemble is cached."""
        try:
            self._uncached.check()
        except ModelError as error:
            refused = self._triton.TritonError(str(error))
            return [self._triton.InferenceResponse([], refused) for _ in requests]
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        version = str(int(self._array(request, VERSION).flat[0]))
        seen = [self._array(request, name) for name in ("confidence", "predicted")]
        # The graph's own version: while versions change, the step of one runs behind the graph of another.
        receipts = self._monitor.receipts(version, *seen)
        shown = with_names({name: self._array(request, name) for name in self._names}, self._actions)
        made = [self._triton.Tensor(name, array) for name, array in shown.items()]
        return self._triton.InferenceResponse([*made, self._triton.Tensor("receipt", receipts)])

    def _array(self, request: Any, name: str) -> Array:
        array: Array = self._triton.get_input_tensor_by_name(request, name).as_numpy()
        return array


class Monitor:
    """Counts a model's predictions on Triton's metrics port, and signs their receipts.

    ``parameters`` of its config: ``model``, ``bins``, and ``multilabel`` where it is that.
    """

    def __init__(self, triton: Any, parameters: Mapping[str, str]) -> None:
        path = from_environment(KEYRING)
        if path is None:
            log.warning("%s names no keyring: predictions are counted, and receipts are empty", KEYRING)
        for name in filter(from_environment, (LEDGER, LABEL_BUDGET, SAMPLES)):
            log.warning("%s is not read by Triton's step: all labels are asked for, no logits are kept", name)
        self._sink = _TritonSink(triton)
        self._keyring = (
            None if path is None else LiveKeyring(path, failed=lambda: self._sink.failed("keyring"))
        )
        self._model, self._bins = parameters["model"], int(parameters["bins"])
        self._multilabel = "multilabel" in parameters
        self._versions: dict[str, Recorder] = {}

    def start(self, version: str) -> Recorder:
        """The recorder of a version, whose series begin at 0 for every bin."""
        if version not in self._versions:
            self._versions[version] = Recorder(
                self._sink, model=self._model, version=version, bins=self._bins, keyring=self._keyring
            )
        return self._versions[version]

    def receipts(
        self, version: str, confidence: Array, predicted: Array, *, sign: bool = True
    ) -> NDArray[np.object_]:
        """One receipt per prediction: (n, 1), or one column a label, as in the arrays; b"" for none.

        Of labels, a receipt is of a decision, and the decisions of a row are a group (``watch.intake``).
        """
        recorder, tags = self.start(version), list[Tag]()
        if self._multilabel:
            labels = predicted.shape[-1]
            predicted = 2 * np.arange(labels) + predicted
            rows = [f"row {secrets.randbits(64):x}" for _ in range(confidence.size // labels)]
            tags = [Tag(group=row) for row in rows for _ in range(labels)]
        numbers = confidence.astype(np.float64).ravel()
        # Sums of half precision end a little above 1.
        numbers[(numbers > 1) & (numbers <= 1 + ROUNDING)] = 1.0
        at = np.flatnonzero((numbers >= 0) & (numbers <= 1)).tolist()
        pairs = list(zip(predicted.ravel()[at].tolist(), numbers[at].tolist(), strict=True))
        tags = [tags[i] for i in at] if tags else []
        recorder.count(pairs, tags, invalid=len(numbers) - len(at))
        tokens = recorder.sign(pairs, tags) if sign else [None] * len(at)
        recorder.settle()
        found = np.full(len(numbers), b"", np.object_)
        found[at] = [(token or "").encode() for token in tokens]
        return found.reshape(confidence.shape)


def refuse_cache(config: Mapping[str, Any]) -> None:
    """Raise ModelError where Triton keeps responses of a model: equal requests would share one receipt."""
    if config.get("response_cache", {}).get("enable"):
        raise ModelError(
            f"{config['name']} has response_cache {{ enable: true }}: equal requests would get one receipt, "
            "and count once; take it out of config.pbtxt, or fuse with --no-receipts"
        )


class Uncached:
    """Looks whether the ensemble in ``folder``, which is loaded for itself, begins to keep responses."""

    def __init__(self, folder: Path) -> None:
        self._path, self._seen = folder / "config.pbtxt", -1

    def check(self) -> None:
        """Raise ModelError while the ensemble's settings say so."""
        try:
            changed = self._path.stat().st_mtime_ns
            if changed != self._seen:
                told = fields(self._path.read_text("utf-8"))
                on = not {"true", "True", "t", "1"}.isdisjoint(told.get("response_cache", ()))
                refuse_cache({"name": self._path.parent.name, "response_cache": {"enable": on}})
                self._seen = changed
        except OSError:  # a repository that is no folder of this machine
            return


def with_names(arrays: Mapping[str, Array], actions: Sequence[str]) -> Mapping[str, Array]:
    """The outputs with the names of actions in place of their ids; b"" for the id -1, of none."""
    if not actions:
        return arrays
    texts = np.array([*(action.encode() for action in actions), b""], object)
    return {**arrays, "decision": texts[arrays["decision"]]}


def parameters_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of a model's config, which ``calib-serve fuse triton`` wrote."""
    return {key: value["string_value"] for key, value in config.get("parameters", {}).items()}


class _TritonSink:
    """Counters in Triton's metrics; one lives as long as its family."""

    def __init__(self, triton: Any) -> None:
        self._triton = triton
        self._families: dict[str, Any] = {}
        self._counters: dict[SeriesKey, Any] = {}

    def add_all(self, changes: Mapping[SeriesKey, float]) -> None:
        """Add to counters, as Sink says."""
        for key, value in changes.items():
            self._counter(key).increment(value)

    def failed(self, *stages: str, times: int = 1) -> None:
        """Count failures, as Sink says."""
        self.add_all({("calib_monitor_errors_total", (stage,)): times for stage in stages})

    def _counter(self, key: SeriesKey) -> Any:
        if key not in self._counters:
            name, values = key
            if name not in self._families:
                self._families[name] = self._triton.MetricFamily(
                    name=name, description=BY_NAME[name].help, kind=self._triton.MetricFamily.COUNTER
                )
            labels = dict(zip(BY_NAME[name].labels, values, strict=True))
            self._counters[key] = self._families[name].Metric(labels=labels)
        return self._counters[key]


def open_triton() -> Any:
    """Import the module that Triton gives to its Python models.

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
