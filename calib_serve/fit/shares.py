"""Class shares other than the calibration set's: estimated from traffic without labels, and corrected for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.bins import bin_index
from calib_serve.errors import CalibServeError, InputError
from calib_serve.fit.priors import class_shares_of, for_shares, referenced
from calib_serve.fit.samples import Samples, folds_of
from calib_serve.metrics.shares import (
    Confusion,
    EmShares,
    Given,
    ShareEstimate,
    as_shares,
    bbse,
    checked_probs,
    corrected,
    em,
)
from calib_serve.scores import Outputs, Scores

Floats = NDArray[np.float64]
Parts = Iterator[tuple[Union[slice, NDArray[np.intp]], Floats]]

_FOLDS = 5


@dataclass(frozen=True, eq=False)
class PriorEstimate:
    """The class shares of samples without labels, by two estimates; the first decides.

    ``counted``: of the predicted classes and confidences, by the confusion with labels on the calibration set
    (``calib_serve.metrics.shares.bbse``); it asks for nothing but label shift, and tests that. None where the
    artifact holds no confusion, and then ``unknown`` says why. ``likely``: of the probabilities themselves
    (``em``), which must be calibrated for each class.
    """

    counted: ShareEstimate | None
    likely: EmShares
    old: Floats
    unknown: str = ""
    class_names: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """One of same, moved, other (more than class shares has changed), unknown."""
        return "unknown" if self.counted is None else self.counted.kind

    @property
    def says(self) -> str:
        """In a sentence or two."""
        if self.counted is None:
            return f"Whether class shares alone have changed cannot be tested: {self.unknown}."
        return self.counted.says(self.class_names)

    @property
    def prior(self) -> Floats:
        """Shares (K,) to correct by, drawn towards the old ones as far as chance goes.

        InputError unless the tests say that class shares, and nothing else, have moved.
        """
        if self.counted is None or self.kind != "moved":
            raise InputError(f"there is nothing to correct class shares by. {self.says}")
        return self.counted.shrunk

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        likely = {"shares": self.likely.shares.tolist(), "error": self.likely.error.tolist()}
        counted = None if self.counted is None else self.counted.as_dict(self.class_names)
        found = {"kind": self.kind, "says": self.says, "old": self.old.tolist()}
        return {**found, "counted": counted, "likely": likely, "class_names": list(self.class_names)}


def estimate_prior(
    artifact: Artifact,
    scores: Any,
    *,
    outputs: Outputs | None = None,
    calibrated: bool = False,
) -> PriorEstimate:
    """The class shares of samples without labels, and whether shares alone differ from the calibration set.

    ``scores`` as for ``artifact.probs``, of the kind ``outputs``; or, with ``calibrated``, what the
    calibrated model returned, by default probabilities. Samples are taken to be independent. Raises
    InputError for an artifact that does not say under which class shares it was fitted, and of labels, and
    for scores that cannot be right.

    >>> from calib_serve.fit.calibrate import calibrate
    >>> rng = np.random.default_rng(0)
    >>> def drawn(shares, n):
    ...     labels = rng.choice(2, n, p=shares)
    ...     return rng.normal(size=(n, 2)) + 2 * np.eye(2)[labels], labels
    >>> artifact = calibrate(*drawn([0.5, 0.5], 2000), "temperature")
    >>> found = estimate_prior(artifact, drawn([0.8, 0.2], 2000)[0])
    >>> found.kind, found.counted.shares.round(1).tolist()
    ('moved', [0.8, 0.2])
    """
    old = class_shares_of(artifact)
    probs = _returned(artifact, scores, outputs) if calibrated else _calibrated(artifact, scores, outputs)
    if probs.shape[1] != artifact.classes:
        raise InputError(f"the artifact is of {artifact.classes} classes, the scores of {probs.shape[1]}")
    if not (old > 0).all():
        missing = np.flatnonzero(old <= 0)[:10].tolist()
        raise InputError(
            f"the calibration set had no sample of classes {missing}, whose shares cannot be told"
        )
    likely = em(probs, old)
    counted, unknown = None, ""
    try:
        confusion = Confusion.of(artifact.data.get("confusion"), artifact.classes)
    except InputError as error:
        unknown = str(error)
    else:
        counted = bbse(confusion, _seen(probs, confusion.bins), old=old)
    return PriorEstimate(counted, likely, old, unknown, artifact.class_names)


def with_prior(artifact: Artifact, prior: PriorEstimate | Given) -> Artifact:
    """The artifact corrected to other class shares: (K,), a mapping of class names to them, or an estimate.

    An estimate is refused unless class shares alone have moved. The artifact has no reference for monitoring
    any more: where you still have the calibration set, ``calibrate`` with ``prior`` keeps all of it. Raises
    InputError for shares that cannot be right, and where the calibration has no place for the correction (a
    mixture, a table of the top class).

    >>> from calib_serve.artifact import LogitMap
    >>> one = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2,
    ...     data={"class_shares": [0.5, 0.5]})
    >>> with_prior(one, [0.75, 0.25]).of_logits([[1.0, 1.0]]).round(9).tolist()
    [[0.75, 0.25]]
    """
    if isinstance(prior, PriorEstimate):
        how = "estimated from samples without labels"
        return for_shares(artifact, prior.prior, how=how)
    return for_shares(artifact, as_shares(prior, artifact.classes, artifact.class_names), how="given")


def fitted_for_shares(
    artifact: Artifact,
    samples: Samples,
    shares: Floats,
    again: Callable[[Samples], Artifact] | None,
    *,
    seed: int = 0,
) -> Artifact:
    """``artifact``, fitted to ``samples``, corrected to ``shares`` (K,), with its reference and confusion.

    These are of held-out folds where ``again`` fits the method to a part of the samples, else, and where a
    fold cannot be fitted, of the samples themselves.
    """
    old, made = class_shares_of(artifact), for_shares(artifact, shares, how="given")
    if again is not None:
        try:
            held = _held_out(samples, again, old, shares, seed)
            return referenced(made, samples, held, on="held-out folds")
        except CalibServeError:
            pass  # too few samples of a class: what they say is of the fit itself
    return referenced(made, samples, ((part, made.of_logits(chunk)) for part, chunk in samples.chunks()))


def _held_out(
    samples: Samples, again: Callable[[Samples], Artifact], old: Floats, new: Floats, seed: int
) -> Parts:
    fold = folds_of(samples, folds=min(_FOLDS, len(samples) // 2), seed=seed)
    for f in range(int(fold.max()) + 1):
        fitted, index = again(samples.take(fold != f)), np.flatnonzero(fold == f)
        for part, chunk in samples.take(index).chunks(np.float64):
            yield index[part], corrected(fitted.of_logits(chunk), old, new)


def _calibrated(artifact: Artifact, scores: ArrayLike, outputs: Outputs | None) -> Floats:
    if artifact.model_steps:
        raise InputError(
            "the artifact changes the model itself, so its scores alone are not enough; give the "
            "probabilities that the calibrated model returns, and say so with --calibrated (calibrated=True)"
        )
    return checked_probs(artifact.probs(scores, outputs=outputs))


def _returned(artifact: Artifact, scores: Any, outputs: Outputs | None) -> Floats:
    """What a calibrated model returned, as probabilities in the artifact's order of classes."""
    found = Scores.of(scores, outputs=outputs, expected="probabilities", name="the calibrated probabilities")
    return checked_probs(found.in_order(artifact.class_names).probs[:])


def _seen(probs: Floats, bins: int) -> Floats:
    """How often each class is predicted with a confidence in each bin (K, B)."""
    classes = probs.shape[1]
    index = probs.argmax(axis=1) * bins + bin_index(probs.max(axis=1), bins=bins)
    return np.bincount(index, minlength=classes * bins).reshape(classes, bins).astype(np.float64)
