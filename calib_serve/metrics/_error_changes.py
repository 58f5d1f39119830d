"""What chance adds to a change of calibration errors between two models of the same rows.

Errors are absolute values, which noise makes larger. The influence of one sample on an error is discontinuous
where a gap is 0, so neither resampling nor a linear approximation has the right spread for models that are
nearly calibrated. Drawn errors do: each model's residuals about its own recalibration keep their size, and
their signs turn, for both models at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calib_serve.core.arrays import Codes, Floats
from calib_serve.metrics.plausible import fitted_shift, recalibrate_event, signs
from calib_serve.metrics.resampled import Sample

Turned = Callable[[Floats], dict[str, tuple[Floats, Floats]]]
"""From signs (r, n): each error (r,) of a truth as off as it looks, and of a calibrated one."""


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
