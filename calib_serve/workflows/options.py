"""What can be asked of the methods, by name; each method says which of these it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypedDict, Union

from numpy.typing import ArrayLike

__all__ = ["ModelOptions", "OutputOptions", "Progress", "stage"]


class OutputOptions(TypedDict, total=False):
    """Options of "auto" and of the output calibrators.

    "auto": ``candidates`` (names, simplest first), ``keep_predictions`` (no method that may change a class),
    ``criterion``, ``folds``, ``tolerance`` (how far accuracy and refinement may fall), ``level`` of its
    intervals. Vector and matrix: ``ridge``. ODIR: ``lam``, ``mu``,
    ``folds``. Structured: ``strength``, ``folds``. Histograms: ``bins``, ``of`` ("top" class or "each"),
    ``smoothing`` (pretended samples a bin). The temperature of least ECE: ``grid``, ``bins``.
    """

    candidates: Sequence[str]
    keep_predictions: bool
    criterion: Literal["nll", "brier", "ece"]
    folds: int
    tolerance: float
    level: float
    ridge: float
    lam: float
    mu: float
    strength: float
    bins: int
    of: Literal["top", "each"]
    smoothing: float
    grid: Union[Literal["fine", "medium", "coarse"], ArrayLike]


class ModelOptions(OutputOptions, total=False):
    """Options of Neural Clamping and of new heads, beside those of the output calibrators.

    Neural Clamping: ``gamma`` of the focal loss ("paper": the paper's 21, by calibration ECE), ``penalty``,
    ``resolution``, ``judge``, ``start``, ``norm_power``, ``normalisation`` (mean, std), ``clip``,
    ``input_range``, ``schedule`` ("paper" or "toolkit": SGD as printed or as published, with fewer options,
    and gamma 1 by default). Its efficient form: ``search``, ``grid``, ``input_range``. Masked head:
    ``reading`` of the paper ("expected" scales the weights by q, "paper" as it is printed, "no-mask" the same
    head without masks), ``held_share``, ``then`` (an output method fitted behind it to the held-out part).
    Tuned head: ``strength``, ``folds``, ``then``.
    """

    gamma: Union[float, Sequence[float], Literal["paper"]]
    penalty: Union[float, Literal["tenth"], Sequence[Union[float, Literal["tenth"]]]]
    resolution: Union[int, Literal["auto"], Sequence[Union[int, None]], None]
    judge: Literal["folds", "calibration-ece"]
    start: Literal["zero", "data", "random"]
    norm_power: Literal[1, 2]
    normalisation: tuple[ArrayLike, ArrayLike]
    clip: tuple[float, float]
    input_range: tuple[float, float]
    schedule: Literal["ours", "paper", "toolkit"]
    search: Literal["ece", "nll"]
    reading: Literal["expected", "paper", "no-mask"]
    held_share: float
    then: str


Progress = Callable[[str, int, int], None]
"""Called with (what is being done, how much of it is done, how much of it there is)."""


def stage(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    """The callback of one part of the work, (done, total); None where nobody listens.

    >>> calls = []
    >>> stage(lambda *call: calls.append(call), "logits")(1, 2)
    >>> calls
    [('logits', 1, 2)]
    """
    return None if progress is None else partial(progress, what)
