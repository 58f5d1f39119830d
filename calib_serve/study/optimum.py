"""How much better could any temperature do? (Wang 2021, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.arrays import as_floats
from calib_serve.bins import Bins
from calib_serve.fit.output import fit_temperature, fit_temperature_ece
from calib_serve.metrics import noise_floor, softmax
from calib_serve.metrics.proper import checked_logits
from calib_serve.study.result import Curve, Samples, Study, in_logits

_SHOWN = np.geomspace(0.1, 10, 101)  # temperatures of the curve


def ece_by_temperature(
    logits: ArrayLike, labels: ArrayLike, temperatures: ArrayLike, *, bins: int = 15
) -> NDArray[np.float64]:
    """ECE (t,) of logits (n, K) at each temperature (t,); the top class never changes.

    >>> ece_by_temperature([[0.0, np.log(3)]], [1], [1.0]).round(4).tolist()  # confidence 3 / 4
    [0.25]
    """
    z, y = checked_logits(logits, labels)
    z = z.astype(np.float64, copy=False)
    correct = z.argmax(axis=1) == y
    below = z - z.max(axis=1, keepdims=True)
    confidences = (1 / np.exp(below / t).sum(axis=1) for t in as_floats(temperatures, "temperatures"))
    return np.array([Bins.tally(c, correct, bins=bins).ece() for c in confidences])


def optimal_temperature(cal: Samples, test: Samples, *, bins: int = 15) -> Study:
    """The lowest test ECE of any temperature of Wang's pool, and how near a fitted one comes.

    The optimum is found on the test set itself: a bound that no temperature of the pool (0.01,
    0.02, ..., 10) can beat, and a measure of how calibratable the model is, not a result.
    """
    z, y = checked_logits(*in_logits(test))
    fitted = in_logits(cal)
    fits = {
        "fitted by NLL on cal": fit_temperature(*fitted),
        "fitted by ECE on cal": fit_temperature_ece(*fitted, grid="medium", bins=bins),
        "best for test": fit_temperature_ece(z, y, grid="medium", bins=bins),
    }
    chosen = {"none": 1.0} | {name: float(fit.fit["temperature"]) for name, fit in fits.items()}
    found = {name: float(ece_by_temperature(z, y, [t], bins=bins)[0]) for name, t in chosen.items()}
    rows = tuple(
        (name, t, found[name], noise_floor(softmax(z / t), y, bins=bins)) for name, t in chosen.items()
    )
    curve = ece_by_temperature(z, y, _SHOWN, bins=bins)
    return Study(
        title="Optimal ECE: the best that any temperature can do on the test set",
        header=("temperature", "T", "ECE", "noise floor"),
        rows=rows,
        says=_says(found, rows[-1]),
        curves=(Curve("test ECE", tuple(_SHOWN.tolist()), tuple(curve.tolist())),),
        x_label="temperature",
        y_label="ECE",
        log_x=True,
    )


def _says(found: dict[str, float], optimum: Sequence[Any]) -> tuple[str, ...]:
    before, best = found["none"], found["best for test"]
    floor = float(optimum[3])
    room = before - best
    says = [
        f"the best temperature would bring the ECE from {before:.2%} to {best:.2%} (T = {optimum[1]:.2f})"
    ]
    if room > 0:
        for name in ("fitted by NLL on cal", "fitted by ECE on cal"):
            used = (before - found[name]) / room
            worse = f"it makes the ECE worse, {found[name]:.2%}"
            says.append(f"{name}: {f'{used:.0%} of that room is used' if used >= 0 else worse}")
    if best > 2 * floor:
        says.append(
            f"the optimum is still {best / floor:.1f} times what chance gives ({floor:.2%}): "
            "a temperature alone cannot calibrate this model"
        )
    return tuple(says)
