"""The installed package of onnxruntime: several install over one another, and pip does not mind."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from calib_serve.core.errors import ModelError

RUNTIMES = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-rocm",
    "onnxruntime-migraphx",
    "onnxruntime-silicon",
)
"""Packages of the one import name ``onnxruntime``."""
_EXTENSIONS = frozenset({"ai.onnx.contrib", "com.microsoft.extensions"})
"""Domains of the package onnxruntime-extensions: tokenizers, decoders of pictures and sound."""


def registered() -> dict[str, str]:
    """Find the packages of onnxruntime that pip knows here, with their versions."""
    found = {}
    for name in RUNTIMES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def operators_library(said: str | Path | None, domains: Iterable[str]) -> str | None:
    """The library of operators that a graph of these domains needs beside onnxruntime's; None: none is known.

    Args:
        said: The library by the user's word, which counts alone.
        domains: Domains of operators that the graph declares.
    """
    package = "onnxruntime_extensions"
    if said is None and not _EXTENSIONS.isdisjoint(domains) and find_spec(package) is not None:
        return str(import_module(package).get_library_path())
    return None if said is None else str(said)


def check_onnxruntime() -> None:
    """Check that there is one package of onnxruntime, and that its files are there.

    Raises ModelError where two of different versions lie over one another, or where the files of the one that
    is left went with another that was uninstalled. Two of the same version are a RuntimeWarning: the one that
    was installed last works.
    """
    found = registered()
    names = " and ".join(f"{name} {number}" for name, number in found.items())
    if len(found) > 1:
        told = (
            f"{names} are both installed, and overwrite each other's files; keep one: "
            f"pip uninstall -y {' '.join(found)}, then pip install 'calib-serve[onnx]', or [gpu] for a GPU"
        )
        if len(set(found.values())) > 1:
            raise ModelError(told)
        warnings.warn(told, RuntimeWarning, stacklevel=3)
    spec = find_spec("onnxruntime")
    if found and (spec is None or spec.origin is None):
        raise ModelError(
            f"{names} is installed, but its files went when another package of onnxruntime was uninstalled; "
            f"run: pip install --force-reinstall --no-deps {' '.join(f'{n}=={v}' for n, v in found.items())}"
        )
