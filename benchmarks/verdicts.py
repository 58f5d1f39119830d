"""Is "calibrated" said of calibrated models, and only of them?

Models of 2, 10 and 100 classes, whose truth is known: the labels are drawn from probabilities that differ
from the model's own in a stated way. Classes are predicted equally often; one that is off alone has at least
500 predictions. Of each, ``judge`` says a level at the default tolerance (2 points, 3 for a class alone); the
result is how often it says which. Compared with it: the rule "the ECE is at most the tolerance" and the rule
"no significant ECE (p >= 0.05)" of the same samples.

All kinds are screened with a few models each. The four kinds of which judge errs most often are then measured
with fresh ones: of calibrated models where it says "off", of the others where it says "calibrated". Writes
benchmarks/results/verdicts.json.

    python benchmarks/verdicts.py [--screened 30] [--models 300] [--samples 5000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import peers

from calib_serve.core.bins import Bins
from calib_serve.metrics.judging import judge

CONFIDENCES = {"mid": (0.55, 0.95), "wide": (0.5, 1.0), "high": (0.95, 1.0)}
CLASSES = (2, 10, 100)
FIRST = 0.1  # least share of the predictions that name a class which is off alone
ALONE = "one class, 3 points"
WORST = 4  # kinds that are measured with fresh models
RULED = 5  # models of a kind that the usual rules judge, too

Array = np.ndarray


def scores(rng: np.random.Generator, n: int, classes: int, low: float, high: float, first: float) -> Array:
    """Probabilities (n, K): the top one even in [low, high], the rest uneven, none larger than the top.

    ``first`` is the share of the predictions that name class 0.
    """
    top = rng.uniform(low, high, n)
    rest = rng.dirichlet(np.full(classes - 1, 0.5), n)
    even = np.full(classes - 1, 1 / (classes - 1))
    # As much of an even rest as keeps the second below the top.
    limit = np.minimum(0.98 * top / (1 - top + 1e-12), 1.0)
    part = np.clip((limit - even[0]) / np.maximum(rest.max(axis=1) - even[0], 1e-9), 0, 1)[:, None]
    rest = (part * rest + (1 - part) * even) * (1 - top)[:, None]
    named = np.where(rng.random(n) < first, 0, rng.integers(1, classes, n))
    p = np.empty((n, classes))
    others = np.array([[j for j in range(classes) if j != k] for k in range(classes)])
    np.put_along_axis(p, others[named], rest, axis=1)
    p[np.arange(n), named] = top
    return p


def moved(p: Array, by: Array) -> Array:
    """The probabilities whose top one is larger by ``by`` (n,), within [0, 1], at the cost of all others."""
    rows, named = np.arange(len(p)), p.argmax(axis=1)
    top = p[rows, named]
    new = np.clip(top + by, 0, 1)
    q = p * ((1 - new) / np.maximum(1 - top, 1e-12))[:, None]
    q[rows, named] = new
    return q


def prior(p: Array) -> Array:
    """Class 0 is three times as frequent, to the others, as where the model was fitted."""
    q = p * np.where(np.arange(p.shape[1]) == 0, 3.0, 1.0)
    return q / q.sum(axis=1, keepdims=True)


def by_second(p: Array) -> Array:
    """Too sure by 5 points where the second takes most of the rest, not sure enough where it does not."""
    ordered = np.sort(p, axis=1)
    share = ordered[:, -2] / np.maximum(1 - ordered[:, -1], 1e-12)
    return moved(p, np.where(share > np.median(share), -0.05, 0.05))


ERRORS: dict[str, Callable[[Array], Array]] = {
    "overconfident, 3 points": lambda p: moved(p, np.full(len(p), -0.03)),
    "underconfident, 3 points": lambda p: moved(p, np.full(len(p), 0.03)),
    "3 points, of one sign below the median and of the other above": lambda p: moved(
        p, np.where(p.max(axis=1) > np.median(p.max(axis=1)), -0.03, 0.03)
    ),
    ALONE: lambda p: moved(p, np.where(p.argmax(axis=1) == 0, -0.03, 0.0)),
    "prior of one class": prior,
    "cancelling inside bins, 6 points": lambda p: moved(
        p, np.where((p.max(axis=1) * 45).astype(int) % 2, -0.06, 0.06)
    ),
    "by the second probability, 5 points": by_second,
}
"""What the truth is, of the model's probabilities (n, K)."""

LEFT_OUT = {
    # Where the top probability is nearly 1, it cannot be so much too low.
    ("high", "underconfident, 3 points"),
    ("high", "3 points, of one sign below the median and of the other above"),
    ("high", "cancelling inside bins, 6 points"),
    ("high", "by the second probability, 5 points"),
    ("high", "prior of one class"),
    ("wide", "underconfident, 3 points"),
}


def drawn(rng: np.random.Generator, truth: Array) -> Array:
    below = rng.random(len(truth))[:, None] * truth.sum(axis=1, keepdims=True)
    return (truth.cumsum(axis=1) > below).argmax(axis=1)


def rules(p: Array, y: Array, rng: np.random.Generator) -> dict[str, bool]:
    """Whether two usual rules call it calibrated."""
    c = p.max(axis=1)
    ece = Bins.tally(c, p.argmax(axis=1) == y).ece()
    null = [Bins.tally(c, rng.random(len(c)) < c).ece() for _ in range(100)]
    return {"ece": ece <= 0.02, "not significant": ece <= np.quantile(null, 0.95)}


def measure(
    n: int, classes: int, confidence: str, error: str | None, models: int, seed: int
) -> dict[str, float]:
    """How often which level is said, and processor seconds a verdict."""
    rng = np.random.default_rng([seed, n, classes])
    first = max(1 / classes, FIRST) if error == ALONE else 1 / classes
    levels, usual, spent = [], [], 0.0
    for i in range(models):
        p = scores(rng, n, classes, *CONFIDENCES[confidence], first)
        y = drawn(rng, p if error is None else ERRORS[error](p))
        began = time.process_time()
        levels.append(judge(p, y).level)
        spent += time.process_time() - began
        if i < RULED:
            usual.append(rules(p, y, rng))
    found = {
        level: levels.count(level) / models for level in ("calibrated", "no_error_found", "too_little", "off")
    }
    for rule in ("ece", "not significant"):
        found[f"rule: {rule}"] = float(np.mean([one[rule] for one in usual])) if usual else float("nan")
    return {**found, "cpu_s": spent / models}


Kind = tuple[int, str, str | None]
"""Classes, confidences, and how the model is off; None: calibrated."""


def kinds() -> list[Kind]:
    return [
        (classes, confidence, error)
        for classes in CLASSES
        for confidence in CONFIDENCES
        for error in (None, *ERRORS)
        if (confidence, error) not in LEFT_OUT
        and not (classes == 2 and error is not None and error.startswith("by the second"))
    ]


def named(kind: Kind) -> str:
    classes, confidence, error = kind
    return f"{classes} classes, {confidence}: {error or 'calibrated'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--screened", type=int, default=30, help="models of each kind")
    parser.add_argument("--models", type=int, default=300, help="fresh ones, of the worst kinds")
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    args = peers.arguments(parser, screened=3, models=3)

    def look(kind: Kind, models: int, seed: int) -> dict[str, float]:
        found = measure(args.samples, *kind, models, seed)
        print(f"{named(kind):90} {told(found)}", flush=True)
        return found

    screened = {kind: look(kind, args.screened, args.seed) for kind in kinds()}
    result: dict = {**vars(args), "screened": {named(kind): found for kind, found in screened.items()}}
    for name, wrong in (("calibrated", "off"), ("off", "calibrated")):
        of = [kind for kind in screened if (kind[2] is None) == (name == "calibrated")]
        worst = sorted(of, key=lambda kind: screened[kind][wrong], reverse=True)[:WORST]
        result[name] = {named(kind): look(kind, args.models, args.seed + 1) for kind in worst}
    many = measure(10 * args.samples, 10, "mid", None, args.screened, args.seed)
    result["ten times the samples"] = many
    print(f"10 classes, mid, {10 * args.samples} samples {told(many)}")
    peers.save("verdicts", result, args)


def told(found: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.3f}" for name, value in found.items())


if __name__ == "__main__":
    main()
