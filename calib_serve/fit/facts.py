"""Facts that every fitter writes into its artifact besides the steps."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Examples, FitRecord, LogitMap, ModelFacts, Step
from calib_serve.core.bins import Bins
from calib_serve.core.errors import FitError
from calib_serve.fit.samples import Samples
from calib_serve.metrics import Confusion, confidence_of_labels, mean_error
from calib_serve.scores import ONE_COLUMN, Outputs

Parts = Iterable[tuple[Union[slice, NDArray[np.intp]], NDArray[np.float64]]]
"""Which samples, and their probabilities (m, K)."""

_SHARES = 1_000  # classes; of more, a manifest holds neither shares nor a confusion
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
    """Hash the arrays' types, shapes and bytes, in order, by sha256; long ones by that of each 16 MiB.

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


def tops_of(n: int, parts: Parts) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The predicted class and its confidence (n,) by ``parts``: which samples, and probabilities (m, K)."""
    top, confidence = np.empty(n, np.intp), np.empty(n)
    for part, probs in parts:
        top[part], confidence[part] = probs.argmax(axis=1), np.clip(probs.max(axis=1), 0, 1)
    return top, confidence


def remarked(artifact: Artifact, *, before: Sequence[str] = (), after: Sequence[str] = ()) -> Artifact:
    """Add sentences for the user to an artifact.

    Args:
        artifact: An artifact, which may have remarks.
        before: Sentences before its own remarks.
        after: Sentences after them.
    """
    told = (*before, *artifact.fit.remarks, *after)
    return replace(artifact, fit=replace(artifact.fit, remarks=told)) if told else artifact


def complete(
    steps: Sequence[Step],
    samples: Samples,
    *,
    method: str,
    fit: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
    model: ModelFacts | None = None,
    class_names: Sequence[str] = (),
    packages: Sequence[str] = (),
    reference: tuple[Bins, NDArray[np.intp]] | None = None,
) -> Artifact:
    """Make an artifact of ``steps`` with its facts: data, versions of ``packages``, reference bins, classes.

    ``fit`` are the method's own facts.
    ``samples`` hold the logits that the output steps act on; with an InputShift or a Head among
    the steps these are the logits of the model that already has them. ``reference`` are the bins and
    how often each class (K,) is predicted, where a fitter has them already.
    """
    artifact = Artifact(
        tuple(_of_one_column(step, samples.outputs) for step in steps),
        method=method,
        classes=samples.classes,
        fit=FitRecord(fit),
        model=model or ModelFacts(outputs=samples.outputs),
        class_names=tuple(class_names),
    )
    if samples.part:  # a fold's artifact is temporary: its probabilities are all that is asked for
        return artifact
    told: dict[str, Any] = {
        "samples": len(samples),
        "sha256": data_fingerprint(samples.logits, samples.labels),
        "weighted": samples.weight is not None,
        **_shares(samples),
        **(data or {}),
    }
    bins, predicted = reference or (Bins.zeros(), np.zeros(samples.classes, np.intp))
    parts = ((part, samples.probs(artifact, part, chunk)) for part, chunk in samples.chunks())
    if reference is None and artifact.is_multilabel:
        for part, probs in parts:
            # Every label's decision is a prediction, of confidence max(p, 1 - p).
            confidence, right = confidence_of_labels(probs, samples.labels[part])
            bins += Bins.tally(confidence.ravel(), right.ravel())
            predicted += (probs > 0.5).sum(axis=0)
    elif reference is None:
        top, confidence = tops_of(len(samples), parts)
        bins = Bins.tally(confidence, top == samples.labels)
        predicted = np.bincount(top, minlength=samples.classes)
        told["confusion"] = confusion_facts(samples, top, confidence, on="calibration set")
    few, examples = samples.classes <= 10_000, None  # of more, a manifest holds no counts
    kept = Examples.rows(len(samples), samples.classes)
    if len(kept):
        logits = np.asarray(samples.logits[kept if samples.rows is None else samples.rows[kept]], np.float64)
        examples = Examples(logits, artifact.of_segments(logits, artifact.rounds(len(logits))[0])[0])
    return replace(
        artifact,
        data=told,
        reference=bins,
        reference_classes=predicted.tolist() if few else (),
        examples=examples,
        versions=versions(*packages),
    )


def fit_none(samples: Samples) -> Artifact:
    """Fit nothing: an artifact without steps, with the same facts as any other."""
    return complete([], samples, method="none", fit={})


def _shares(samples: Samples) -> dict[str, Any]:
    """The class shares of the samples, weighted as in the fit: those that fitted probabilities hold for."""
    if samples.labels.ndim > 1 or samples.classes > _SHARES:
        return {}
    mass = np.bincount(samples.labels, weights=samples.weight, minlength=samples.classes)
    if samples.classes > 2:
        return {"class_shares": mass / mass.sum()}
    error = mean_error(samples.labels.astype(np.float64), samples.groups, samples.weight)
    return {"class_shares": mass / mass.sum(), "class_share_error": error}


def confusion_facts(
    samples: Samples, predicted: NDArray[np.intp], confidence: NDArray[np.float64], *, on: str
) -> dict[str, Any]:
    """Count the confusion that ``bbse`` needs: predictions of each class by label; or say why there is none.

    ``predicted`` and ``confidence`` (n,) of the calibrated samples; ``on`` says which these are.
    """
    if samples.classes > _SHARES:
        return {"unknown": f"confusions are kept of at most {_SHARES} classes, here are {samples.classes}"}
    if samples.weight is not None:
        least, most = np.full(samples.classes, np.inf), np.zeros(samples.classes)
        np.minimum.at(least, samples.labels, samples.weight)
        np.maximum.at(most, samples.labels, samples.weight)
        # Where all samples of a class weigh the same, it looks as it was sampled.
        if not (most <= least * (1 + 1e-9) + 1e-12).all():
            return {"unknown": "the calibration samples have weights that differ within a class"}
    return Confusion.tally(predicted, confidence, samples.labels, classes=samples.classes, on=on).facts


def _of_one_column(step: Step, outputs: Outputs) -> Step:
    """Turn a map of the logits (0, z), which a model of one column has, into a map of z alone.

    A number added to both logits then changes nothing. Log-probabilities of one probability are
    normalised, and a map of them says so. FitError for a map that would turn the order of z around.
    """
    if outputs not in ONE_COLUMN or not isinstance(step, LogitMap):
        return step
    if step.on == "log_probs" or not step.weight.ndim:
        return step
    if outputs == "probability":
        return LogitMap(step.weight, step.bias, "log_probs")
    w = step.weight[1] if step.weight.ndim == 1 else step.weight[1, 1] - step.weight[0, 1]
    if not w > 0:
        raise FitError(
            "the map would turn the order of the logits around: the share of class 1 falls where they rise; "
            "check that the labels belong to them, and that 1 is the class that they speak of"
        )
    return LogitMap(w, None if step.bias is None else np.array([0.0, step.bias[1] - step.bias[0]]))
