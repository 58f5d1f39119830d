"""Decisions with a promise, added to a calibration from samples that it was not fitted to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, PredictionSets
from calib_serve.errors import InputError
from calib_serve.fit.decisions import always_in, fit_abstain, fit_sets, kept_for_options
from calib_serve.fit.facts import data_fingerprint
from calib_serve.fit.labels import LabelSamples
from calib_serve.fit.samples import Samples
from calib_serve.metrics.samples import group_codes
from calib_serve.options.base import changed, check
from calib_serve.options.evaluate import DecideOptions
from calib_serve.scores import LABELS, Outputs, Scores

__all__ = ["decide", "refuse_labels", "refuse_seen", "seen"]

_FOUND = 2  # of the samples that an artifact keeps; one may be another that looks the same
_REPEATED = 0.1  # share of samples that occur twice, above which finding one again tells nothing


def decide(
    artifact: Artifact,
    scores: Any,
    labels: Any = None,
    options: DecideOptions | None = None,
    **given: Any,
) -> Artifact:
    """The artifact with prediction sets of ``coverage``, abstention at ``risk``, or both.

    ``scores`` and ``labels``, as in ``Scores.of``, are of the model, and of samples that the calibration was
    not fitted to: the promise is void on those it was, and they are refused where the artifact knows them.
    Where the artifact has an InputShift or a Head, the scores are of the model that has them. Each of the
    ``options`` may be ``given`` as a keyword argument; ``artifact.fit["decisions"]`` records them. A decision
    that is not asked for stays as it was. Raises InputError for arrays and options that cannot be
    right, and for multi-label models; FitError where no threshold keeps the risk.

    >>> from calib_serve.artifact import LogitMap
    >>> artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2)
    >>> found = decide(artifact, [[0.0, 1.0], [0.0, 3.0]] * 50, [0, 1] * 50, coverage=0.9)
    >>> found.sets(found.of_logits([[0.0, 1.0], [0.0, 3.0]])).tolist()
    [[True, True], [False, True]]
    """
    asked = changed(options or DecideOptions(), given)
    check(
        asked.coverage is not None or asked.risk is not None,
        "coverage",
        "of sets, or the risk of answers, is what is promised: give one or both",
    )
    refuse_labels(artifact, asked.outputs)
    expected = artifact.model.outputs or "logits"
    read = Scores.of(scores, labels, **asked.of_scores, expected=expected, name="the samples")
    refuse_labels(artifact, read.outputs)
    if read.in_order(artifact.class_names) is not read and asked.columns is None:
        raise InputError(
            "the columns come in another order than those that the calibration was fitted on; as a promise "
            "is made of them, say that this is meant: --columns (columns=) "
            f"{','.join(artifact.class_names[:20])}"
        )
    if read.weights is not None:
        raise InputError("the promise is of samples as they come, each of weight 1; leave sample_weight out")
    samples = Samples.of(artifact.accepted(read))
    refuse_seen(artifact, samples)
    return _decided(artifact, samples, asked, read.groups)


def refuse_labels(artifact: Artifact, outputs: Outputs | None) -> None:
    """InputError for multi-label models: of labels any number may be true, and no set is promised to hold."""
    if artifact.is_multilabel or outputs in LABELS:
        raise InputError(
            "prediction sets and abstention are for one class a sample; this is of labels, of which any "
            "number may be true"
        )


def _decided(
    artifact: Artifact, samples: Samples, asked: DecideOptions, groups: ArrayLike | None
) -> Artifact:
    probs, y = artifact.of_logits(samples.logits), samples.labels
    codes = group_codes(groups, len(y))
    data = {"samples": len(y), "sha256": data_fingerprint(samples.logits, y), "seed": asked.seed}
    if codes is not None:
        data["groups"] = int(codes.max()) + 1
    facts: dict[str, Any] = dict(artifact.fit.get("decisions", {}))
    sets, abstain = artifact.sets, artifact.abstain
    if asked.coverage is not None:
        sets = _sets(asked, asked.coverage, probs, y, groups)
        facts["sets"] = {
            **data,
            "threshold_samples": _used_for_threshold(asked, codes, len(y)),
            "top_right": float((probs.argmax(axis=1) == y).mean()),
            "held": float(sets(probs)[np.arange(len(y)), y].mean()),
            "always_in": always_in(sets, artifact.classes),
        }
    if asked.risk is not None:
        abstain = fit_abstain(probs, y, risk=asked.risk, level=asked.level, groups=groups, seed=asked.seed)
        facts["abstain"] = {**data, "answered": float((~abstain(probs)).mean())}
    return replace(artifact, sets=sets, abstain=abstain, fit={**artifact.fit, "decisions": facts})


def _sets(
    asked: DecideOptions,
    coverage: float,
    probs: NDArray[Any],
    labels: NDArray[np.intp],
    groups: ArrayLike | None,
) -> PredictionSets:
    return fit_sets(
        probs,
        labels,
        coverage=coverage,
        score=asked.score,
        per_class=asked.per_class,
        penalty=asked.penalty,
        free_ranks=asked.free_ranks,
        groups=groups,
        seed=asked.seed,
    )


def _used_for_threshold(asked: DecideOptions, codes: NDArray[np.intp] | None, n: int) -> int:
    chosen = asked.score == "raps" and None in (asked.penalty, asked.free_ranks)
    return n - int(kept_for_options(n, groups=codes, seed=asked.seed).sum()) if chosen else n


def refuse_seen(artifact: Artifact, samples: Samples | Scores) -> None:
    """InputError for the samples that the calibration was fitted on, in any order, or among others."""
    if found := seen(artifact, samples):
        raise InputError(_SEEN.format(what=found))


def seen(artifact: Artifact, samples: Samples | Scores) -> str | None:
    """In words, that the calibration was fitted on these samples, in any order or among others; else None."""
    if isinstance(samples, Scores):
        given = artifact.accepted(samples)
        if given.labels is None:
            return None
        samples = (LabelSamples if given.is_multilabel else Samples).of(given)
    known = artifact.data.get("sha256")
    if known and known == data_fingerprint(samples.logits, samples.labels):
        return "these are the samples that the calibration was fitted on"
    if artifact.examples is None:
        return None
    kept = {_hash(row) for row in artifact.examples.logits}
    rows = [_hash(row) for _, chunk in samples.chunks(np.float64) for row in chunk]
    distinct = set(rows)
    found = len(kept & distinct)
    # Where the same scores come again and again, finding some of the fit's own proves nothing.
    if found >= min(_FOUND, len(kept)) and len(distinct) >= (1 - _REPEATED) * len(rows):
        return f"{found} of the {len(kept)} samples that the artifact keeps of its own fit are among these"
    return None


def _hash(row: NDArray[Any]) -> int:
    return hash(np.asarray(row, np.float64).tobytes())


_SEEN = (
    "{what}; thresholds found there promise nothing, as the probabilities were fitted to them. Give samples "
    "that it has not seen, or fit again on a part and keep the rest for this"
)
