"""The fused graph on onnxruntime inside Triton's Python backend, with receipts and counters."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.fuse.triton.step import Monitor, open_triton, parameters_of, refuse_cache, with_names
from calib_serve.models import open_session

Arrays = Mapping[str, NDArray[Any]]
_KINDS = {f"tensor({name})": name for name in ("float16", "uint8", "int8", "int32", "int64", "bool")}
_KINDS |= {"tensor(float)": "float32", "tensor(double)": "float64"}


class TritonPythonModel:
    """The model that Triton calls: the graph's inputs in, the requested outputs out.

    Requests that come together run as one batch. A request that the graph cannot take, or whose prediction is
    NaN, gets an error; those beside it do not.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Open the graph beside this model's file, on the device of this instance.

        Raises ModelError where it does not load there, or where this Triton misreads numpy's arrays or caches
        responses that have receipts.
        """
        self._triton = open_triton()
        config = json.loads(args["model_config"])
        parameters = parameters_of(config)
        self._version, self._batch = args["model_version"], int(config["max_batch_size"])
        path = Path(args["model_repository"]) / self._version / "model.onnx"
        self._session = open_session(path, **_place(args, config))
        self._names = [output.name for output in self._session.get_outputs()]
        self._monitor = None
        self._actions = json.loads(parameters.get("actions", "[]"))
        if "bins" in parameters:  # else it was packed without receipts
            refuse_cache(config)
            self._monitor = Monitor(self._triton, parameters)
            self._monitor.start(self._version)
        self._warm_up()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request."""
        feeds = [{tensor.name(): tensor.as_numpy() for tensor in one.inputs()} for one in requests]
        pairs = zip(requests, self._run_all(feeds), strict=True)
        return [self._response(set(request.requested_output_names()), made) for request, made in pairs]

    def _warm_up(self) -> None:
        """Run zeros of the common batch sizes, where shapes are known: Triton's warm-up would be counted."""
        entries = self._session.get_inputs()
        batches = [(rows,) for rows in sorted({1, self._batch})] if self._batch else [()]
        for batch in batches:
            shapes = {entry.name: (*batch, *entry.shape[len(batch) :]) for entry in entries}
            known = all(isinstance(d, int) for shape in shapes.values() for d in shape)
            if known and all(entry.type in _KINDS for entry in entries):
                self._run({e.name: np.zeros(shapes[e.name], _KINDS[e.type]) for e in entries})

    def _run_all(self, feeds: Sequence[Arrays]) -> list[Arrays | Exception]:
        """The outputs of each request, or its error."""
        if self._batch and len(feeds) > 1:
            rows = [len(next(iter(feed.values()))) for feed in feeds]
            try:
                made = self._run({name: np.concatenate([f[name] for f in feeds]) for name in feeds[0]})
                if all(len(array) == sum(rows) for array in made.values()):
                    parts = {name: np.split(array, np.cumsum(rows)[:-1]) for name, array in made.items()}
                    return [{name: parts[name][i] for name in parts} for i in range(len(feeds))]
            except Exception:  # noqa: S110 - one of them is at fault: each alone tells which
                pass
        return [self._alone(feed) for feed in feeds]

    def _alone(self, feed: Arrays) -> Arrays | Exception:
        try:
            return self._run(feed)
        except Exception as error:  # onnxruntime raises a dozen unrelated types
            return error

    def _run(self, feed: Arrays) -> Arrays:
        # Triton gives texts as bytes, of which onnxruntime would read "b'north'".
        texts = {n: np.char.decode(a.astype(bytes), "utf-8") for n, a in feed.items() if a.dtype == object}
        return dict(zip(self._names, self._session.run(self._names, {**feed, **texts}), strict=True))

    def _response(self, wanted: set[str], made: Arrays | Exception) -> Any:
        if isinstance(made, Exception):
            return self._refused(f"the model does not take this input: {made}")
        seen = [made[name] for name in ("confidence", "predicted")]
        invalid = ~np.isfinite(seen[0].astype(np.float64))
        if invalid.any():
            # Counted as invalid, though the request gets an error.
            self._receipts([array[invalid] for array in seen], sign=False)
            rows = np.flatnonzero(invalid.reshape(len(invalid), -1).any(axis=1)).tolist()
            return self._refused(f"the model's output is NaN or infinite for row {', '.join(map(str, rows))}")
        shown = {**with_names(made, self._actions), **self._receipts(seen, sign="receipt" in wanted)}
        tensors = [self._triton.Tensor(name, array) for name, array in shown.items() if name in wanted]
        return self._triton.InferenceResponse(tensors)

    def _receipts(self, seen: Sequence[NDArray[Any]], *, sign: bool) -> Arrays:
        """Count predictions (confidence, predicted); return their receipts, where they are monitored."""
        if self._monitor is None:
            return {}
        return {"receipt": self._monitor.receipts(self._version, *seen, sign=sign)}

    def _refused(self, why: str) -> Any:
        error = self._triton.TritonError(why, self._triton.TritonError.INVALID_ARG)
        return self._triton.InferenceResponse([], error)


def _place(args: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, Any]:
    """The device of this instance, and its share of the cores."""
    copies = sum(int(group["count"]) for group in config["instance_group"])
    threads = max(1, (os.cpu_count() or 1) // copies) if copies > 1 else None
    if args["model_instance_kind"] != "GPU":
        return {"device": "cpu", "threads": threads}
    return {"device": f"cuda:{args['model_instance_device_id']}"}
