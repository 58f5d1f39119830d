"""The report's tables as text: metrics with intervals, and what was fitted on what."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from calib_serve.artifact import Artifact, DecisionsEvaluation, promises
from calib_serve.metrics import Change, Estimate, SetEvaluation
from calib_serve.report.contents import Contents, LabelsContents, printable
from calib_serve.report.verdict import MINUS

__all__ = ["DecisionRows", "MetricRow", "artifact_facts", "decision_rows", "metric_rows"]

_LONGEST = 200  # characters of a fact that is shown


class Shown(NamedTuple):
    """A metric as the table names it; ``better`` when lower (-1), higher (1) or neither (0)."""

    name: str
    words: str
    explanation: str
    better: Literal[-1, 0, 1]
    percent: bool = True


_SHOWN = (
    Shown("accuracy", "Accuracy", "share of predictions that are right", 1),
    Shown("mean_confidence", "Mean confidence", "what it says on average", 0),
    Shown("signed_gap", "Signed gap", "mean confidence minus accuracy; positive is overconfident", 0),
    Shown("ece", "ECE", "mean distance of confidence from accuracy, over equal-width bins", -1),
    Shown("adaptive_ece", "Adaptive ECE", "the same over bins that hold equally many", -1),
    Shown("smooth_ece", "Smooth ECE", "the same without bins", -1),
    Shown("classwise_ece", "Classwise ECE", "the same for every class's probability, averaged", -1),
    Shown("mce", "MCE", "the largest distance of any bin, however few it holds", -1),
    Shown("overconfidence_error", "Overconfidence error", "excess of confidence, times confidence", -1),
    Shown("rms_debiased", "RMS error, debiased", "root mean squared distance less what chance gives", -1),
    Shown("noise_floor", "Noise floor", "the ECE that a calibrated model shows by chance", 0),
    Shown("nll", "NLL", "negative log-likelihood, in nats", -1, percent=False),
    Shown("brier", "Brier score", "squared distance of probabilities from the truth", -1, percent=False),
    Shown("entropy", "Entropy", "mean uncertainty of the predictions, in nats", 0, percent=False),
    Shown("refinement_auroc", "AUROC right from wrong", "0.5 is a coin, 1 is perfect", 1, percent=False),
    Shown("positive_ece", "ECE of P(y = 1)", "mean distance of P(y = 1) from the share of class 1", -1),
    Shown("positive_gap", "Gap of P(y = 1)", "its mean less the share of class 1", 0),
    Shown(
        "positive_brier",
        "Brier score of P(y = 1)",
        "mean of (P - y)², half the Brier score",
        -1,
        percent=False,
    ),
    Shown("aurc", "AURC", "area under the risk-coverage curve", -1, percent=False),
)


_SHOWN_OF_LABELS = (
    Shown("positive_ece", "ECE of P(label)", "mean distance of P from the label's share, over bins", -1),
    Shown("positive_noise_floor", "Noise floor of P(label)", "the same for a calibrated model, by chance", 0),
    Shown("nll", "NLL", "negative log-likelihood of a label, in nats", -1, percent=False),
    Shown("positive_brier", "Brier score of P(label)", "mean of (P - y)²", -1, percent=False),
    Shown("accuracy", "Accuracy", "share of decisions at 0.5 that are right", 1),
    Shown("mean_confidence", "Mean confidence", "of the decisions", 0),
    Shown("signed_gap", "Signed gap", "mean confidence minus accuracy of the decisions", 0),
    Shown("ece", "ECE of the decisions", "distance of their confidence from their accuracy", -1),
    Shown("noise_floor", "Noise floor of the decisions", "the same for a calibrated model, by chance", 0),
)


@dataclass(frozen=True)
class MetricRow:
    """One line of the metrics table; ``verdict`` says in a word whether the change is good."""

    name: str
    explanation: str
    values: tuple[str, ...]
    intervals: tuple[str, ...]
    change: str
    interval: str
    p: str
    verdict: Literal["better", "worse", "changed", "no clear change", ""]


def metric_rows(contents: Contents | LabelsContents) -> tuple[MetricRow, ...]:
    """The metrics of each side with intervals, and what changed."""
    found = contents.after.metrics.estimates()
    known = _SHOWN_OF_LABELS if isinstance(contents, LabelsContents) else _SHOWN
    return tuple(_metric_row(contents, shown) for shown in known if shown.name in found)


def _metric_row(contents: Contents | LabelsContents, shown: Shown) -> MetricRow:
    found: list[Estimate] = [getattr(side.metrics, shown.name) for side in contents.sides]
    change = contents.changes.get(shown.name)
    return MetricRow(
        shown.words,
        shown.explanation,
        tuple(_number(e.value, shown.percent) for e in found),
        tuple(_interval(e, shown.percent) for e in found),
        "" if change is None else _number(change.difference.value, shown.percent, sign=True),
        "" if change is None else _interval(change.difference, shown.percent, sign=True),
        "" if change is None else _p(change.p),
        _word(change, shown.better),
    )


def _number(value: float, share: bool, *, sign: bool = False) -> str:
    if not math.isfinite(value):
        return "undefined" if math.isnan(value) else "infinite"
    plus = "+" if sign else ""
    text = f"{100 * value:{plus}.2f}\N{NO-BREAK SPACE}%" if share else f"{value:{plus}.4f}"
    return text.replace("-", MINUS)


def _interval(estimate: Estimate, share: bool, *, sign: bool = False) -> str:
    if math.isnan(estimate.low):
        return ""
    ends = [
        _number(v, share, sign=sign).removesuffix("\N{NO-BREAK SPACE}%")
        for v in (estimate.low, estimate.high, estimate.debiased)
    ]
    less = "" if sign or math.isnan(estimate.debiased) else f"debiased {ends[2]}; "
    return f"{less}{ends[0]} to {ends[1]}"


def _p(p: float) -> str:
    if math.isnan(p):
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _word(change: Change | None, better: int) -> Literal["better", "worse", "changed", "no clear change", ""]:
    if change is None or math.isnan(change.p):
        return ""
    if change.p >= 0.05 or change.difference.value == 0:
        return "no clear change"
    if not better:
        return "changed"
    return "better" if better * change.difference.value > 0 else "worse"


def artifact_facts(artifact: Artifact) -> tuple[tuple[str, str], ...]:
    """The artifact's steps, data, fit and identity."""
    steps = tuple(f"{step.kind} {_sizes(vars(step))}".strip() for step in artifact.steps)
    facts: dict[str, Any] = {
        "method": artifact.method,
        "steps": list(steps) or "none",
        "classes": artifact.classes,
        "fit": artifact.fit,
        "prediction sets": None if artifact.sets is None else artifact.sets.facts,
        "abstention": None if artifact.abstain is None else artifact.abstain.facts,
        "contract": None if artifact.contract is None else artifact.contract.says(artifact.class_names),
        "calibration data": artifact.data,
        "model": artifact.model.as_dict(),
        "versions": artifact.versions,
        "sha256": artifact.fingerprint,
    }
    return tuple(line for name, value in facts.items() for line in _lines(name, value))


def _sizes(fields: Mapping[str, Any]) -> str:
    shown = []
    for name, value in fields.items():
        if getattr(value, "shape", None) == ():
            shown.append(f"{name} {float(value):.6g}")
        elif hasattr(value, "shape"):
            shown.append(f"{name} {' by '.join(map(str, value.shape))}")
        elif isinstance(value, (str, float)):
            shown.append(f"{name} {value}")
    return f"({', '.join(shown)})" if shown else ""


def _lines(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [line for key, item in value.items() for line in _lines(f"{name}: {key}", item)]
    if isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        return [line for i, item in enumerate(value, 1) for line in _lines(f"{name} {i}", item)]
    if value in (None, "", []):
        return []
    if isinstance(value, list):
        value = ", ".join(map(_plain, value[:12])) + (
            f" and {len(value) - 12} more" if len(value) > 12 else ""
        )
    text = _plain(value)
    return [(printable(name), printable(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."))]


def _plain(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_CLASSES = 10


@dataclass(frozen=True)
class DecisionRows:
    """Sentences and two tables of text: sets by their size, and the classes most surely missed."""

    promised: tuple[str, ...]
    measured: tuple[str, ...]
    sizes: tuple[tuple[str, str, str], ...]
    classes: tuple[tuple[str, str], ...]


def decision_rows(artifact: Artifact, found: DecisionsEvaluation, class_names: Sequence[str]) -> DecisionRows:
    """The section of an artifact that has decisions; ``class_names`` (K,) or ()."""
    names = tuple(class_names)
    sets = found.sets
    return DecisionRows(
        tuple(promises(artifact)),
        tuple(found.says(names)),
        () if sets is None else tuple(_size(sets, i) for i in range(len(sets.by_size))),
        () if sets is None else _worst(sets, names),
    )


def _size(sets: SetEvaluation, i: int) -> tuple[str, str, str]:
    group = sets.by_size[i]
    sizes = str(group.smallest)
    if group.largest > group.smallest:
        sizes += f" to {group.largest}"
    return sizes, f"{group.count:,}", _share(group.coverage)


def _worst(sets: SetEvaluation, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    worst = sets.worst_classes()[:_CLASSES]
    return tuple((names[k] if names else str(k), _share(sets.by_class[k])) for k in worst)


def _share(share: Estimate) -> str:
    ends = "" if math.isnan(share.low) else f" ({100 * share.low:.1f} to {100 * share.high:.1f})"
    return f"{100 * share.value:.1f} %{ends}"
