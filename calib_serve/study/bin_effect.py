"""Does the ranking of methods depend on how many bins one takes? (Neural Clamping, appendix D)."""

from __future__ import annotations

from collections.abc import Sequence

from calib_serve.metrics import adaptive_ece, classwise_ece, ece
from calib_serve.study.fitting import Fit, OutputFit
from calib_serve.study.result import Curve, Samples, Study, arrays, listed


def bin_effect(
    cal: Samples,
    test: Samples,
    *,
    methods: Sequence[str] = ("none", "temperature"),
    counts: Sequence[int] = (10, 15, 20),
    fit: Fit | None = None,
    seed: int = 0,
) -> Study:
    """ECE, adaptive and classwise ECE of each method, fitted on ``cal``, at each bin count.

    ``cal`` and ``test`` are inputs and class ids, as ``fit`` takes them, logits by default.
    """
    (z, y), (x, labels) = arrays(test, fit), arrays(cal, fit)
    fit = fit or OutputFit(seed=seed)
    probs = {method: fit.probs(fit.fit(method, x, labels), z) for method in methods}
    rows = tuple(
        (
            method,
            count,
            ece(p, y, bins=count),
            adaptive_ece(p, y, bins=count),
            classwise_ece(p, y, bins=count),
        )
        for method, p in probs.items()
        for count in counts
    )
    found = {(str(row[0]), int(row[1])): float(row[2]) for row in rows}
    orders = [tuple(sorted(methods, key=lambda m: found[m, count])) for count in counts]
    return Study(
        title=f"Calibration errors over {listed([str(c) for c in counts])} bins",
        header=("method", "bins", "ece", "adaptive_ece", "classwise_ece"),
        rows=rows,
        says=_says(orders, counts),
        curves=tuple(
            Curve(method, tuple(map(float, counts)), tuple(found[method, count] for count in counts))
            for method in methods
        ),
        x_label="bins",
        y_label="ECE",
    )


def _says(orders: list[tuple[str, ...]], counts: Sequence[int]) -> tuple[str, ...]:
    if len(set(orders)) == 1:
        return (f"the order by ECE is the same at every bin count: {', '.join(orders[0])}",)
    return tuple(f"by ECE at {n} bins: {', '.join(order)}" for n, order in zip(counts, orders, strict=True))
