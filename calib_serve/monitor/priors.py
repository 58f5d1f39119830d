"""The class shares of served predictions: labels are counted, the rest is estimated without them.

That goes by predicted classes and confidences alone.

A prevalence that moves (a season, a new customer) makes calibrated probabilities wrong, and is seen here
days before labels come. It is told from other changes by what class shares alone can explain
(``calib_serve.metrics.shares``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import Floats, finite
from calib_serve.core.errors import InputError
from calib_serve.metrics import Confusion, ShareEstimate, bbse
from calib_serve.monitor.estimates import Number, estimate
from calib_serve.monitor.windows import Window
from calib_serve.receipts import OTHER, Key, Sums, Version


@dataclass(frozen=True)
class LabelledBefore:
    """Confusion and class shares of a version's calibration set, or why they are unknown."""

    confusion: Confusion | None = None
    old: tuple[float, ...] = ()
    unknown: str = "the version is watched without its artifact"

    @classmethod
    def of(cls, artifact: Artifact) -> LabelledBefore:
        """Read the confusion and class shares of an artifact."""
        if artifact.is_multilabel:
            return cls(unknown="of a multi-label model each label has a share of its own")
        try:
            confusion = Confusion.of(artifact.data.get("confusion"), artifact.classes)
        except InputError as error:
            return cls(unknown=str(error))
        prior = artifact.fit.prior
        old = prior.new if prior else artifact.data.get("class_shares", ())
        return cls(confusion, tuple(old), "")


@dataclass(frozen=True)
class ClassShare:
    """One class: its share on the calibration set and now, with the accuracy where it is predicted.

    ``share`` counts what is labelled. ``expected`` is the accuracy under these shares if nothing else has
    changed; ``labelled`` what labels of mature predictions say, NaN without them.
    """

    name: str
    old: float
    share: float
    error: float
    low: float
    high: float
    expected: float
    labelled: Number


@dataclass(frozen=True)
class TrafficShares:
    """The class shares of a window.

    Args:
        version: Model and version.
        window: Name of the window.
        estimate: The shares and their tests; None where unknown.
        classes: Each class, with its accuracy.
        unknown: Why they are unknown; empty where they are not.
    """

    version: Version
    window: str
    estimate: ShareEstimate | None
    classes: tuple[ClassShare, ...] = ()
    unknown: str = ""

    @property
    def kind(self) -> str:
        """The kind of change: same, moved, other (more than class shares has changed) or unknown."""
        return "unknown" if self.estimate is None else self.estimate.kind

    @property
    def says(self) -> str:
        """The estimate in a sentence or two."""
        if self.estimate is None:
            return f"Not known: {self.unknown}."
        return self.estimate.says([one.name for one in self.classes])

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON; unknown values are null."""
        model, version = self.version
        found = self.estimate
        tests = {} if found is None else {"moved": found.moved.as_dict(), "fits": found.fits.as_dict()}
        numbers = {} if found is None else {"predictions": found.n, "misfit": found.misfit}
        named = {"model": model, "version": version, "window": self.window}
        classes = [
            {
                "class": one.name,
                "calibration": one.old,
                "share": one.share,
                "low": one.low,
                "high": one.high,
                "expected_accuracy": finite(one.expected),
                "labelled_accuracy": finite(one.labelled.value),
                "labelled_low": finite(one.labelled.low),
                "labelled_high": finite(one.labelled.high),
            }
            for one in self.classes
        ]
        return {**named, "kind": self.kind, "says": self.says, **numbers, **tests, "classes": classes}


def traffic_shares(
    served: Window, mature: Window, before: LabelledBefore, names: tuple[str, ...] = ()
) -> TrafficShares:
    """Estimate the class shares of ``served``; accuracy by labels of ``mature`` stands beside the expected.

    ``before``: what the calibration set said. ``names`` (K,) of the classes, or ().
    """
    found: ShareEstimate | None = None
    try:
        confusion = before.confusion
        if confusion is None:
            raise InputError(before.unknown)
        seen = _seen(served, confusion)
        # At this level a look every few minutes stays quiet for weeks.
        found = _counted(served, confusion, bbse(confusion, seen, old=before.old or None, level=1e-4), seen)
    except InputError as error:
        return TrafficShares(served.version, served.name, None, (), str(error))
    classes = []
    for k in range(len(found.shares)):
        labels = mature.slices.get(Key(*served.version, str(k), "class"), Sums.zeros(mature.bins))
        one = ClassShare(
            names[k] if names else str(k),
            old=float(found.old[k]),
            share=float(found.shares[k]),
            error=float(found.error[k]),
            low=float(found.low[k]),
            high=float(found.high[k]),
            # Where more than class shares has changed, the expected accuracy does not hold.
            expected=math.nan if found.kind == "other" else float(found.right[k]),
            labelled=estimate(labels).accuracy,
        )
        classes.append(one)
    return TrafficShares(served.version, served.name, found, tuple(classes))


def _counted(window: Window, confusion: Confusion, found: ShareEstimate, seen: Floats) -> ShareEstimate:
    """Count the classes of labelled predictions, and estimate those of the rest by what was predicted there.

    The error is of the process, as of all intervals: known ones vary by chance like any sample.
    """
    known, rest = np.zeros(confusion.classes), seen.copy()
    for key, sums in window.slices.items():
        if not key.name.isdecimal():
            continue
        if key.kind == "class":
            known[int(key.name)] += sums["calib_feedback_right"].sum()
            rest[int(key.name)] -= sums.labels
        elif key.kind == "truth":
            known[int(key.name)] += sums.labels.sum()
    n, total = float(known.sum()), float(seen.sum())
    if (
        not n or abs(n - float(window.sums.labels.sum())) > 0.5
    ):  # none, or counted before classes of labels were
        return found
    rest = rest.clip(0)
    left, shares, variance = max(total - n, 0.0), known / n, np.zeros(len(known))
    if left > 0.5:
        others = bbse(confusion, rest, old=found.old)
        shares = (known + left * others.shares) / (n + left)
        variance = (left / (n + left) * others.error) ** 2
    variance = variance + n / (n + left) ** 2 * shares * (1 - shares)
    return replace(found, shares=shares, error=np.sqrt(variance))


def _seen(window: Window, confusion: Confusion) -> Floats:
    """Count predictions by class and bin of confidence (K, B); InputError where classes are merged."""
    if window.bins != confusion.bins:
        raise InputError(f"the ledger has {window.bins} bins of confidence, the artifact {confusion.bins}")
    seen = np.zeros((confusion.classes, confusion.bins))
    for key, sums in window.slices.items():
        if key.kind != "class" or not sums.predictions.any():
            continue
        if key.name == OTHER:
            raise InputError(
                "the version has more classes than are counted apart (max_classes of the Watch), so that "
                "some are counted together"
            )
        if not (key.name.isdecimal() and int(key.name) < confusion.classes):
            raise InputError(
                f"predictions of a class {key.name} are counted, which the artifact does not have"
            )
        seen[int(key.name)] += np.maximum(sums.predictions, 0)
    total = float(window.sums.predictions.sum())
    if not seen.any():
        raise InputError("no predictions are counted in this window")
    if abs(seen.sum() - total) > 0.5:
        raise InputError("some predictions of this window were counted before classes were told apart")
    return seen
