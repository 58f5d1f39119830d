"""Several methods fitted on the same samples and measured on others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import ArrayLike

from calib_serve.errors import CalibServeError
from calib_serve.fit.output import CANDIDATES, fit_by_name, options_of, select
from calib_serve.fit.samples import Samples
from calib_serve.metrics import Evaluation, evaluate
from calib_serve.workflows.progress import Progress

__all__ = ["Compared", "compare"]


@dataclass(frozen=True)
class Compared:
    """One method: the ``seconds`` its fit took and its ``metrics``, or the ``error`` that kept it from a fit.

    ``method`` is "auto: NAME" where it was chosen.
    """

    method: str
    seconds: float = 0.0
    metrics: Evaluation | None = None
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        if self.metrics is None:
            return {"method": self.method, "error": self.error}
        return {"method": self.method, "seconds": self.seconds, "metrics": self.metrics.as_dict()}


def compare(
    fit: tuple[ArrayLike, ArrayLike],
    test: tuple[ArrayLike, ArrayLike],
    methods: Sequence[str] | Literal["all"] = "all",
    *,
    replicates: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Compared, ...]:
    """Fit output ``methods`` ("auto" may be among them) on ``fit`` and measure each on ``test``.

    Both are logits (n, K), or (n,) for one binary logit, and class ids (n,). ``replicates``: bootstrap
    resamples of the metrics' intervals, 0 for none. A method that cannot be fitted says why. Raises
    InputError for arrays and names that cannot be right.

    >>> z, y = [[0.0, 2.0]] * 40, [1, 1, 1, 0] * 10
    >>> [f"{one.method} {one.metrics.ece:.3f}" for one in compare((z, y), (z, y), ["none", "temperature"])]
    ['none 0.131', 'temperature 0.000']
    """
    names = list(CANDIDATES) if methods == "all" else list(methods)
    for name in names:
        if name != "auto":
            options_of(name)
    fitted, tested = Samples.of(*fit), Samples.of(*test)
    rows = []
    for i, name in enumerate(names):
        if progress:
            progress(name, i, len(names))
        began = time.perf_counter()
        try:
            if name == "auto":
                artifact = select(fitted, fitted.labels, seed=seed)
            else:
                artifact = fit_by_name(name, fitted, fitted.labels, seed=seed)
        except CalibServeError as error:
            rows.append(Compared(name, error=str(error)))
            continue
        seconds = time.perf_counter() - began
        found = evaluate(artifact.probs(tested.logits), tested.labels, replicates=replicates, seed=seed)
        rows.append(Compared(f"auto: {artifact.method}" if name == "auto" else name, seconds, found))
    return tuple(rows)
