"""Label policies: draw predictions to ask a label for, when each is made, with a known chance.

What is labelled by choice misleads, unless each label is weighed by one over the chance it was asked with.
So the draw is made before any outcome is known, and its chance is kept with the prediction. Labels tell most
where outcomes vary most: for the least variance of the gap, chances go with sqrt(c (1 - c)) (Neyman 1934).
That trusts the confidences; once a budget is told of labels, it goes by how often these are right instead.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.receipts.nonces import DRAWS
from calib_serve.receipts.wire import DAY

if TYPE_CHECKING:
    from calib_serve.receipts.sums import Sums

LEAST_CHANCE = 1e-3
"""No label weighs more than one over this: a few that weigh more would decide every number."""

Line = tuple[float, float]

# Cells of confidence, finer towards 1 where sqrt(c (1 - c)) falls fast.
_CELLS = (*np.linspace(0.05, 0.9, 18).tolist(), *(1 - 0.1 * 2.0**-k for k in range(1, 16)), 1.0)
_AS_SAID: Line = (0.0, 1.0)  # right as often as the confidence says


class LabelPolicy:
    """Draws which predictions want a label; make one by ``uniform`` or ``budget``.

    Safe to use from threads.

    Args:
        chances: The chance of all, or chances by confidence, as ``uniform`` and ``budget`` make them.
        text: The policy in words, as ``parse_policy`` reads it.

    >>> wanted, chance = LabelPolicy.uniform(0.5).draw([0.6, 0.9], uniforms=[0.4, 0.6])
    >>> wanted.tolist(), chance.tolist()
    ([True, False], [0.5, 0.5])
    """

    def __init__(self, chances: float | _Budget, *, text: str) -> None:
        self._chances = chances
        self.text = text

    @classmethod
    def uniform(cls, rate: float) -> LabelPolicy:
        """Draw each prediction with the same chance, ``rate`` in [LEAST_CHANCE, 1]."""
        if not LEAST_CHANCE <= rate <= 1:  # also NaN
            raise InputError(f"a chance must be in [{LEAST_CHANCE:g}, 1], got {rate}")
        return cls(float(rate), text=f"{rate:g}")

    @classmethod
    def budget(
        cls, per_day: float, *, workers: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> LabelPolicy:
        """Ask for a number of labels a day, with chances that go with sqrt(c (1 - c)).

        They follow the traffic of about the last day. Each is ``LEAST_CHANCE`` at least, so traffic above
        ``per_day / LEAST_CHANCE`` asks for more labels.

        Args:
            per_day: Labels a day in all workers, about.
            workers: Processes that share it.
            clock: Seconds, of any start.
        """
        if not (math.isfinite(per_day) and per_day > 0):
            raise InputError(f"a budget is a number of labels a day above 0, got {per_day}")
        if workers < 1:
            raise InputError(f"workers are processes that serve, at least 1, got {workers}")
        return cls(_Budget(per_day / workers, clock), text=f"{per_day:g}/day")

    def draw(
        self, confidences: ArrayLike, *, uniforms: ArrayLike | None = None
    ) -> tuple[NDArray[np.bool_], Floats]:
        """Tell whether a label is wanted for each prediction (n,), and the chance it had (n,).

        Args:
            confidences: (n,) in [0, 1].
            uniforms: (n,) in [0, 1), which decide; drawn anew by default.
        """
        chance = self.chances(confidences)
        if uniforms is None:
            return np.array([DRAWS.random() < p for p in chance.tolist()], np.bool_), chance
        drawn = np.asarray(uniforms, np.float64)
        if drawn.shape != chance.shape:
            raise ShapeError(f"uniforms must be {chance.shape} like confidences, got {drawn.shape}")
        return drawn < chance, chance

    def chances(self, confidences: ArrayLike) -> Floats:
        """Return the chances (n,) of predictions; a budget counts them as served.

        Args:
            confidences: (n,) in [0, 1].
        """
        given = np.asarray(confidences, np.float64)
        if given.ndim != 1:
            raise ShapeError(f"confidences must be (n,), got {given.shape}")
        values = given.tolist()
        for c in values:
            if not 0 <= c <= 1:  # also NaN
                raise InputError(f"confidences must lie in [0, 1], got {c}; pass probabilities")
        if isinstance(self._chances, float):
            return np.full(len(values), self._chances)
        return np.array(self._chances.of(values), np.float64)

    def observe(self, sums: Sums, *, seconds: float) -> None:
        """Update a budget with the latest counts of the ledger; other policies need no updates.

        Its predictions take the place of the traffic seen so far, such as before a restart; by its labels it
        goes with how often predictions are right. Without, an overconfident model is asked too little where
        it is sure, and can be known less well than by uniform sampling.

        Args:
            sums: Counts of predictions and labels.
            seconds: Time in which they were counted, above 0.
        """
        if not (math.isfinite(seconds) and seconds > 0):
            raise InputError(f"seconds is a time above 0, got {seconds}")
        if not np.isfinite(sums.vector).all():
            raise InputError("sums must be finite numbers, got NaN or infinity; count them anew")
        if isinstance(self._chances, _Budget):
            self._chances.observe(sums, seconds)


class _Budget:
    """Chances that follow the traffic: counts by cell, and their time, both halved every day."""

    def __init__(self, per_day: float, clock: Callable[[], float]) -> None:
        self._per_day, self._clock, self._lock = per_day, clock, threading.RLock()
        self._new, self._fresh = [0] * len(_CELLS), 0
        self._old, self._seconds = np.zeros(len(_CELLS)), 0.0
        self._last, self._due, self._enough = clock(), 0.0, 0.0
        self._rates, self._line = [1.0] * len(_CELLS), _AS_SAID

    def of(self, confidences: list[float]) -> list[float]:
        cells = [bisect_left(_CELLS, c) for c in confidences]
        with self._lock:
            for cell in cells:
                self._new[cell] += 1
            self._fresh += len(cells)
            # By traffic alone: a chance may not depend on the predictions' outcomes.
            if self._fresh >= self._enough or self._clock() >= self._due:
                self._follow()
            rates = self._rates
        return [rates[cell] for cell in cells]

    def observe(self, sums: Sums, seconds: float) -> None:
        with self._lock:
            if sums.predictions.any():
                edges = np.linspace(0, 1, sums.bins + 1)
                below = np.interp(_CELLS, edges, np.concatenate([[0.0], np.cumsum(sums.predictions)]))
                # Of a day of it, as that is how long traffic is remembered.
                self._seconds, part = min(seconds, DAY), min(seconds, DAY) / seconds
                self._old = np.diff(below, prepend=0.0).clip(0) * part
                self._new, self._fresh, self._last = [0] * len(_CELLS), 0, self._clock()
            self._line = _fitted_line(sums)
            self._follow()

    def _follow(self) -> None:
        now = self._clock()
        faded = 0.5 ** (max(now - self._last, 0.0) / DAY)
        self._old = self._old * faded + self._new
        self._seconds = self._seconds * faded + max(now - self._last, 0.0)
        self._new, self._fresh, self._last = [0] * len(_CELLS), 0, now
        # Chances follow the traffic after a minute, or once there is an eighth more of it.
        self._due, self._enough = now + 60.0, max(float(self._old.sum()) * 0.125, 1.0)
        # A start counts as an hour of traffic: its first seconds are no rate yet.
        served = self._old / max(self._seconds, 3600.0) * DAY
        self._rates = _neyman(served, self._per_day, line=self._line).tolist()


def _neyman(served: Floats, wanted: float, *, line: Line = _AS_SAID) -> Floats:
    """Find chances (cells,) by which ``served`` (cells,) bring ``wanted`` labels at least variance."""
    upper = np.asarray(_CELLS)
    right = _along(line, (upper + np.concatenate([[0.0], upper[:-1]])) / 2)
    spread = np.sqrt(right * (1 - right)).clip(1e-6)
    # A tenth of the chance that uniform sampling would have: nowhere is a shift overlooked.
    floor = min(max(0.1 * wanted / max(float(served.sum()), 1e-9), LEAST_CHANCE), 1.0)
    low, high = 0.0, 1 / float(spread.min())
    for _ in range(60):
        scale = (low + high) / 2
        if float(served @ (scale * spread).clip(floor, 1.0)) > wanted:
            high = scale
        else:
            low = scale
    return (high * spread).clip(floor, 1.0)


def _fitted_line(sums: Sums) -> Line:
    """How often predictions are right by their confidence: log-odds a + b log-odds(c) (Platt 1999).

    Fitted to the means of bins, with as much trust in what the confidences say as in 100 labels.
    """
    labelled, n = sums.feedback, np.maximum(sums.labels, 0.0)
    on = (labelled.count > 0) & (n > 0)
    c, right = (part[on] / labelled.count[on] for part in (labelled.confidence, labelled.correct))
    if not on.any():
        return _AS_SAID
    x = np.stack([np.ones(len(c)), _log_odds(c)], axis=1)
    line, trust = np.array(_AS_SAID), 100 / 4 * np.eye(2)  # a label tells a quarter about the log-odds
    for _ in range(20):
        p = _along((float(line[0]), float(line[1])), c)
        slope = x.T @ (n[on] * (right - p)) - trust @ (line - _AS_SAID)
        curve = (x * (n[on] * p * (1 - p))[:, None]).T @ x + trust
        line = line + np.linalg.solve(curve, slope).clip(-1, 1)
    # Steeper, and sure predictions would be asked for next to nothing.
    return float(line[0]), float(np.clip(line[1], 0.0, 2.0))


def _log_odds(c: Floats) -> Floats:
    safe = c.clip(1e-9, 1 - 1e-9)
    odds: Floats = np.log(safe) - np.log1p(-safe)
    return odds


def _along(line: Line, c: Floats) -> Floats:
    right: Floats = 1 / (1 + np.exp(-(line[0] + line[1] * _log_odds(c)).clip(-30, 30)))
    return right


def parse_policy(text: str, *, workers: int = 1) -> LabelPolicy:
    """The policy that a command line names.

    Args:
        text: A number a day ("500/day"), or a chance ("0.05").
        workers: Processes that share a budget.

    >>> parse_policy("0.05").text
    '0.05'
    """
    said = text.strip().replace(" ", "")
    try:
        if said.endswith("/day"):
            return LabelPolicy.budget(float(said.removesuffix("/day")), workers=workers)
        return LabelPolicy.uniform(float(said))
    except InputError as error:
        raise InputError(f"cannot follow the label policy {text!r}: {error}") from error
    except ValueError as error:
        raise InputError(
            f"no label policy: {text!r}; say a number a day (500/day), or a chance (0.05)"
        ) from error
