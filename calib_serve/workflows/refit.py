"""The calibration that is served now, fitted again on recent samples and kept if it is better."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.bins import Bins, bin_index
from calib_serve.errors import FitError, InputError
from calib_serve.fit.samples import Samples
from calib_serve.fuse.torchserve import served_artifact
from calib_serve.metrics import log_probs
from calib_serve.receipts import DAY
from calib_serve.watch.drift import psi
from calib_serve.watch.samples import read_samples
from calib_serve.workflows.fit_scores import calibrate
from calib_serve.workflows.measure import percent
from calib_serve.workflows.progress import Progress

__all__ = ["Refitted", "refit", "refit_served"]

_LEAST = 200  # labelled samples, below which nothing is fitted
_HELD_OUT = 0.3  # the latest share of them, on which old and new are compared


@dataclass(frozen=True, eq=False)
class Refitted:
    """The new artifact, or None when it is no better, and the numbers that decided.

    ``nll`` and ``ece`` hold (current, new) on the latest ``held_out`` samples, on which neither was
    fitted; ``gain`` is the fall of the NLL and ``error`` its standard error, in pairs. ``shift`` is how far
    confidences and predicted classes of all samples are from those of the calibration set: the population
    stability index, and how much of one chance alone would show.
    """

    artifact: Artifact | None
    samples: int
    held_out: int
    nll: tuple[float, float]
    ece: tuple[float, float]
    gain: float
    error: float
    shift: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kept": self.artifact is not None,
            "method": self.artifact.method if self.artifact else None,
            "samples": self.samples,
            "held_out": self.held_out,
            "nll": {"current": self.nll[0], "new": self.nll[1]},
            "ece": {"current": self.ece[0], "new": self.ece[1]},
            "gain": self.gain,
            "standard_error": self.error,
            "shift": {name: {"psi": psi, "by_chance": chance} for name, (psi, chance) in self.shift.items()},
        }

    def says(self) -> str:
        """Some lines for a person."""
        moved = (
            f"{name} against those of the calibration set: PSI {psi:.2f}, {chance:.2f} by chance\n"
            for name, (psi, chance) in self.shift.items()
        )
        numbers = "".join(moved) + (
            f"on the latest {self.held_out} of {self.samples} samples: NLL {self.nll[0]:.4f} -> "
            f"{self.nll[1]:.4f}, ECE {percent(self.ece[0])} -> {percent(self.ece[1])}"
        )
        if self.artifact is None:
            return f"{numbers}\nnot better by more than its standard error; the current one stays"
        return f"{numbers}\nbetter: {self.artifact.method}, fitted on all of them"


def refit(
    current: Artifact,
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    method: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> Refitted:
    """Fit the output steps again; the input shift and the head stay.

    ``logits`` (n, K) and class ids ``labels`` (n,) are what was served, oldest first; logits of the model
    with its input shift and head in place. The new artifact must lower the NLL of the latest 30 %, which
    it was not fitted to, by more than one standard error of the paired difference; then it is fitted on all
    samples. Raises FitError for fewer than 200 samples, ShapeError and InputError for arrays that cannot
    be right.
    """
    samples = Samples.of(logits, labels)
    n = len(samples)
    if n < _LEAST:
        raise FitError(f"{n} labelled samples; at least {_LEAST} are needed to fit and to judge")
    if samples.classes != current.classes:
        raise InputError(f"the samples have {samples.classes} classes, the artifact {current.classes}")
    cut = n - int(n * _HELD_OUT)
    z, y = samples.logits, samples.labels
    trial = _fitted(current, z[:cut], y[:cut], method=method, seed=seed, progress=progress)
    rows = np.arange(n - cut)
    probs = [artifact.probs(z[cut:]) for artifact in (current, trial)]
    old, new = (-log_probs(p[rows, y[cut:]]) for p in probs)
    gain, error = float((old - new).mean()), float((old - new).std(ddof=1) / np.sqrt(n - cut))
    before, after = (Bins.tally(p.max(axis=1), p.argmax(axis=1) == y[cut:]).ece() for p in probs)
    better = gain > error
    return Refitted(
        _fitted(current, z, y, method=method, seed=seed, progress=progress) if better else None,
        samples=n,
        held_out=n - cut,
        nll=(float(old.mean()), float(new.mean())),
        ece=(before, after),
        gain=gain,
        error=error,
        shift=_shift(current, current.probs(z)),
    )


def refit_served(
    served: str | Path,
    samples: str | Path,
    *,
    name: str = "",
    version: str = "",
    days: float = 7.0,
    method: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> Refitted:
    """``refit`` of what is ``served``, an archive (.mar) or an artifact's folder, on its sampled predictions.

    ``samples``: the folder that the server keeps them in; those of the last ``days`` are used. ``name``
    and ``version`` of the model: an archive knows its own.
    """
    current, name, version = _served(Path(served), name, version)
    found = read_samples(samples, model=name, version=version, since=time.time() - days * DAY)
    if len(found.labels) < _LEAST:
        raise FitError(
            f"{len(found.labels)} labelled samples of {found.predictions} kept predictions; at least "
            f"{_LEAST} are needed: look farther back, keep a larger share, or wait for labels"
        )
    return refit(current, found.logits, found.labels, method=method, seed=seed, progress=progress)


def _served(served: Path, name: str, version: str) -> tuple[Artifact, str, str]:
    """The artifact that is served now, and under which name and version."""
    if served.suffix == ".mar":
        artifact, own_name, own_version = served_artifact(served)
        return artifact, name or own_name, version or own_version
    if not (name and version):
        raise InputError(
            "an artifact does not know where it is served; give its name and version (--name and --version)"
        )
    return Artifact.load(served), name, version


def _shift(current: Artifact, probs: NDArray[np.float64]) -> dict[str, tuple[float, float]]:
    """Of what was served against what the artifact was fitted on, as far as it tells."""
    pairs = {}
    if current.reference is not None and current.reference.n:
        bins = bin_index(np.minimum(probs.max(axis=1), 1.0), bins=len(current.reference))
        pairs["confidences"] = (bins, current.reference.count)
    if sum(current.reference_classes):
        pairs["predicted classes"] = (probs.argmax(axis=1), np.array(current.reference_classes))
    found = {}
    for name, (served, known) in pairs.items():
        chance = (np.count_nonzero(known) - 1) * (1 / len(served) + 1 / known.sum())
        found[name] = (psi(np.bincount(served, minlength=len(known)), known), float(chance))
    return found


def _fitted(
    current: Artifact,
    logits: NDArray[Any],
    labels: NDArray[np.intp],
    *,
    method: str,
    seed: int,
    progress: Progress | None,
) -> Artifact:
    """The current artifact with new output steps, and the reference bins of these samples."""
    fresh = calibrate(
        logits,
        labels,
        method,
        class_names=current.class_names,
        cross_validate=False,
        seed=seed,
        progress=progress,
    )
    return replace(
        fresh,
        steps=(*current.model_steps, *fresh.steps),
        model=current.model,
        data={**fresh.data, "refit_of": current.fingerprint},
    )
