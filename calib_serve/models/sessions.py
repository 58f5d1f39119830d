"""onnxruntime sessions on the requested device, or an error: never a silent fall-back."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from calib_serve.core.errors import InputError, MissingDependency, ModelError
from calib_serve.core.packages import check_onnxruntime

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

_HELP = (
    "uninstall onnxruntime and install 'calib-serve[gpu]', which has onnxruntime-gpu, with the CUDA "
    "libraries it names; or allow the fall-back (allow_fallback=True)"
)


def providers(device: str, options: Mapping[str, Any] | None = None) -> list[tuple[str, dict[str, Any]]]:
    """List the providers of onnxruntime, best first; operators that CUDA lacks run on the CPU.

    Args:
        device: "cpu", "cuda" or "cuda:1".
        options: Of the first of them.

    >>> providers("cuda:1")
    [('CUDAExecutionProvider', {'device_id': 1}), ('CPUExecutionProvider', {})]
    """
    kind, colon, index = device.partition(":")
    if device == "cpu":
        return [(_CPU, dict(options or {}))]
    if kind != "cuda" or (colon and not (index.isascii() and index.isdigit())):
        raise InputError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {device!r}")
    return [(_CUDA, {"device_id": int(index or 0), **(options or {})}), (_CPU, {})]


def open_session(
    path: str | Path | bytes,
    *,
    device: str = "cpu",
    threads: int | None = None,
    allow_fallback: bool = False,
    optimize: bool = True,
    options: Mapping[str, Any] | None = None,
    custom_ops: str | Path | None = None,
) -> Any:
    """Open an ``onnxruntime.InferenceSession`` of a model file.

    Args:
        path: File, or its bytes.
        device: "cpu", "cuda" or "cuda:1".
        threads: Intra-op threads; None for onnxruntime's choice (all cores; one per worker is better where
            workers share a host).
        allow_fallback: Whether another device will do.
        optimize: Whether onnxruntime may change the graph.
        options: Of the device's provider.
        custom_ops: Library of operators beside the standard ones, whose code is run.

    Raises:
        ModelError: When the model does not load, when onnxruntime did not take the requested GPU, and when
            several packages of onnxruntime spoil one another.
    """
    check_onnxruntime()
    try:
        import onnxruntime as ort  # noqa: PLC0415  # the package works without it
    except ImportError as error:
        raise MissingDependency("onnxruntime", "onnx") from error
    if threads is not None and threads < 1:
        raise InputError(f"threads must be at least 1, got {threads}")
    # A session on the CPU, where a GPU was asked for, would be right and far too slow: it is an error.
    wanted = providers(device, options)
    offered = ort.get_available_providers()
    first = wanted[0][0]
    if first not in offered and not allow_fallback:
        raise ModelError(f"{device} was asked for, but this onnxruntime offers {offered}; {_HELP}")
    if first != _CPU and hasattr(ort, "preload_dlls"):
        # CUDA from Python packages is not on the loader's path. What is missing is printed; the error below
        # says more.
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()
    settings = ort.SessionOptions()
    if not optimize:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.log_severity_level = 3  # errors only; failures are raised below
    if threads is not None:
        settings.intra_op_num_threads = threads
        # Operators beside one another would take the cores of other workers.
        settings.inter_op_num_threads = 1
    source = path if isinstance(path, bytes) else str(path)
    name = f"a model of {len(path)} bytes" if isinstance(path, bytes) else str(path)
    try:
        if custom_ops is not None:
            settings.register_custom_ops_library(str(custom_ops))
        session = ort.InferenceSession(source, settings, providers=[w for w in wanted if w[0] in offered])
    except Exception as error:  # onnxruntime raises a dozen unrelated types
        # The path once: where it is long, twice would cut the reason off in shorter messages.
        reason = str(error).replace(f"Load model from {name} failed:", "")
        raise ModelError(f"onnxruntime cannot load {name}: {reason}") from error
    taken = session.get_providers()
    if first not in taken and not allow_fallback:
        raise ModelError(f"{device} was asked for, but onnxruntime fell back to {taken}; {_HELP}")
    # A provider that fails later must not be replaced silently.
    if not allow_fallback:
        session.disable_fallback()
    return session


@contextlib.contextmanager
def stopped_after(seconds: float) -> Iterator[Any]:
    """Yield options that stop a session's run with an error after ``seconds``.

    A graph with a Loop may never end by itself.
    """
    import onnxruntime as ort  # noqa: PLC0415  # a session is open, so it is there

    options = ort.RunOptions()
    watchdog = threading.Timer(seconds, setattr, (options, "terminate", True))
    watchdog.daemon = True
    watchdog.start()
    try:
        yield options
    finally:
        watchdog.cancel()
