"""The page of ``watch``: HTML made on the server, that needs no script to be read."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calib_serve.bins import Bins
from calib_serve.errors import MissingDependency
from calib_serve.watch.drift.statistics import auroc, expected_accuracy, psi, wilson
from calib_serve.watch.http import charts
from calib_serve.watch.ledger import Version
from calib_serve.watch.ledger.sums import Key, Sums, merge_segments
from calib_serve.watch.service import Watch

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
except ImportError as error:
    raise MissingDependency("jinja2", "watch") from error

__all__ = ["STATIC", "render", "verdict"]

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
_PAGES = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENOUGH = 100


@dataclass(frozen=True)
class Verdict:
    """One sentence, and how much to worry: ``fine``, ``off`` or ``unknown``."""

    kind: str
    says: str


def verdict(bins: Bins) -> Verdict:
    """What the labels say about calibration, in one sentence.

    >>> verdict(Bins([1000], [900], [700])).says
    'Overconfident: it says 90.0 % and is right 70.0 % of the time.'
    """
    if bins.n < _ENOUGH:
        return Verdict("unknown", f"Too few labels to tell: {bins.n:.0f} of at least {_ENOUGH}.")
    spread = math.sqrt(
        max(float((bins.confidence * (1 - bins.confidence / bins.count.clip(1))).sum()), 1e-12)
    )
    z = bins.signed_gap() * bins.n / spread
    if abs(z) > 3:
        kind = "Overconfident" if z > 0 else "Underconfident"
        says = f"it says {bins.mean_confidence() * 100:.1f} % and is right {bins.accuracy() * 100:.1f} %"
        return Verdict("off", f"{kind}: {says} of the time.")
    sigma = math.sqrt(math.pi / 2 - 1) * bins.noise_floor() / math.sqrt(max(int((bins.count > 0).sum()), 1))
    if bins.ece() > bins.noise_floor() + 4 * sigma:
        return Verdict("off", "Right on average, but some confidences are off: see the diagram.")
    return Verdict("fine", "Confidence means what it says: every gap is within noise.")


def render(watch: Watch, *, model: str = "", version: str = "", segment: str = "") -> str:
    """The page's HTML for a model version (by default the most labelled) and segment (by default all)."""
    segments = watch.ledger.by_segment()
    whole = merge_segments(segments)
    versions = sorted({*watch.models, *whole})
    zeros = Sums.zeros(watch.ledger.bins)
    busiest = max(
        versions, key=lambda v: (whole.get(v, zeros).feedback.n, whole.get(v, zeros).predictions.sum())
    )
    chosen: Version = (model, version) if (model, version) in versions else busiest
    named = sorted(key.segment for key in segments if (key.model, key.version) == chosen and key.segment)
    sums = segments.get(Key(*chosen, segment), zeros) if segment in named else whole.get(chosen, zeros)
    watched = watch.models.get(chosen)
    reference = watched.reference if watched else None
    alarms = [a for a in watch.alarms() if (a["model"], a["version"]) == chosen]
    return _PAGES.get_template(
        "page.html"
    ).render(
        versions=[_row(*v, whole.get(v, zeros)) for v in versions],
        segments=[_row(*chosen, segments[Key(*chosen, s)], segment=s) for s in named],
        chosen=chosen,
        segment=segment if segment in named else "",
        verdict=verdict(sums.feedback),
        numbers=_numbers(sums, reference),
        bins=_bins(sums.feedback),
        reliability=Markup(charts.reliability(sums.feedback)),  # noqa: S704  numbers alone, no text of users
        confidences=Markup(charts.confidences(sums, reference)),  # noqa: S704
        curve=Markup(  # noqa: S704
            charts.curve(watch.history.of(chosen, now=whole.get(chosen, zeros)), [a["at"] for a in alarms])
        ),
        alarms=[_alarm(a) for a in reversed(alarms[-10:])],
    )


def _row(model: str, version: str, sums: Sums, *, segment: str = "") -> dict[str, Any]:
    labels = sums.feedback
    return {
        "model": model,
        "version": version,
        "segment": segment,
        "predictions": _count(sums.predictions.sum()),
        "labels": _count(labels.n),
        "accuracy": _percent(labels.accuracy()),
        "confidence": _percent(labels.mean_confidence()),
        "ece": _percent(labels.ece()),
        "floor": _percent(labels.noise_floor()),
        "verdict": verdict(labels),
    }


def _numbers(sums: Sums, reference: Bins | None) -> list[tuple[str, str, str]]:
    """(name, value, what it means) of each tile."""
    labels, expected = sums.feedback, expected_accuracy(sums)
    served = sums.predictions if sums.predictions.any() else labels.count
    shift = psi(served, reference.count) if reference else math.nan
    return [
        ("Predictions", _count(sums.predictions.sum()), "served"),
        ("Labels", _count(labels.n), "counted, each once"),
        ("Accuracy", _percent(labels.accuracy()), f"mean confidence {_percent(labels.mean_confidence())}"),
        ("ECE", _percent(labels.ece()), f"noise alone would show {_percent(labels.noise_floor())}"),
        ("Signed gap", _signed(labels.signed_gap()), "confidence minus accuracy"),
        ("Refinement AUROC", _plain(auroc(labels)), "right above wrong, by confidence"),
        ("Brier", _plain(sums.brier()), "top label; smaller is better"),
        ("Confidence PSI", _plain(shift), "against the reference; above 0.2 is a shift"),
        (
            "Expected accuracy",
            _percent(expected.accuracy),
            f"± {_percent(2 * expected.standard_error)}, without labels, while calibrated",
        ),
    ]


def _bins(bins: Bins) -> list[tuple[str, str, str, str]]:
    low, high = wilson(bins.correct, bins.count)
    return [
        (
            f"{i / len(bins):.0%} to {(i + 1) / len(bins):.0%}",
            _count(bins.count[i]),
            _percent(bins.confidence[i] / bins.count[i]),
            f"{_percent(bins.correct[i] / bins.count[i])} ({_percent(low[i])} to {_percent(high[i])})",
        )
        for i in range(len(bins))
        if bins.count[i]
    ]


def _alarm(alarm: dict[str, Any]) -> dict[str, str]:
    bins = ", ".join(f"{b['low']:.0%} to {b['high']:.0%}" for b in alarm["bins"][:4])
    return {
        "when": _when(alarm["at"]),
        "since": _when(alarm["since_time"]),
        "says": f"{alarm['direction']}, gap {_signed(alarm['gap'])}",
        "bins": bins,
        "labels": _count(alarm["label"] - alarm["since_label"] + 1),
    }


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds)) if math.isfinite(seconds) else "unknown"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value * 100:.1f} %"


def _signed(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value * 100:+.1f} points"


def _plain(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.3f}"
