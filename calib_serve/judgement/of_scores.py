"""The verdict on what a model gave, of whatever kind: the one door of ``calib_serve.scores`` before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from calib_serve.errors import InputError
from calib_serve.judgement.conclude import Verdict
from calib_serve.judgement.decide import judge_probs
from calib_serve.options.base import changed
from calib_serve.options.evaluate import JudgeOptions
from calib_serve.scores import Scores

__all__ = ["judge"]


def judge(
    scores: Any,
    labels: Any = None,
    options: JudgeOptions | None = None,
    **given: Any,
) -> Verdict:
    """Whether a model's scores are calibrated against its labels, within a tolerance.

    ``scores`` and ``labels`` as in ``Scores.of``, or ``Scores`` themselves; each of the ``options`` may be
    ``given`` as a keyword argument.
    Of more than 500,000 samples, as many that are spread over all are judged.
    "calibrated": upper 95 % bounds lie below the tolerance, of the mean absolute gap of the confidence
    (two classes: of P(y = 1), which bounds it), and below ``class_tolerance``, 1.5 times as much unless
    given, for each class with 500 predictions or one in twenty of all. An event rarer than 10 % is held to
    a fifth of its share, where that is less. "off": a test proves an error (5 % over all tests, Holm 1979)
    that may be beyond the tolerance. Else "no_error_found", or "too_little" where an error of 20 points might
    hide. See ``calib_serve.judgement.decide`` for the tests. Labels (n, L) of a multi-label model are judged
    label by label. Raises InputError or ShapeError.

    >>> import numpy as np
    >>> p = np.tile([[0.7, 0.3], [0.3, 0.7]], (500, 1))
    >>> judge(p, p.argmax(axis=1)).headline.replace(chr(160), " ")  # says 70 %, and is always right
    'Not calibrated: underconfident, on average 30.0 points off.'
    >>> judge(p[:4], p[:4].argmax(axis=1)).level
    'too_little'
    """
    asked = changed(options or JudgeOptions(), given)
    scored = Scores.of(scores, labels, **asked.of_scores)
    y = scored.labelled()
    if scored.is_multilabel and scored.groups is not None:
        raise InputError("groups are for one class a sample, not for labels; leave them out")
    if y.ndim > 1 and not scored.is_multilabel:
        raise InputError("soft labels are for fits, nll and brier; a verdict wants one class a sample")
    found = judge_probs(
        scored.probs[:] if scored.is_multilabel else scored.probs,
        y,
        tolerance=asked.tolerance,
        class_tolerance=asked.class_tolerance,
        sample_weight=scored.weights,
        groups=scored.groups,
        class_names=scored.class_names,
    )
    return replace(found, reasons=(*found.reasons, *scored.remarks))
