"""Thresholds that turn calibrated probabilities into decisions with a promise: sets, and abstention.

Sets are by split conformal prediction (Vovk 2005; Angelopoulos and Bates 2023). The threshold is the k-th
smallest score of the true classes of n samples, k = ceil((n + 1) coverage). If these samples and a new one
are exchangeable, the new one's set holds its true class with at least that probability, whatever the model.
The probabilities must not have been fitted on these samples. The top class is in every set, so its score
counts as 0, the lowest there is.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Abstain, PredictionSets, SetScore
from calib_serve.errors import FitError, InputError
from calib_serve.metrics import abstention, conformal_rank
from calib_serve.metrics.samples import checked, group_codes, one_of_each

Floats = NDArray[np.float64]

_BLOCK = 1 << 20  # probabilities scored at once
# Served probabilities are float32 and rounded: a sample whose score is the threshold, as of many under
# binning, must not fall out of its set by a last bit.
_MARGIN = 4 * float(np.finfo(np.float32).eps)
_KEPT = 0.2  # of the samples, to choose the options of RAPS on
_PENALTIES = (0.001, 0.01, 0.1, 0.2, 0.5)  # Angelopoulos 2021, appendix E


def fit_sets(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    coverage: float = 0.9,
    score: SetScore = "lac",
    per_class: bool = False,
    penalty: float | None = None,
    free_ranks: int | None = None,
    groups: ArrayLike | None = None,
    seed: int = 0,
) -> PredictionSets:
    """Sets that hold the true class of ``coverage`` of new samples, from calibrated probabilities (n, K).

    ``labels`` (n,) are class ids. ``per_class``: a threshold for each class, so that the promise holds for
    the samples of every class (Vovk 2012); a class with too few samples is in every set. Where all samples
    are too few, every class is: ``always_in`` tells. ``penalty`` and ``free_ranks`` of "raps" are chosen, if
    None, on a fifth of the samples drawn by ``seed``, and the threshold is of the others. ``groups`` (n,) say
    which samples belong together; the promise is then for one sample of a new group, and each group weighs
    the same (Lee, Barber and Willett 2023, section 3). Raises InputError for arrays and options that cannot
    be right, ShapeError for those of other shapes.

    >>> probs = np.stack([np.arange(1, 10) / 20, 1 - np.arange(1, 10) / 20], axis=1)
    >>> round(float(fit_sets(probs, np.zeros(9, int), coverage=0.8).threshold), 3)  # the 8th of .55, ..., .95
    0.9
    """
    p, y = checked(probs, labels)
    codes = group_codes(groups, len(y))
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
    given: dict[str, Any] = {"penalty": penalty, "free_ranks": free_ranks}
    if score == "raps" and None in given.values():
        kept = kept_for_options(len(y), groups=codes, seed=seed)
        chosen = _raps_options(p[kept], y[kept], coverage, penalty, free_ranks)
        p, y = p[~kept], y[~kept]
        codes = None if codes is None else np.unique(codes[~kept], return_inverse=True)[1]
    else:
        chosen = {name: value for name, value in given.items() if value is not None}
    rule = PredictionSets(np.array(0.0), coverage=coverage, score=score, **chosen)
    scores, full = true_scores(rule, p, y), _full(rule, p.shape[1])
    if not per_class:
        return replace(rule, threshold=np.array(_threshold(scores, coverage, full, codes)))
    each = [_threshold(scores[y == k], coverage, full, None) for k in range(p.shape[1])]
    return replace(rule, threshold=np.array(each))


def always_in(sets: PredictionSets, classes: int) -> tuple[int, ...]:
    """The classes that no threshold can leave out, such as those of too few samples.

    >>> always_in(PredictionSets(np.array([1.0, 0.5]), coverage=0.9), 2)
    (0,)
    """
    thresholds = np.broadcast_to(sets.threshold, classes)
    return tuple(np.flatnonzero(thresholds >= _full(sets, classes)).tolist())


def kept_for_options(n: int, *, groups: NDArray[np.intp] | None = None, seed: int = 0) -> NDArray[np.bool_]:
    """Which of n samples RAPS chooses its options on (n,): a fifth, of groups each whole.

    >>> int(kept_for_options(100).sum())
    20
    """
    of = np.arange(n) if groups is None else groups
    units = int(of.max()) + 1
    drawn = np.zeros(units, bool)
    drawn[np.random.default_rng(seed).permutation(units)[: int(_KEPT * units)]] = True
    return np.asarray(drawn[of])


def true_scores(rule: PredictionSets, probs: NDArray[np.floating[Any]], labels: NDArray[np.intp]) -> Floats:
    """The score of each sample's own class (n,), by the very arithmetic that the sets use.

    0 where it is the top class, which is in every set: with its own score, thresholds would make sets as
    large as if it could be left out, and hold more than is promised.
    """
    found = np.empty(len(labels))
    step = max(1, _BLOCK // probs.shape[1])
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
    """The k-th smallest score; of groups the first one at which their shares add up to coverage (G + 1)."""
    n = len(scores)
    if codes is None:
        k = conformal_rank(n, coverage)
        return full if k > n else min(float(np.partition(scores, k - 1)[k - 1]) + _MARGIN, full)
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
    penalty: float | None,
    free_ranks: int | None,
) -> dict[str, Any]:
    """Ranks without a penalty, and the penalty of the smallest sets (Angelopoulos 2021, algs. 4 and 5)."""
    n = len(labels)
    if not n:
        raise InputError("raps chooses its options on a fifth of the samples, and there are too few")
    if free_ranks is None:
        p_true = probs[np.arange(n), labels][:, None]
        before = np.arange(probs.shape[1]) < labels[:, None]
        ranks = 1 + ((probs > p_true) | ((probs == p_true) & before)).sum(axis=1)
        free_ranks = int(np.sort(ranks)[min(conformal_rank(n, coverage), n) - 1])
    sizes = {}
    for tried in _PENALTIES if penalty is None else (penalty,):
        rule = PredictionSets(
            np.array(0.0), coverage=coverage, score="raps", penalty=tried, free_ranks=free_ranks
        )
        scores = true_scores(rule, probs, labels)
        threshold = _threshold(scores, coverage, _full(rule, probs.shape[1]), None)
        sizes[tried] = float(replace(rule, threshold=np.array(threshold))(probs).sum())
    return {"penalty": min(sizes, key=sizes.__getitem__), "free_ranks": free_ranks}


_RISKS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)


def fit_abstain(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    risk: float,
    level: float = 0.95,
    groups: ArrayLike | None = None,
    seed: int = 0,
) -> Abstain:
    """The lowest threshold that leaves at most the share ``risk`` of answers wrong, of probabilities (n, K).

    The promise holds with probability ``level`` over the draws of these samples: see
    ``calib_serve.metrics.abstention``. The probabilities must not have been fitted on them. Of ``groups``
    (n,), samples that belong together, one each is drawn by ``seed``, as the tests need samples that are
    independent. Raises InputError for arrays and options that cannot be right, FitError where no threshold
    keeps the promise; it names a risk that can be kept.

    >>> sure, unsure = [[1.0, 0.0]] * 300, [[0.6, 0.4]] * 100
    >>> fit_abstain(sure + unsure, [0] * 300 + [0, 1] * 50, risk=0.05)([[0.7, 0.3], [0.6, 0.4]]).tolist()
    [False, True]
    """
    found = abstention(probs, labels, risk=risk, level=level, groups=groups, seed=seed)
    if math.isinf(found.threshold):
        p, y = checked(probs, labels)
        codes = group_codes(groups, len(y))
        rows = slice(None) if codes is None else one_of_each(codes, seed=seed)
        raise FitError(_unreachable(p[rows], y[rows], risk, level))
    return Abstain(found.threshold, risk=float(risk), level=float(level))


def _unreachable(p: NDArray[np.floating[Any]], y: NDArray[np.intp], risk: float, level: float) -> str:
    """What was asked, what these samples can promise, and what to do."""
    least = math.ceil(math.log(1 - level) / math.log1p(-risk))
    said = f"no threshold keeps the share of wrong answers at {risk:.3g} with probability {level:.3g}"
    found = next((r for r in _RISKS if r > risk and abstention(p, y, risk=r, level=level).answered), None)
    can = "no risk up to 0.9 can be promised" if found is None else f"{found:.3g} can be promised"
    few = f", of which at least {least} must be answered rightly" if len(y) < 4 * least else ""
    return f"{said}: there are {len(y)} samples{few}; on them {can}. Give more samples, or a higher risk"
