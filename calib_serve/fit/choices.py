"""Actions by expected cost, or by a threshold of class 1, and what they promise of new samples.

Costs decide by calibrated probabilities alone (Elkan 2001); the samples only bound the mean cost. Thresholds
are found on the samples, by Learn then Test (Angelopoulos 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import MOST_COST, Choice, Goal, read_yaml
from calib_serve.core.errors import FitError, InputError
from calib_serve.core.files import read_whole
from calib_serve.core.names import shown
from calib_serve.core.options.evaluate import PromiseOptions
from calib_serve.metrics import (
    ThresholdGoal,
    checked,
    group_codes,
    mean_at_most,
    one_of_each,
    promised_threshold,
)
from calib_serve.scores import few

_LIMIT = 1 << 20  # bytes of a file of costs
_SHARES = (
    0.999,
    0.995,
    0.99,
    0.98,
    0.95,
    0.9,
    0.85,
    0.8,
    0.7,
    0.6,
    0.5,
    0.4,
    0.3,
    0.2,
    0.1,
    0.05,
    0.02,
    0.01,
)


def choice_wanted(options: PromiseOptions) -> Goal | None:
    """What a choice of actions is asked to keep; None where none is asked for."""
    goals: tuple[Goal, ...] = ("precision", "recall", "budget")
    by_cost = options.cost is not None or options.cost_fp is not None
    return "cost" if by_cost else next((goal for goal in goals if getattr(options, goal) is not None), None)


def choice_by(
    options: PromiseOptions,
    goal: Goal,
    probs: ArrayLike,
    labels: ArrayLike,
    class_names: Sequence[str],
    *,
    groups: ArrayLike | None = None,
) -> Choice:
    """Make the choice of actions that options ask for, on calibrated probabilities (n, K)."""
    classes = tuple(class_names) or tuple(map(str, range(np.shape(probs)[1])))
    if options.cost is None and len(classes) != 2:
        name = "cost_fp" if goal == "cost" else goal
        raise InputError(
            f"{name} is of two classes, of which class 1 is chosen, and there are {len(classes)}: say what "
            "each action costs for each class instead, --cost (cost=)"
        )
    how: dict[str, Any] = {"level": options.level, "groups": groups, "seed": options.seed}
    if goal != "cost":
        return fit_threshold(probs, labels, goal, getattr(options, goal), actions=classes, **how)
    if options.cost is not None:
        actions, costs = read_costs(options.cost, classes)
    else:
        actions, costs = classes, np.array([[0.0, options.cost_fp], [options.cost_fn, 0.0]])
    return fit_costs(probs, labels, costs, actions=actions, **how)


def fit_costs(
    probs: ArrayLike,
    labels: ArrayLike,
    costs: ArrayLike,
    *,
    actions: Sequence[str],
    level: float = 0.95,
    groups: ArrayLike | None = None,
    seed: int = 0,
) -> Choice:
    """Choose actions of the least expected cost, and bound their mean cost by ``mean_at_most``.

    Args:
        probs: Calibrated probabilities (n, K), which were not fitted to these samples.
        labels: Class ids (n,).
        costs: Cost of each action for a sample of each class (K, A).
        actions: Names of the actions (A,).
        level: Probability that the bound holds, over the draws of these samples.
        groups: Which samples belong together (n,); one of each is used.
        seed: Seed by which that one, and the order of the bets, are drawn.

    Raises:
        InputError: For arrays and costs that cannot be right.

    >>> probs, costs = [[0.9, 0.1], [0.2, 0.8]] * 50, [[0, 1], [5, 0]]
    >>> choice = fit_costs(probs, [0, 1] * 50, costs, actions=["no", "yes"])
    >>> choice([[0.85, 0.15], [0.8, 0.2]]).tolist(), round(choice.promised, 2)  # yes from 1 / 6 on
    ([0, 1], 0.17)
    """
    p, y = checked(probs, labels)
    choice = Choice(tuple(actions), "cost", 0.0, level=level, costs=np.asarray(costs, np.float64))
    if choice.classes != p.shape[1]:
        raise InputError(f"costs are of {choice.classes} classes, and the probabilities of {p.shape[1]}")
    assert choice.costs is not None
    codes = group_codes(groups, len(y))
    rows = slice(None) if codes is None else one_of_each(codes, seed=seed)
    paid, _ = choice.outcomes(p[rows], y[rows])
    ends = float(choice.costs.min()), float(choice.costs.max())
    return replace(choice, promised=mean_at_most(paid, *ends, level=level, rng=np.random.default_rng(seed)))


def fit_threshold(
    probs: ArrayLike,
    labels: ArrayLike,
    goal: ThresholdGoal,
    share: float,
    *,
    actions: Sequence[str] = ("0", "1"),
    level: float = 0.95,
    groups: ArrayLike | None = None,
    seed: int = 0,
) -> Choice:
    """Choose class 1 of two from a threshold that keeps a share; see ``promised_threshold``.

    Args:
        probs: Calibrated probabilities (n, 2), which were not fitted to these samples.
        labels: Class ids (n,).
        goal: "precision", "recall" or "budget".
        share: Share to keep.
        actions: Names of class 0 and of class 1.
        level: Probability that the promise holds, over the draws of these samples.
        groups: Which samples belong together (n,); one of each is used.
        seed: Seed by which that one is drawn.

    Raises:
        InputError: For arrays and shares that cannot be right.
        FitError: Where no threshold keeps the promise; it names a share that can be kept.
    """
    p, y = checked(probs, labels)
    how: dict[str, Any] = {"level": level, "groups": groups, "seed": seed}
    found = promised_threshold(p, y, goal, share, **how)
    if np.isnan(found):
        # The least that these samples allow, and only what asks for less than what failed.
        easier = (
            [s for s in _SHARES if s < share] if goal != "budget" else [s for s in _SHARES[::-1] if s > share]
        )
        can = next((s for s in easier if not np.isnan(promised_threshold(p, y, goal, s, **how))), None)
        most = "at most" if goal == "budget" else "at least"
        told = f"no {goal} can be promised" if can is None else f"{can:g} can be promised"
        raise FitError(
            f"no threshold keeps a {goal} of {most} {share:g} with probability {level:g}: on these {len(y)} "
            f"samples, {int(np.sum(y == 1))} of them of class 1, {told}. Give more samples, or ask for less"
        )
    return Choice(tuple(actions), goal, float(share), level=level, threshold=found)


def read_costs(given: Any, classes: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Read the actions (A,) and their costs (K, A) from a YAML file, or from a mapping of mappings.

    Args:
        given: The file, or {class: {action: cost}}.
        classes: Names of the classes (K,).

    Raises:
        InputError: Where it is no such table; it says what is wrong.

    >>> table = {"ham": {"keep": 0, "drop": 9}, "spam": {"keep": 1, "drop": 0}}
    >>> actions, costs = read_costs(table, ["ham", "spam"])
    >>> actions, costs.tolist()
    (('keep', 'drop'), [[0.0, 9.0], [1.0, 0.0]])
    """
    table = _names(_parsed(given) if isinstance(given, (str, Path)) else given, "the costs")
    if len(set(classes)) < len(classes):
        raise InputError(f"costs are by the names of classes, and two have the same: {few(classes)}")
    missing, more = [k for k in classes if k not in table], [k for k in table if k not in classes]
    if missing or more:
        raise InputError(
            "the costs have a row for each true class, by name: "
            + (f"{few(missing)} is missing" if missing else f"{few(more)} is no class")
            + f"; the classes are {few(classes)}"
        )
    rows = {name: _names(table[name], f"costs of class {shown(name)}") for name in classes}
    actions = tuple(rows[classes[0]])
    for name, row in rows.items():
        if set(row) != set(actions):
            other = sorted(set(row) ^ set(actions))
            raise InputError(
                f"every class has a cost of the same actions: {few(other)} is not in all rows, such as "
                f"{shown(name)}"
            )
        for action, cost in row.items():
            number = isinstance(cost, (int, float, np.number)) and not isinstance(cost, bool)
            if not number or not abs(cost) <= MOST_COST:
                text = "; a number of YAML is 0.001 or 1.0e-3, not 1e-3" if isinstance(cost, str) else ""
                raise InputError(
                    f"the cost of {shown(action)} for {shown(name)} is a number within {MOST_COST:.0e}, got "
                    f"{shown(cost)}{text}"
                )
    return actions, np.array([[float(rows[k][a]) for a in actions] for k in classes])


def _parsed(path: str | Path) -> Any:
    try:
        return read_yaml(read_whole(Path(path), limit=_LIMIT))
    except (OSError, ValueError) as error:
        raise InputError(f"the costs {path} cannot be read: {error}") from error


def _names(value: Any, what: str) -> dict[str, Any]:
    """A mapping by texts; a whole number, as YAML reads the name 7, is that text."""
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"{what} must be a mapping of names, got {shown(value)}")
    if odd := [key for key in value if isinstance(key, bool) or not isinstance(key, (str, int))]:
        raise InputError(f"{what} have a name that YAML reads as {shown(odd[0])}; put it in quotes")
    found = {str(key): item for key, item in value.items()}
    if len(found) < len(value):
        raise InputError(f"{what} have a name twice")
    return found
