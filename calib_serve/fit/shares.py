"""Prior shift: class shares estimated from unlabelled traffic, and artifacts corrected to them.

The correction is Bayes' rule as a part of the steps, and acts on what is calibrated. Weighing the
calibration samples by new / old share instead would fit the same steps to other samples: a temperature,
which treats all classes alike, cannot express a change of their shares however it is fitted, and a few
heavy samples add noise. So there is this one way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calib_serve.artifact import Artifact, Examples, LogitMap, PriorCorrection, ProbTable, Step
from calib_serve.core.arrays import Floats
from calib_serve.core.bins import Bins, bin_index
from calib_serve.core.errors import CalibServeError, InputError
from calib_serve.fit.facts import Parts, confusion_facts, tops_of
from calib_serve.fit.folds import FOLDS, fits_of_folds, folds_of
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.output.tables import default_of
from calib_serve.fit.samples import Samples
from calib_serve.metrics import (
    ClassShares,
    Confusion,
    ShareEstimate,
    as_shares,
    bbse,
    corrected,
)
from calib_serve.scores import Outputs, Scores

_LOST = "its class shares were corrected without labelled samples; fit it again, with these as prior"


def class_shares_of(artifact: Artifact) -> Floats:
    """The class shares (K,) that the artifact's probabilities hold for: of its fit, or corrected to.

    InputError where the artifact does not say, or a class had no sample.
    """
    if artifact.is_multilabel:
        raise InputError(
            "class shares are of classes of which one is true; the labels of a multi-label model have a "
            "share each, which is not corrected: fit it on data like those that will be served"
        )
    prior = artifact.fit.prior
    known = prior.new if prior else artifact.data.get("class_shares")
    if known is None:
        raise InputError(
            "the artifact does not say under which class shares it was fitted: it has more than 1,000 "
            "classes, or was not made by a fit; fit it again"
        )
    shares = np.asarray(known, np.float64)
    if not (shares > 0).all():
        missing = np.flatnonzero(shares <= 0)[:10].tolist()
        raise InputError(
            f"no calibration sample is of classes {missing}: their shares cannot be told, nor corrected; "
            "calibrate on samples of every class"
        )
    return shares


def for_shares(artifact: Artifact, new: Floats, *, how: str) -> Artifact:
    """The artifact with probabilities that are right under class shares ``new`` (K,).

    ``fit.prior`` holds the old and new shares and ``how`` the new ones are known. What was measured before
    and after is of the calibration without this correction. The reference and the confusion are not kept:
    they are of other probabilities; see ``referenced``. Raises InputError where the correction cannot be
    expressed by the steps, where a class was not in the calibration set, and for sets, abstention and
    actions, which were found under the old shares.
    """
    old = class_shares_of(artifact)
    if artifact.source_maps is not None:
        raise InputError("class shares are of all traffic, and its maps are by source: fit one map for all")
    if any(one is not None for one in (artifact.sets, artifact.abstain, artifact.choice)):
        raise InputError(
            "its prediction sets, abstention and actions were found under the old class shares and would not "
            "keep their promise; correct the artifact without them, and find them anew on samples of new ones"
        )
    shares = as_shares(new, artifact.classes)
    steps = _corrected(artifact, shares / old)
    # After an earlier correction still the calibration set's shares: the reference is weighed by them.
    first = artifact.fit.prior.old if artifact.fit.prior else tuple(old.tolist())
    on = artifact.data.get("measured_on")
    told = {} if on is None else {"measured_on": f"{on}, before the correction of class shares"}
    prior = PriorCorrection(first, tuple(shares.tolist()), how, **_shift(artifact, first, shares))
    made = replace(
        artifact.only(*steps),
        fit=replace(artifact.fit, prior=prior),
        data={**artifact.data, **told, "confusion": {"unknown": _LOST}},
        reference=None,
        reference_classes=(),
        contract=artifact.contract,  # a promise to users, whatever it is kept with
    )
    kept = artifact.examples
    if kept is None:
        return made
    return replace(made, examples=Examples(kept.logits, made.of_logits(kept.logits)))


def _shift(artifact: Artifact, old: tuple[float, ...], new: Floats) -> dict[str, float]:
    """The shift of the intercept of two classes, and its error where the fit's shares have one."""
    if artifact.classes != 2:
        return {}
    odds = [math.log(share[1] / share[0]) if share[1] > 0 < share[0] else math.nan for share in (old, new)]
    error = artifact.data.get("class_share_error")
    # The delta method: d log(s / (1 - s)) = ds / (s (1 - s)).
    of_share = {} if error is None else {"shift_error": float(error) / (old[0] * old[1])}
    return {"shift": odds[1] - odds[0], **of_share}


def referenced(
    artifact: Artifact,
    samples: Samples,
    parts: Parts,
    *,
    on: str = "calibration set",
) -> Artifact:
    """The artifact with reference bins, classes and confusion of calibrated ``parts`` of its samples.

    ``parts``: which samples, and their probabilities (m, K) under this very artifact. Each sample weighs as
    its class does under ``fit.prior``, so that the reference is what traffic of these shares will show.
    """
    ratio = np.ones(samples.classes)
    if prior := artifact.fit.prior:
        ratio = np.asarray(prior.new) / np.asarray(prior.old)
    top, confidence = tops_of(len(samples), parts)
    # As the new shares would have it, so that traffic under them shows no drift.
    weight = ratio[samples.labels] * samples.weights
    index, right = bin_index(confidence, bins=15), (top == samples.labels) * weight
    sums = [
        np.bincount(index, weights=w, minlength=15).astype(np.float64)
        for w in (weight, weight * confidence, right)
    ]
    classes = np.bincount(top, weights=weight, minlength=samples.classes)
    return replace(
        artifact,
        reference=Bins(*sums),
        reference_classes=tuple(int(n) for n in np.rint(classes)),
        data={**artifact.data, "confusion": confusion_facts(samples, top, confidence, on=on)},
    )


def _corrected(artifact: Artifact, ratio: Floats) -> list[Step]:
    """Steps that give p_k times ``ratio`` (K,), normalised; a uniform part up to 1 % stays."""
    steps = list(artifact.steps)
    mixture = artifact.mixture
    # A small uniform part only keeps probabilities above 0, as that of the structured methods.
    if mixture is not None and (len(mixture.scales) > 1 or mixture.weights[-1] > 0.01):
        raise InputError(
            "a mixture of temperatures, or with a uniform part above 1 %, has no place for a correction of "
            "class shares behind it; fit with "
            "temperature, structured-vector, structured-matrix, or another method without a mixture"
        )
    if artifact.table is not None:
        if artifact.table.classes is None:
            raise InputError(
                "a table of the top confidence has no place for a correction of class shares; fit it with "
                "of='each' (--option of=each), or with a method without a table"
            )
        # Rows of classes are normalised after they are looked up: scaled, they are Bayes' rule.
        steps[-1] = ProbTable(artifact.table.edges, artifact.table.values * (ratio / ratio.max())[:, None])
        return steps
    # Bayes' rule: p_k times new_k / old_k, normalised, is a bias in logits.
    bias = np.log(ratio)
    if artifact.model.outputs in ("logit", "probability"):
        bias -= bias[0]  # of one number a sample, class 0 has a logit of 0
    behind = []
    if mixture is not None:  # the uniform part is a floor, and stays one
        behind, bias = [steps.pop()], bias / mixture.scales[0]
    last = steps.pop() if steps and isinstance(steps[-1], LogitMap) else LogitMap(np.array(1.0))
    assert isinstance(last, LogitMap)
    if last.bias is not None:
        bias = bias + last.bias
    return [*steps, LogitMap(last.weight, bias, last.on, last.least), *behind]


def confused(artifact: Artifact, samples: Samples) -> Artifact:
    """The artifact with its confusion on the calibration set, unless the fit counted it; labels have none."""
    if samples.is_multilabel or "confusion" in artifact.data:
        return artifact
    samples = samples.some(MEASURED.most_samples_counted)
    parts = ((part, samples.probs(artifact, part, chunk)) for part, chunk in samples.chunks())
    facts = confusion_facts(samples, *tops_of(len(samples), parts), on="calibration set")
    return replace(artifact, data={**artifact.data, "confusion": facts})


def check_correctable(methods: Iterable[str], classes: int, of: str | None = None) -> None:
    """Raise InputError, before any fit, for methods behind which class shares cannot be corrected."""
    if bad := [name for name in methods if not correctable(name, classes, of)]:
        raise InputError(
            f"behind {', '.join(bad)} class shares cannot be corrected: a table of the top class has no "
            "place for it; choose another method, a table with of='each' (--option of=each), or no prior"
        )


def correctable(method: str, classes: int, of: str | None = None) -> bool:
    """Whether class shares can be corrected behind a method; ``of`` is a table's option."""
    if method.startswith("histogram"):
        of = of or default_of(classes)
    elif method != "isotonic":
        return True
    return of != "top"


@dataclass(frozen=True, eq=False)
class PriorEstimate:
    """The class shares of samples without labels.

    Args:
        n: Number of samples.
        counted: Of the predicted classes and confidences, by the confusion with labels on the calibration set
            (``calib_serve.metrics.bbse``); it asks for nothing but label shift, and tests that. None
            where the artifact holds no confusion.
        old: Shares in the calibration set (K,).
        unknown: Why the artifact holds no confusion.
        class_names: Names of the classes (K,).
    """

    n: int
    counted: ShareEstimate | None
    old: Floats
    unknown: str = ""
    class_names: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Return one of same, moved, other (more than class shares has changed), unknown."""
        return "unknown" if self.counted is None else self.counted.kind

    @property
    def says(self) -> str:
        """The estimate in a sentence or two."""
        if self.counted is None:
            return f"Whether class shares alone have changed cannot be tested: {self.unknown}."
        return self.counted.says(self.class_names)

    @property
    def prior(self) -> Floats:
        """Return shares (K,) to correct by, drawn towards the old ones as far as chance goes.

        InputError unless the tests say that class shares, and nothing else, have moved.
        """
        if self.counted is None or self.kind != "moved":
            raise InputError(f"there is nothing to correct class shares by. {self.says}")
        return self.counted.shrunk


def estimate_prior(
    artifact: Artifact,
    scores: Any,
    *,
    outputs: Outputs | None = None,
    calibrated: bool = False,
) -> PriorEstimate:
    """Estimate class shares of samples without labels, and whether shares alone differ from the fit's.

    Samples are taken to be independent.

    Args:
        artifact: A calibration that says under which class shares it was fitted.
        scores: The model's scores (n, K), as for ``artifact.probs``; or those of the calibrated model.
        outputs: What the scores are; by default as the artifact says, of a calibrated model probabilities.
        calibrated: Whether they are those of the calibrated model.

    Raises:
        InputError: For an artifact of labels or without class shares, and for scores that cannot be right.

    >>> from calib_serve.fit.from_scores import calibrate
    >>> rng = np.random.default_rng(0)
    >>> def drawn(shares, n):
    ...     labels = rng.choice(2, n, p=shares)
    ...     return rng.normal(size=(n, 2)) + 2 * np.eye(2)[labels], labels
    >>> artifact = calibrate(*drawn([0.5, 0.5], 2000), "temperature", outputs="logits")
    >>> found = estimate_prior(artifact, drawn([0.8, 0.2], 2000)[0])
    >>> found.kind, found.counted.shares.round(1).tolist()
    ('moved', [0.8, 0.2])
    """
    old = class_shares_of(artifact)
    if calibrated:  # by a served model, in whatever order of classes
        said: dict[str, Any] = {
            "outputs": outputs,
            "expected": "probabilities",
            "name": "the calibrated probabilities",
        }
        probs = Scores.of(scores, **said).in_order(artifact.class_names).probs[:]
    elif artifact.model_steps:
        raise InputError(
            "the artifact changes the model itself, so its scores alone are not enough; give the "
            "probabilities that the calibrated model returns, and say so with --calibrated (calibrated=True)"
        )
    else:
        probs = artifact.probs(scores, outputs=outputs)
    if probs.shape[1] != artifact.classes:
        raise InputError(f"the artifact is of {artifact.classes} classes, the scores of {probs.shape[1]}")
    # BBSE (Lipton 2018) counts predictions alone; EM (Saerens 2002) needs every class to be calibrated.
    counted, unknown = None, ""
    try:
        confusion = Confusion.of(artifact.data.get("confusion"), artifact.classes)
    except InputError as error:
        unknown = str(error)
    else:
        # Predictions by class and confidence bin (K, B).
        k, bins = artifact.classes, confusion.bins
        index = probs.argmax(axis=1) * bins + bin_index(probs.max(axis=1), bins=bins)
        seen = np.bincount(index, minlength=k * bins).reshape(k, bins).astype(np.float64)
        counted = bbse(confusion, seen, old=old)
    return PriorEstimate(len(probs), counted, old, unknown, artifact.class_names)


def with_prior(artifact: Artifact, prior: PriorEstimate | ClassShares) -> Artifact:
    """Correct an artifact to other class shares.

    The artifact has no reference for monitoring any more: where you still have the calibration set,
    ``calibrate`` with ``prior`` keeps all of it.

    Args:
        artifact: A calibration that says under which class shares it was fitted.
        prior: Class shares (K,), a mapping of class names to them, or an estimate, which is refused unless
            class shares alone have moved.

    Raises:
        InputError: For shares that cannot be right, and where the calibration has no place for the correction
            (a mixture, a table of the top class).

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
    """Correct ``artifact``, fitted to ``samples``, to ``shares`` (K,), with its reference and confusion.

    These are of held-out folds where ``again`` fits the method to a part of the samples, else, and where a
    fold cannot be fitted, of the samples themselves.
    """
    old, made = class_shares_of(artifact), for_shares(artifact, shares, how="given")
    # Confidences of fitted samples are too high, and so would be a reference made of them.
    if again is not None:
        try:
            fold = folds_of(samples, folds=min(FOLDS, samples.units // 2), seed=seed)
            found = samples.held_out(fold, fits_of_folds(samples, fold, again))
            held = ((rows, corrected(probs, old, shares)) for rows, probs in found)
            return referenced(made, samples, held, on="held-out folds")
        except CalibServeError:
            pass  # too few samples of a class: what they say is of the fit itself
    return referenced(made, samples, ((part, made.of_logits(chunk)) for part, chunk in samples.chunks()))
