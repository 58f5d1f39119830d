"""Actions by expected cost, or by a threshold of class 1, and what they promise of new samples.

Costs decide by calibrated probabilities alone (Elkan 2001); the samples only bound the mean cost. Thresholds
are found on the samples, by Learn then Test (Angelopoulos 2021).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import MOST_COST, Choice
from calib_serve.core.errors import FitError, InputError
from calib_serve.core.files import read_whole
from calib_serve.core.names import shown
from calib_serve.core.options.evaluate import PromiseOptions
from calib_serve.metrics import mean_at_most, one_of_each, promised_threshold
from calib_serve.scores import few, read_yaml

_PERMILLE = (999, 995, 990, 980, 950, 900, 850, 800, 700, 600, 500, 400, 300, 200, 100, 50, 20, 10)
"""Shares that are tried where the one that was asked for cannot be promised."""


def choice_by(
    options: PromiseOptions,
    probs: NDArray[np.floating[Any]],
    labels: NDArray[np.intp],
    class_names: Sequence[str],
    codes: NDArray[np.intp] | None = None,
) -> Choice:
    """Choose as options ask, by calibrated probabilities (n, K) that were not fitted to these samples.

    Of samples in groups, ``codes`` (n,), one of each is used: the bounds are of independent samples. Raises
    FitError where no threshold keeps the promise; it names a share that can be kept.
    """
    goal: Any = options.goal or "cost"
    classes = tuple(class_names) or tuple(map(str, range(probs.shape[1])))
    errors = options.of_errors
    if (goal != "cost" or errors is not None) and len(classes) != 2:
        raise InputError(
            f"{'the cost of two errors' if goal == 'cost' else goal} is of two classes, and there are "
            f"{len(classes)}: say what each action costs for each class instead, --cost FILE (cost=)"
        )
    rows = slice(None) if codes is None else one_of_each(codes, seed=options.seed)
    p, y, level = probs[rows].astype(np.float64), labels[rows], options.level
    if goal == "cost":
        fp, fn = errors or (0.0, 0.0)
        of_two = (classes, np.array([[0.0, fp], [fn, 0.0]]))
        actions, costs = read_costs(options.cost, classes) if errors is None else of_two
        choice = Choice(actions, "cost", 0.0, level=level, costs=costs)
        paid, ends = choice.outcomes(p, y)[0], (float(costs.min()), float(costs.max()))
        bound = mean_at_most(paid, *ends, level=level, rng=np.random.default_rng(options.seed))
        return replace(choice, promised=bound)
    share = float(getattr(options, goal))
    found = promised_threshold(p[:, 1], y == 1, goal, share, level=level)
    if not np.isnan(found):
        return Choice(classes, goal, share, level=level, threshold=found)
    shares = [one / 1000 for one in _PERMILLE]
    easier = [s for s in shares[::-1] if s > share] if goal == "budget" else [s for s in shares if s < share]
    kept = (s for s in easier if not np.isnan(promised_threshold(p[:, 1], y == 1, goal, s, level=level)))
    can = next((f"{s:g} can be promised" for s in kept), f"no {goal} can be promised")
    raise FitError(
        f"no threshold keeps a {goal} of {share:g} with probability {level:g}: on these {len(y)} samples, "
        f"{int(np.sum(y == 1))} of them of class 1, {can}. Give more samples, or ask for less"
    )


def read_costs(given: Any, classes: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Read the actions (A,) and their costs (K, A) from a YAML file, or {class: {action: cost}}.

    >>> table = {"ham": {"keep": 0, "drop": 9}, "spam": {"keep": 1, "drop": 0}}
    >>> actions, costs = read_costs(table, ["ham", "spam"])
    >>> actions, costs.tolist()
    (('keep', 'drop'), [[0.0, 9.0], [1.0, 0.0]])
    """
    if isinstance(given, (str, Path)):
        try:
            given = read_yaml(read_whole(Path(given), limit=1 << 20))
        except (OSError, ValueError) as error:
            raise InputError(f"the costs {given} cannot be read: {error}") from error
    if len(set(classes)) < len(classes):
        raise InputError(f"costs are by the names of classes, and two have the same: {few(classes)}")
    table = _named(given, "the costs", classes)
    first = _named(table[classes[0]], f"costs of class {shown(classes[0])}")
    rows = [_named(table[name], f"costs of class {shown(name)}", first) for name in classes]
    for name, row in zip(classes, rows, strict=True):
        for action, cost in row.items():
            number = isinstance(cost, Real) and not isinstance(cost, bool)
            if not number or not abs(cost) <= MOST_COST:
                text = "; a number of YAML is 0.001 or 1.0e-3, not 1e-3" if isinstance(cost, str) else ""
                raise InputError(
                    f"the cost of {shown(action)} for {shown(name)} is a number within {MOST_COST:.0e}, got "
                    f"{shown(cost)}{text}"
                )
    return tuple(first), np.array([[float(row[action]) for action in first] for row in rows])


def _named(value: Any, what: str, names: Collection[str] | None = None) -> dict[str, Any]:
    """A mapping by texts, all the ``names`` and no others; a whole number, as YAML reads 7, is that text."""
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"{what} must be a mapping of names, got {shown(value)}")
    if odd := [key for key in value if isinstance(key, bool) or not isinstance(key, (str, int))]:
        raise InputError(f"{what} have a name that YAML reads as {shown(odd[0])}; put it in quotes")
    found = {str(key): item for key, item in value.items()}
    wrong = [] if names is None else sorted({*names} ^ {*found})
    if wrong or len(found) < len(value):
        raise InputError(
            f"{what} have each of {few(list(names or found))} once, and no other; see {few(wrong)}"
        )
    return found
