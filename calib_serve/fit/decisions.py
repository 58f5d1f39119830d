"""Decisions with a promise, sets, abstention and actions, from samples that a calibration was not fitted to.

Sets are by split conformal prediction (Vovk 2005; Angelopoulos and Bates 2023). The threshold is the k-th
smallest score of the true classes of n samples, k = ceil((n + 1) coverage). If these samples and a new one
are exchangeable, the new one's set holds its true class with at least that probability, whatever the model.
The probabilities must not have been fitted on these samples. The top class is in every set, so its score
counts as 0, the lowest there is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import (
    Abstain,
    AbstainFacts,
    Artifact,
    ChoiceFacts,
    PredictionSets,
    SetFacts,
    SetScore,
)
from calib_serve.core.arrays import Codes, Floats
from calib_serve.core.errors import FitError, InputError
from calib_serve.core.options.base import changed, check
from calib_serve.core.options.evaluate import DecideOptions
from calib_serve.fit.choices import choice_by
from calib_serve.fit.facts import data_fingerprint
from calib_serve.fit.samples import Samples, has_names
from calib_serve.metrics import abstention, conformal_rank, group_codes, one_of_each
from calib_serve.scores import LABELS, Scores, few

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import DecideKeywords

# Served probabilities are float32 and rounded: a sample whose score is the threshold, as of many under
# binning, must not fall out of its set by a last bit.
_MARGIN = 4 * float(np.finfo(np.float32).eps)
_PENALTIES = (0.001, 0.01, 0.1, 0.2, 0.5)  # Angelopoulos 2021, appendix E
_RISKS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
_SEEN = (
    "{what}; thresholds found there promise nothing, as the probabilities were fitted to them. Give samples "
    "that it has not seen, or fit again on a part and keep the rest for this"
)


def fit_sets(
    probs: Floats,
    labels: Codes,
    *,
    coverage: float = 0.9,
    score: SetScore = "lac",
    per_class: bool = False,
    options: Mapping[str, Any] | None = None,
    groups: Codes | None = None,
    seed: int = 0,
) -> PredictionSets:
    """Fit sets that hold the true class of new samples as often as promised, to calibrated probabilities.

    ``probs`` (n, K) were not fitted to these samples, ``labels`` (n,); as ``groups`` (n,), codes from 0, they
    are checked where scores are read. ``per_class``: each class has a
    threshold, so that the promise holds for the samples of every class (Vovk 2012); ``always_in`` tells those
    of too few. ``options``: penalty and free ranks of "raps"; where they are None they are chosen on a fifth,
    drawn by ``seed``, and the threshold is of the others. With groups the promise is for one sample of a new
    group, and each group weighs the same (Lee, Barber and Willett 2023, section 3).

    Raises:
        InputError: For options that cannot be right, and too few samples to choose those of "raps".

    >>> probs = np.stack([np.arange(1, 10) / 20, 1 - np.arange(1, 10) / 20], axis=1)
    >>> round(float(fit_sets(probs, np.zeros(9, int), coverage=0.8).threshold), 3)  # the 8th of .55, ..., .95
    0.9
    """
    p, y, codes = probs, labels, groups
    if score != "lac" and p.shape[1] == 2:
        raise InputError(
            f"{score} of two classes cannot tell samples apart: the less likely class adds up to 1 in each; "
            "take lac"
        )
    if per_class and codes is not None:
        raise InputError(
            "per_class thresholds need samples that are independent; give one sample of each group, or leave "
            "per_class out"
        )
    chosen = dict(options or {})
    if score == "raps" and options is None:
        kept = kept_for_options(len(y), groups=codes, seed=seed)
        chosen = _raps_options(p[kept], y[kept], coverage)
        p, y = p[~kept], y[~kept]
        codes = None if codes is None else np.unique(codes[~kept], return_inverse=True)[1]
    rule = PredictionSets(np.array(0.0), coverage=coverage, score=score, **chosen)
    scores, full = true_scores(rule, p, y), _full(rule, p.shape[1])
    if not per_class:
        return replace(rule, threshold=np.array(_threshold(scores, coverage, full, codes)))
    each = [_threshold(scores[y == k], coverage, full, None) for k in range(p.shape[1])]
    return replace(rule, threshold=np.array(each))


def always_in(sets: PredictionSets, classes: int) -> tuple[int, ...]:
    """Return the classes that no threshold can leave out, such as those of too few samples.

    >>> always_in(PredictionSets(np.array([1.0, 0.5]), coverage=0.9), 2)
    (0,)
    """
    thresholds = np.broadcast_to(sets.threshold, classes)
    return tuple(np.flatnonzero(thresholds >= _full(sets, classes)).tolist())


def kept_for_options(n: int, *, groups: Codes | None = None, seed: int = 0) -> NDArray[np.bool_]:
    """Draw which samples RAPS chooses its options on (n,): a fifth.

    >>> int(kept_for_options(100).sum())
    20
    """
    # Whole groups: a group on both sides of the draw would make the promise void.
    of = np.arange(n) if groups is None else groups
    units = int(of.max()) + 1
    drawn = np.zeros(units, bool)
    drawn[np.random.default_rng(seed).permutation(units)[: int(0.2 * units)]] = True
    return np.asarray(drawn[of])


def true_scores(rule: PredictionSets, probs: NDArray[np.floating[Any]], labels: NDArray[np.intp]) -> Floats:
    """Return the score of each sample's own class (n,), by the very arithmetic that the sets use.

    0 where it is the top class, which is in every set: with its own score, thresholds would make sets as
    large as if it could be left out, and hold more than is promised.
    """
    found = np.empty(len(labels))
    step = max(1, (1 << 20) // probs.shape[1])  # about a million probabilities at once
    for start in range(0, len(labels), step):
        rows = slice(start, start + step)
        y = labels[rows]
        scores = rule.scores(probs[rows])[np.arange(len(y)), y]
        found[rows] = np.where(probs[rows].argmax(axis=1) == y, 0.0, scores)
    return found


def _full(rule: PredictionSets, classes: int) -> float:
    """A threshold that no score exceeds, also where sums of probabilities are rounded."""
    return 1.0 if rule.score == "lac" else 2.0 + rule.penalty * classes


def _threshold(scores: Floats, coverage: float, full: float, codes: NDArray[np.intp] | None) -> float:
    """The k-th smallest score; of groups the first where their shares add up to coverage (G + 1)."""
    n = len(scores)
    if codes is None:
        k = conformal_rank(n, coverage)
        return full if k > n else min(float(np.partition(scores, k - 1)[k - 1]) + _MARGIN, full)
    # Each group weighs 1 in all, however many samples it has (Lee, Barber and Willett 2023, section 3).
    size = np.bincount(codes)
    order = np.argsort(scores)
    reached = np.cumsum(1 / size[codes[order]])
    wanted = coverage * (len(size) + 1) - 1e-9  # 1e-9: sums of shares are rounded
    if wanted > len(size):
        return full
    return min(float(scores[order][np.searchsorted(reached, wanted)]) + _MARGIN, full)


def _raps_options(
    probs: NDArray[np.floating[Any]],
    labels: NDArray[np.intp],
    coverage: float,
) -> dict[str, Any]:
    """Choose free ranks, and the penalty of the smallest sets (Angelopoulos 2021, algs. 4 and 5)."""
    n = len(labels)
    if not n:
        raise InputError("raps chooses its options on a fifth of the samples, and there are too few")
    p_true = probs[np.arange(n), labels][:, None]
    before = np.arange(probs.shape[1]) < labels[:, None]
    ranks = 1 + ((probs > p_true) | ((probs == p_true) & before)).sum(axis=1)
    free_ranks = int(np.sort(ranks)[min(conformal_rank(n, coverage), n) - 1])
    sizes = {}
    for tried in _PENALTIES:
        rule = PredictionSets(
            np.array(0.0), coverage=coverage, score="raps", penalty=tried, free_ranks=free_ranks
        )
        scores = true_scores(rule, probs, labels)
        threshold = _threshold(scores, coverage, _full(rule, probs.shape[1]), None)
        sizes[tried] = float(replace(rule, threshold=np.array(threshold))(probs).sum())
    return {"penalty": min(sizes, key=sizes.__getitem__), "free_ranks": free_ranks}


def fit_abstain(
    probs: Floats,
    labels: Codes,
    *,
    risk: float,
    level: float = 0.95,
    groups: Codes | None = None,
    seed: int = 0,
) -> Abstain:
    """Fit the lowest threshold that keeps the risk of an answer; see ``calib_serve.metrics.abstention``.

    ``probs`` (n, K) were not fitted to these samples. Of each of ``groups`` one sample is used, drawn by
    ``seed``, as the tests need samples that are independent.

    Raises:
        InputError: For arrays and options that cannot be right.
        FitError: Where no threshold keeps the promise; it names a risk that can be kept.

    >>> sure, unsure = [[1.0, 0.0]] * 300, [[0.6, 0.4]] * 100
    >>> fit_abstain(sure + unsure, [0] * 300 + [0, 1] * 50, risk=0.05)([[0.7, 0.3], [0.6, 0.4]]).tolist()
    [False, True]
    """
    found = abstention(probs, labels, risk=risk, level=level, groups=groups, seed=seed)
    if math.isinf(found.threshold):
        rows = slice(None) if groups is None else one_of_each(groups, seed=seed)
        raise FitError(_unreachable(probs[rows], labels[rows], risk, level))
    return Abstain(found.threshold, risk=float(risk), level=float(level))


def fit_refusal(probs: Floats, *, known_refused: float, groups: Codes | None = None) -> Abstain:
    """Fit the threshold below which few samples of the known classes lie: split conformal, as ``fit_sets``.

    Raises:
        InputError: For a share that cannot be right.
        FitError: Where there are too few samples to refuse any.

    >>> probs = np.stack([np.arange(11, 20) / 20, 1 - np.arange(11, 20) / 20], axis=1)
    >>> round(fit_refusal(probs, known_refused=0.2).threshold, 3)  # the 2nd of .55, ..., .95
    0.6
    """
    if not 0 < known_refused < 1:
        raise InputError(f"known_refused must lie between 0 and 1, got {known_refused}; 0.05 means 5 %")
    rule = Abstain(0.0, known_refused=known_refused)
    units = len(probs) if groups is None else int(groups.max()) + 1
    least, answered = math.ceil(1 / Fraction(repr(float(known_refused)))) - 1, rule.answered or 0.0
    if units < least:
        what = "samples" if groups is None else "groups"
        raise FitError(
            f"of {units} {what} none may be refused to refuse at most {known_refused:.4g} of new ones: give "
            f"{least} or more, or let more be refused"
        )
    unsure = _threshold(1 - probs.max(axis=1).astype(np.float64), answered, 1.0, groups)
    return replace(rule, threshold=max(1 - unsure, 0.0))


def _unreachable(p: NDArray[np.floating[Any]], y: NDArray[np.intp], risk: float, level: float) -> str:
    """Explain that no threshold keeps the risk: what these samples can promise, and what to do."""
    # Where none of n answers is wrong, the bound on the risk is where (1 - risk)^n = 1 - level.
    least = math.ceil(math.log(1 - level) / math.log1p(-risk))
    said = f"no threshold keeps the share of wrong answers at {risk:.3g} with probability {level:.3g}"
    found = next((r for r in _RISKS if r > risk and abstention(p, y, risk=r, level=level).answered), None)
    can = "no risk up to 0.9 can be promised" if found is None else f"{found:.3g} can be promised"
    few = f", of which at least {least} must be answered rightly" if len(y) < 4 * least else ""
    return f"{said}: there are {len(y)} samples{few}; on them {can}. Give more samples, or a higher risk"


def decide(
    artifact: Artifact,
    scores: Any,
    labels: Any = None,
    options: DecideOptions | None = None,
    **keywords: Unpack[DecideKeywords],
) -> Artifact:
    """Add to an artifact prediction sets of ``coverage``, abstention, or a choice of actions.

    Abstention is at ``risk`` or ``known_refused``. Actions are chosen by their ``cost``, a table or, of two
    classes, that of both errors (FP, FN); or class 1 from a threshold on that keeps a ``precision``, a
    ``recall`` or a ``budget``, the share that is chosen.

    The samples must be others than the calibration was fitted to: the promise is void on those, and they are
    refused where the artifact knows them. A decision that is not asked for stays as it was;
    ``artifact.fit.decisions`` records what is promised.

    Args:
        artifact: A calibration of a model of classes, of which one is true.
        scores: The model's scores (n, K), as in ``Scores.of``; of the model with the artifact's InputShift
            and Head, where it has these.
        labels: Class ids or names (n,); by default those in ``scores``.
        options: A ``DecideOptions``; keywords replace its fields.
        **keywords: Fields of ``DecideOptions``: ``budget``, ``class_names``, ``columns``, ``cost``,
            ``coverage``, ``groups``, ``ignore_label``, ``known_refused``, ``level``, ``missing``,
            ``outputs``, ``per_class``, ``precision``, ``recall``, ``risk``, ``sample_weight``, ``schema``,
            ``score``, ``seed``.

    Raises:
        InputError: For arrays and options that cannot be right, and for multi-label models.
        FitError: Where no threshold keeps the promise.

    >>> from calib_serve.artifact import LogitMap
    >>> artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2)
    >>> found = decide(artifact, [[0.0, 1.0], [0.0, 3.0]] * 50, [0, 1] * 50, coverage=0.9)
    >>> found.sets(found.of_logits([[0.0, 1.0], [0.0, 3.0]])).tolist()
    [[True, True], [False, True]]
    """
    asked = changed(options or DecideOptions(), keywords, decide)
    check(
        (asked.coverage, asked.risk, asked.known_refused, asked.goal) != (None, None, None, None),
        "coverage",
        "of sets, risk or known-refused of answers, or cost, precision, recall or budget of actions is what "
        "is promised: give one or more",
    )
    # Before the scores are read, and again with the kind of scores that they turn out to be.
    refuse_labels(artifact, asked.outputs)
    how: dict[str, Any] = {
        "expected": artifact.model.outputs or "logits",
        "name": "the samples",
        **asked.of_scores,
    }
    if isinstance(scores, Scores):  # their columns were chosen where they were made, and are agreed to below
        how.pop("columns", None)
    by_name = has_names(scores)
    read = Scores.of(scores, labels, by=artifact.schema.by if by_name else None, **how)
    refuse_labels(artifact, read.outputs)
    said = artifact.class_names or asked.columns or asked.class_names
    if by_name and not said and read.class_names not in ((), tuple(map(str, range(artifact.classes)))):
        raise InputError(
            f"the columns are {few(read.class_names)}, and the artifact's classes have no names: say in "
            "which order they are its classes (--columns, columns=)"
        )
    if read.in_order(artifact.class_names) is not read and asked.columns is None:
        raise InputError(
            "the columns come in another order than those that the calibration was fitted on; as a promise "
            "is made of them, say that this is meant: --columns (columns=) "
            f"{','.join(artifact.class_names[:20])}"
        )
    if read.weights is not None:
        raise InputError("the promise is of samples that count once each: rename the column of their weights")
    samples = Samples.of(artifact.accepted(read))
    refuse_seen(artifact, samples)
    return _with_decisions(artifact, samples, asked, read.clusters)


def refuse_labels(artifact: Artifact, outputs: str | None) -> None:
    """Refuse multi-label models: decisions promise for one true class a sample.

    Args:
        artifact: Calibration, of classes or of labels.
        outputs: Kind of the scores; None where not known.

    Raises:
        InputError: Where either is of labels.
    """
    if artifact.is_multilabel or outputs in LABELS:
        raise InputError(
            "sets, abstention and actions are for one class a sample; this is of labels, of which any "
            "number may be true"
        )


def _with_decisions(
    artifact: Artifact, samples: Samples, asked: DecideOptions, groups: ArrayLike | None
) -> Artifact:
    sources, y = samples.sources if artifact.source_maps else None, samples.labels
    probs = artifact.of_logits(samples.logits, sources)  # which tells of sources that the fit did not know
    codes = group_codes(groups, len(y))
    data: dict[str, Any] = {
        "samples": len(y),
        "sha256": data_fingerprint(samples.logits, y),
        "seed": asked.seed,
        "groups": None if codes is None else int(codes.max()) + 1,
    }
    sets, abstain, facts = artifact.sets, artifact.abstain, artifact.fit.decisions
    if asked.coverage is not None:
        sets = fit_sets(
            probs,
            y,
            coverage=asked.coverage,
            score=asked.score,
            per_class=asked.per_class,
            groups=codes,
            seed=asked.seed,
        )
        used = len(y)
        if asked.score == "raps":  # it chose its options on the other samples
            used -= int(kept_for_options(len(y), groups=codes, seed=asked.seed).sum())
        of_sets = SetFacts(
            **data,
            threshold_samples=used,
            top_right=float((probs.argmax(axis=1) == y).mean()),
            held=float(sets(probs)[np.arange(len(y)), y].mean()),
            always_in=always_in(sets, artifact.classes),
        )
        facts = replace(facts, sets=of_sets)
    if asked.risk is not None:
        abstain = fit_abstain(probs, y, risk=asked.risk, level=asked.level, groups=codes, seed=asked.seed)
    if asked.known_refused is not None:
        abstain = fit_refusal(probs, known_refused=asked.known_refused, groups=codes)
    if abstain is not None and abstain is not artifact.abstain:
        facts = replace(facts, abstain=AbstainFacts(**data, answered=float((~abstain(probs)).mean())))
    choice = artifact.choice
    if asked.goal is not None:
        choice = choice_by(asked, probs, y, artifact.class_names, codes)
        values, rows = choice.outcomes(probs, y)
        measured = float(values[rows].mean()) if rows.any() else 0.0
        taken = np.bincount(choice(probs), minlength=len(choice.actions)) / len(y)
        of_choice = ChoiceFacts(**data, measured=measured, taken=tuple(taken.tolist()))
        facts = replace(facts, choice=of_choice)
    record = replace(artifact.fit, decisions=facts)
    return replace(artifact, sets=sets, abstain=abstain, choice=choice, fit=record)


def refuse_seen(artifact: Artifact, samples: Samples | Scores) -> None:
    """Refuse samples that the calibration was fitted on, in any order, or among others.

    Args:
        artifact: Calibration, with the hash of its own samples.
        samples: Scores and labels.

    Raises:
        InputError: Where ``seen`` finds them.
    """
    if found := seen(artifact, samples):
        raise InputError(_SEEN.format(what=found))


def seen(artifact: Artifact, samples: Samples | Scores) -> str | None:
    """Say that the calibration was fitted on these samples, in any order or among others; None if not.

    Args:
        artifact: Calibration, with the hash of its own samples.
        samples: Scores and labels; scores without labels are not looked for.
    """
    if isinstance(samples, Scores):
        given = artifact.accepted(samples)
        if given.labels is None:
            return None
        samples = Samples.of(given)
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
    # One may be another that looks the same.
    if found >= min(2, len(kept)) and len(distinct) >= 0.9 * len(rows):
        return f"{found} of the {len(kept)} samples that the artifact keeps of its own fit are among these"
    return None


def _hash(row: NDArray[Any]) -> int:
    return hash(np.asarray(row, np.float64).tobytes())
