"""Intervals of calibration errors, each by inverting a test of possible truths.

Errors are absolute values, which noise makes larger: resampling adds its noise on top of the sample's, so no
bootstrap interval of an error near 0 holds it as often as it says.

So is the noise of a difference of two models' errors. The influence of one sample on an error is
discontinuous where a gap is 0, so neither resampling nor a linear approximation has the right spread for
models that are nearly calibrated. Drawn errors do: each model's residuals about its own recalibration keep
their size, and their signs turn, for both models at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from calib_serve.core.arrays import Codes, Floats
from calib_serve.core.bins import Bins
from calib_serve.metrics.classwise import Truth
from calib_serve.metrics.distributions import accuracy_at_least
from calib_serve.metrics.intervals import Estimate, calibrated_share, drawn_labels, inverted
from calib_serve.metrics.measured import LABELS_A_CLASS_THAT_TELL
from calib_serve.metrics.plausible import (
    STEPS,
    Shift,
    event_error,
    fitted_shift,
    further_shifts,
    outcomes,
    plausible_probs,
    recalibrate_event,
    signs,
    wider,
)
from calib_serve.metrics.resampled import Sample
from calib_serve.metrics.samples import design_effect

_SHIFTS = np.linspace(-4, 4, 17)  # of one-sided errors, in standard errors of a bin's gap

Turned = Callable[[Floats], dict[str, tuple[Floats, Floats]]]
"""From signs (r, n): each error (r,) of a truth as off as it looks, and of a calibrated one."""


def error_intervals(
    sample: Sample, values: dict[str, float], *, draws: int, level: float, seed: int, groups: Codes | None
) -> dict[str, Estimate]:
    """Each calibration error of a sample with its interval, from ``draws`` of every truth (0: no interval).

    ``groups`` (n,) are by rising confidence, like the sample.
    """
    if draws < 2:
        return {name: Estimate(value) for name, value in values.items()}
    code = sample.code()
    fitted = recalibrate_event(sample.confidence, sample.correct, code, sample.bins)
    line = plausible_probs(sample.confidence, fitted, code, sample.bins, values["ece"])
    # The same random draws for all truths: the errors that they show then rise smoothly along the line.
    blocks = outcomes(sample.correct, fitted, draws, seed=seed, groups=groups)
    drawn = [[sample.errors(draw(truth)) for truth in line] for draw in blocks]
    true, widths = sample.errors(line), wider(sample.confidence, line)
    # The grid of the smooth ECE has a least error of its own.
    true["smooth_ece"] = true["smooth_ece"] - true["smooth_ece"][0]
    bins, effect = sample.tally, design_effect(sample.confidence - sample.correct, groups)
    elsewhere = calibrated_share(bins.gaps(), effect * bins.noise)
    found = {}
    for name, rising in true.items():
        shown = np.concatenate([[at[name] for at in block] for block in drawn], axis=1)
        found[name] = inverted(
            values[name],
            rising,
            shown,
            level=level,
            wider=widths,
            # Of squares chance adds as much wherever they are.
            elsewhere=None if name == "rms" else elsewhere,
        )
    rms, debiased = found["rms"], values["rms_debiased"]
    found["rms_debiased"] = Estimate(debiased, min(rms.low, debiased), max(rms.high, debiased))
    # The largest gap is of one bin, often nearly empty: drawn bounds fail there, exact ones hold.
    low, high = _largest_gap(bins, effect, level)
    found["mce"] = Estimate(values["mce"], low, high, found["mce"].debiased)
    sums = [
        np.bincount(code, row, minlength=sample.bins).astype(np.float64)
        for row in (fitted, fitted * (1 - fitted))
    ]
    over, under = _one_sided(bins, *sums, effect=effect, level=level, draws=2 * draws, seed=seed)
    found["overconfidence_error"], found["underconfidence_error"] = over, under
    if sample.positive is not None:
        found["positive_ece"] = event_error(
            sample.positive, sample.came_true, draws=draws, level=level, seed=seed, groups=groups
        )
    found["classwise_ece"] = _classwise(
        sample, values["classwise_ece"], effect, draws=draws, level=level, seed=seed, groups=groups
    )
    return found


def _largest_gap(bins: Bins, effect: float, level: float) -> tuple[float, float]:
    """Bounds of the largest true gap of the bins that hold predictions.

    Clopper and Pearson 1934, by bin.

    The bin with that gap is not known. Above, each bin's own bound suffices: whichever it is, it lies below
    its bound. Below, all bins' bounds must hold at once (Bonferroni).
    """
    full = bins.count > 0
    columns = (
        bins.count[full] / effect,
        bins.correct[full] / effect,
        bins.confidence[full] / bins.count[full],
    )
    tail = (1 - level) / 2
    lows: list[tuple[float, float]] = []
    highs: list[tuple[float, float]] = []
    for n, right, confidence in zip(*columns, strict=True):
        # Within two standard errors a bin's own bound is 0, the more so all bins' bounds at once.
        far = (n * confidence - right) ** 2 > 4 * n * confidence * (1 - confidence)
        for ends, risk in ((lows, tail / full.sum()), (highs, tail))[0 if far else 1 :]:
            least = accuracy_at_least(right, n, risk=risk)
            most = 1 - accuracy_at_least(n - right, n, risk=risk)
            ends.append((confidence - most, confidence - least))
    low = max((max(gap[0], -gap[1]) for gap in lows), default=0.0)
    return max(low, 0.0), max(max(-gap[0], gap[1]) for gap in highs)


def _one_sided(
    bins: Bins, fitted: Floats, variance: Floats, *, effect: float, level: float, draws: int, seed: int
) -> Iterator[Estimate]:
    """Yield over- and underconfidence error, each with its interval.

    ``fitted`` sums of P(correct) and their ``variance`` by bin (bins,).

    Truths along the line of ``plausible_probs`` would only make one of the two larger. These lie on one
    along which every bin's accuracy falls, or rises, by multiples of its standard error. What bins off to the
    other side show depends on how far off they are, which the error does not tell: the low end takes them as
    calibrated, where chance gives most, the high end as they look, and the debiased value lies half way
    between.
    """
    full = bins.count > 0
    count, confidence = bins.count[full], bins.confidence[full]
    share, error = fitted[full] / count, np.sqrt(effect * (variance[full] + 0.25)) / count
    weight = confidence / count / bins.n
    rng = np.random.default_rng([seed, 3])
    for side in (1.0, -1.0):

        def ends(true: Floats, side: float = side) -> Estimate:
            drawn = rng.binomial(count.astype(np.intp), true[:, None], size=(len(true), draws, len(count)))
            right = count * true[:, None] + math.sqrt(effect) * (drawn - count * true[:, None])
            rising, shown, observed = (
                np.maximum(side * (confidence - r), 0) @ weight
                for r in (count * true, right, bins.correct[full])
            )
            return inverted(float(observed), rising, shown, level=level)

        true = share - side * _SHIFTS[:, None] * error
        looks = ends(np.clip(true, 0, 1))
        worst = ends(np.clip(side * np.minimum(side * true, side * confidence / count), 0, 1))
        middle = (looks.debiased + worst.debiased) / 2
        yield Estimate(looks.value, min(worst.low, looks.high), looks.high, middle)


def _classwise(
    sample: Sample,
    observed: float,
    effect: float,
    *,
    draws: int,
    level: float,
    seed: int,
    groups: Codes | None,
) -> Estimate:
    residuals = sample.residuals
    fitted = fitted_shift(sample.probs, sample.labels)

    def along(shift: Shift) -> tuple[Floats, Floats]:
        near, (far, most) = further_shifts(residuals, shift, observed)
        if groups is None:
            shown = _drawn_classwise(sample, draws, seed, [near, (far, most)])
        else:
            of_rows = np.empty(sample.n, np.intp)
            of_rows[sample.order] = groups
            gaps = residuals.true_cells(far.applied)
            turns = signs(sample.n, draws, seed=seed, groups=of_rows)
            noises = (c for sign in turns for c in residuals.turned(sample.labels, sign, fitted.applied))
            shown = np.array([[np.abs(step * gaps + noise).sum() for step in STEPS] for noise in noises]).T
            shown /= sample.probs.size
        return STEPS * most, shown

    gaps, variance = (cells.ravel() for cells in residuals.cells(sample.labels))
    found = inverted(
        observed, *along(fitted), level=level, elsewhere=calibrated_share(gaps, effect * variance)
    )
    if sample.n >= LABELS_A_CLASS_THAT_TELL * sample.classes:
        return found
    # Few labels do not tell which classes are off: noise hides most of an error spread over all classes.
    spread = Shift(0.0, np.random.default_rng([seed, 5]).choice([-1.0, 1.0], sample.classes))
    hidden = inverted(observed, *along(spread), level=level)
    return Estimate(observed, min(found.low, hidden.low), max(found.high, hidden.high), found.debiased)


def _drawn_classwise(sample: Sample, draws: int, seed: int, shifts: Sequence[tuple[Shift, float]]) -> Floats:
    """Classwise ECEs (8, r) of labels drawn from mixtures of the probabilities and ``shifts``."""
    probs, rng = sample.probs, np.random.default_rng([seed, 4])
    truths: list[Truth] = [np.asarray, *(shift.applied for shift, _ in shifts)]
    at = np.maximum.accumulate([0.0, *(error for _, error in shifts)])
    places = np.interp(STEPS * at[-1], at, np.arange(len(at)))  # 1.25: a quarter of the way from 1 to 2
    sides = [drawn_labels(probs, draws, seed=seed, truth=truth) for truth in truths]
    found = []
    for block in zip(*sides, strict=True):
        for *labels, chance in zip(*block, rng.random(block[0].shape), strict=True):
            chosen = [np.floor(place + chance).astype(np.intp) for place in places]
            found.append([sample.residuals.ece(np.choose(side, labels)) for side in chosen])
    return np.array(found).T


@dataclass(frozen=True)
class _Shown:
    """Errors (r,) that a truth shows by chance, its ``true`` error, and the error that chance gives to 0."""

    true: float
    drawn: Floats
    floor: float


def error_changes(
    samples: list[Sample], *, draws: int, seed: int, groups: Codes | None
) -> dict[str, tuple[float, float]]:
    """What chance adds to each change of a calibration error, and the standard error of the change.

    From ``draws`` of signs for two models' samples, of the same rows; ``groups`` (n,) by
    row. NaN where there are fewer than two draws.
    """
    # The same signs for both models: noise that they share cancels in the difference.
    before, after = (_shown(sample, draws, seed, groups) for sample in samples)
    if draws < 2:
        return dict.fromkeys(before, (0.0, math.nan))
    found = {
        name: (_excess(shown, after[name]), float((after[name].drawn - shown.drawn).std(ddof=1)))
        for name, shown in before.items()
    }
    for name, apart in _swapped(samples, draws, seed, groups).items():
        found[name] = (0.0, math.sqrt(float((apart**2).mean())))
    return found


def _excess(before: _Shown, after: _Shown) -> float:
    """How much more chance adds to the error after than to the error before.

    The share of their floors that it adds to both together is used for each: its noise then cancels in
    the difference of two models that are alike.
    """
    floors = before.floor + after.floor
    added = float((before.drawn + after.drawn).mean()) - before.true - after.true
    share = min(max(added / floors, 0.0), 1.0) if floors > 0 else 0.0
    return share * (after.floor - before.floor)


def _shown(sample: Sample, draws: int, seed: int, groups: Codes | None) -> dict[str, _Shown]:
    found: dict[str, _Shown] = {}
    for errors in (_of_top_label(sample), _of_positive(sample), _of_classes(sample)):
        if errors is None:
            continue
        none = errors(np.zeros((1, sample.n)))
        blocks = [errors(turned) for turned in signs(sample.n, draws, seed=seed, groups=groups)]
        for name, (off, calibrated) in none.items():
            drawn, null = (
                np.concatenate([block[name][side] for block in blocks]) if blocks else np.empty(0)
                for side in (0, 1)
            )
            floor = float(null.mean() - calibrated[0]) if blocks else math.nan
            found[name] = _Shown(float(off[0]), drawn, floor)
    return found


def _of_top_label(sample: Sample) -> Turned:
    fitted = recalibrate_event(sample.confidence, sample.correct, sample.code(), sample.bins)

    def errors(turned: Floats) -> dict[str, tuple[Floats, Floats]]:
        noise = turned[:, sample.order] * (sample.correct - fitted)
        off = sample.errors(fitted + noise)
        null = sample.errors(sample.confidence + noise[::4])  # their mean alone is needed
        return {name: (off[name], null[name]) for name in off}

    return errors


def _of_positive(sample: Sample) -> Turned | None:
    event, came_true = sample.positive, sample.came_true
    if event is None:
        return None
    fitted = recalibrate_event(event.probs, came_true, event.code, event.bins)

    def errors(turned: Floats) -> dict[str, tuple[Floats, Floats]]:
        noise = turned[:, sample.order] * (came_true - fitted)
        return {"positive_ece": (event.ece(fitted + noise), event.ece(event.probs + noise))}

    return errors


def _of_classes(sample: Sample) -> Turned:
    residuals, labels = sample.residuals, sample.labels
    fitted = fitted_shift(sample.probs, labels)
    gaps, size = residuals.true_cells(fitted.applied), sample.probs.size

    def errors(turned: Floats) -> dict[str, tuple[Floats, Floats]]:
        sums = [
            (np.abs(gaps + noise).sum(), np.abs(noise).sum())
            for noise in residuals.turned(labels, turned, fitted.applied)
        ]
        off, null = np.array(sums).T / size
        return {"classwise_ece": (off, null)}

    return errors


def _swapped(samples: list[Sample], draws: int, seed: int, groups: Codes | None) -> dict[str, Floats]:
    """Changes (r,) of MCE and ACE when each sample's two predictions are swapped at random."""
    rows = [_bin_rows(sample) for sample in samples]
    found: dict[str, list[Floats]] = {"mce": [], "ace": []}
    for turned in signs(samples[0].n, draws, seed=seed, groups=groups):
        swap = (turned > 0).astype(np.float64)
        first = swap @ rows[1] + (1 - swap) @ rows[0]
        both = rows[0].sum(axis=0) + rows[1].sum(axis=0)
        gaps = []
        for sums in (first, both - first):
            count, gap = sums.reshape(len(swap), 2, -1).transpose(1, 0, 2)
            full = count > 0.5  # sums of swaps round
            gaps.append(np.where(full, np.abs(gap) / np.maximum(count, 1), np.nan))
        found["mce"].append(np.nanmax(gaps[1], axis=1) - np.nanmax(gaps[0], axis=1))
        found["ace"].append(np.nanmean(gaps[1], axis=1) - np.nanmean(gaps[0], axis=1))
    return {name: np.concatenate(blocks) for name, blocks in found.items()}


def _bin_rows(sample: Sample) -> Floats:
    """Each row's part in the counts and in the gaps of the bins (n, 2 bins)."""
    code = sample.code()
    rows = np.zeros((sample.n, 2, sample.bins))
    rows[sample.order, 0, code] = 1
    rows[sample.order, 1, code] = sample.confidence - sample.correct
    return rows.reshape(sample.n, -1)
