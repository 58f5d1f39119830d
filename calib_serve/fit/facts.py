"""What every fitter writes into its artifact besides the steps."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, ModelFacts, Step
from calib_serve.bins import Bins
from calib_serve.errors import ShapeError
from calib_serve.fit.samples import Samples

__all__ = ["complete", "data_fingerprint", "measured_on_folds", "reference_bins", "versions"]

_COUNTED = 10_000  # classes; of more, a manifest holds no counts
_HASHED_AT_ONCE = 1 << 24  # bytes; an array larger than memory is read in pieces


def versions(*packages: str) -> dict[str, str]:
    """The versions of Python, this package, numpy, and the named packages that are installed."""
    found = {name: _version(name) for name in ("calib-serve", "numpy", *packages)}
    return {"python": platform.python_version()} | {k: v for k, v in found.items() if v is not None}


@cache  # reading a package's metadata takes longer than a small fit
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def data_fingerprint(*arrays: NDArray[Any]) -> str:
    """The sha256 of the arrays' types, shapes and bytes, in order; of long ones, of each 16 MiB's sha256.

    >>> data_fingerprint(np.zeros(2)) == data_fingerprint(np.zeros(2))
    True
    >>> data_fingerprint(np.zeros(2)) == data_fingerprint(np.zeros((2, 1)))
    False
    """
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape};".encode())
        if array.nbytes <= _HASHED_AT_ONCE or array.ndim == 0:
            digest.update(np.ascontiguousarray(array).data)
            continue
        rows = max(1, _HASHED_AT_ONCE // (array.nbytes // len(array)))
        pieces = [array[start : start + rows] for start in range(0, len(array), rows)]
        with ThreadPoolExecutor() as pool:  # hashlib works outside the GIL
            for piece in pool.map(_sha256, pieces):
                digest.update(piece)
    return digest.hexdigest()


def _sha256(array: NDArray[Any]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).data).digest()


def reference_bins(probs: NDArray[np.floating[Any]], labels: ArrayLike, *, bins: int = 15) -> Bins:
    """The bins of calibrated probabilities (n, K) against class ids (n,), as a reference for monitoring."""
    y = np.asarray(labels)
    if probs.ndim != 2 or y.shape != probs.shape[:1]:
        raise ShapeError(f"probs (n, K) and labels (n,) do not fit: {probs.shape} and {y.shape}")
    return Bins.tally(np.clip(probs.max(axis=1), 0, 1), probs.argmax(axis=1) == y, bins=bins)


def complete(
    steps: Sequence[Step],
    samples: Samples,
    *,
    method: str,
    fit: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
    model: ModelFacts | Mapping[str, Any] | None = None,
    class_names: Sequence[str] = (),
    packages: Sequence[str] = (),
    reference: tuple[Bins, NDArray[np.intp]] | None = None,
) -> Artifact:
    """An artifact of ``steps`` with its facts: data, versions of ``packages``, reference bins and classes.

    ``samples`` hold the logits that the output steps act on; with an InputShift or a Head among
    the steps these are the logits of the model that already has them. ``reference`` are the bins and
    how often each class (K,) is predicted, where a fitter has them already.
    """
    artifact = Artifact(
        tuple(steps),
        method=method,
        classes=samples.classes,
        fit=fit,
        data={
            "samples": len(samples),
            # A fold's artifact is temporary: only whole files get a fingerprint.
            **({} if samples.rows is not None else _fingerprint(samples)),
            "weighted": samples.weight is not None,
            **(data or {}),
        },
        model=model or {},
        class_names=tuple(class_names),
        versions=versions(*packages),
    )
    bins, predicted = reference or (Bins.zeros(), np.zeros(samples.classes, np.intp))
    if reference is None:
        for part, chunk in samples.chunks():
            probs = artifact.probs(chunk)
            bins += reference_bins(probs, samples.labels[part])
            predicted += np.bincount(probs.argmax(axis=1), minlength=samples.classes)
    few = samples.classes <= _COUNTED
    return replace(artifact, reference=bins, reference_classes=predicted.tolist() if few else ())


def measured_on_folds(
    artifact: Artifact, before: Mapping[str, Any], after: Mapping[str, Any], *, folds: int, samples: int
) -> Artifact:
    """The artifact with metrics of ``samples`` calibration samples, each under a fit to the other folds."""
    on = {"measured_on": f"{folds} folds of the calibration set", "measured_samples": samples}
    return replace(artifact, before=before, after=after, data={**artifact.data, **on})


def _fingerprint(samples: Samples) -> dict[str, str]:
    return {"sha256": data_fingerprint(samples.logits, samples.labels)}
