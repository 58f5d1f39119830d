"""How often is a contract that is kept said to be broken, and how soon one that is?

Streams of a year are drawn from real confidences (test logits of a CIFAR-10 network, at its temperature),
of which those from 0.9 on are acted on. Their accuracy is exactly what is promised, the hardest case, or
that of the confidences themselves. Outcomes that are wrong are told three times sooner than right ones, and a
label that comes after the maturity, behind which 99 % have come, is lost; or all of the unsure are labelled
and 5 % of the others; or the labels come in groups of five, which are mostly right or wrong together.
"Inside a bin" is a choice that cuts through one: nobody can repair it who does not know it, and receipts can
note it. What is fed and weighed is what ``calib-serve watch`` feeds and weighs.

A breach is 1 or 3 points, from the first label on or after 10,000 that were kept. Its labels are compared
with those of the binomial test of the same level that is looked at once, after the number that gives it a
power of 80, 90 or 95 %. Writes benchmarks/results/contracts.json.

    python benchmarks/contracts.py [--streams 1000] [--labels 20000] [--breaches 500]
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

import numpy as np
import peers

from calib_serve.core.bins import bin_index
from calib_serve.metrics import binomial_at_most
from calib_serve.monitor.bets import ALPHA, Evidence, share_bets
from calib_serve.monitor.contracts.evidence import ClauseEvidence, Labelled, for_all, unlabelled
from calib_serve.receipts.sums import Sums
from calib_serve.scores import softmax

ABOVE, PROMISE, BINS = 0.9, 0.98, 15
UNSURE = {"unsure ones chosen": 14 / BINS, "inside a bin": 0.97, "inside a bin, noted": 0.97}
CASES = ("all labelled", "late by outcome", *UNSURE, "groups of five")
QUANTILES = (0.5, 0.8, 0.9, 0.95)
_MOST = 2_000_000  # labels that are drawn of a stream
_WINDOW = 0.04  # of the number, in which the power of a test may fall back


def confidences(name: str = "kull_resnet110_c10", temperature: float = 2.395) -> np.ndarray:
    if not (folder := os.environ.get("CALIB_SERVE_DATA")):
        sys.exit("CALIB_SERVE_DATA is not set: it names the folder of real logits")
    with np.load(Path(folder) / "logits" / f"{name}.npz") as kept:
        return softmax(kept["test_logits"].astype(float) / temperature).max(axis=1)


def drawn(pool: np.ndarray, accuracy: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Confidences of what is acted on, and whether they are right."""
    acted = pool[pool >= ABOVE]
    c = rng.choice(acted, n)
    # As sure ones are more often right, but all together as often as is promised.
    chance = c if accuracy == "calibrated" else 1 - (1 - c) * (1 - PROMISE) / (1 - acted).mean()
    return c, rng.random(n) < chance


def year(case: str, accuracy: str, pool: np.ndarray, labels: int, rng: np.random.Generator) -> ClauseEvidence:
    """What is known of the clause after ``labels`` of it, fed day by day."""
    evidence, sums = ClauseEvidence(), Sums.zeros(BINS)
    share = 1.0 if case not in UNSURE else 0.05 + 0.95 * (pool[pool >= ABOVE] < UNSURE[case]).mean()
    for _ in range(50):
        n = round(labels / 50 / share)
        c, y = drawn(pool, accuracy, n, rng)
        group, inclusion, told = np.zeros(n, np.int64), np.ones(n), np.ones(n, bool)
        if case == "late by outcome":
            delay = rng.exponential(np.where(y, 3.0, 1.0))
            told = delay <= np.quantile(delay, 0.99)
        elif case in UNSURE:
            inclusion = np.where(c < UNSURE[case], 1.0, 0.05)
            told = rng.random(n) < inclusion
            inclusion = inclusion if "noted" in case else np.ones(n)
        elif case == "groups of five":
            group = 1 + np.arange(n) // 5
            follows = rng.random(n) < 0.8
            y = np.where(follows, y[np.arange(n) // 5 * 5], y)
        sums += Sums.served(c, bins=BINS)
        sums += Sums.labelled(c[told], y[told], weight=1 / inclusion[told], bins=BINS)
        bins = bin_index(c[told], bins=BINS)
        rows = Labelled(y[told].astype(float), 1 / inclusion[told], bins, group[told])
        rows = rows._replace(weight=for_all(sums, rows))
        evidence = evidence.after(rows, PROMISE, now=1.0, unlabelled=unlabelled(sums))
    return evidence


def said(case: str, accuracy: str, pool: np.ndarray, streams: int, labels: int) -> dict:
    found = [year(case, accuracy, pool, labels, np.random.default_rng(seed)) for seed in range(streams)]
    return {
        "broken": float(np.mean([one.broken_at is not None for one in found])),
        "kept": float(np.mean([one.kept_at is not None for one in found])),
        "labels": float(np.mean([one.labels for one in found])),
    }


def labels_until_broken(
    promise: float,
    breach: float,
    *,
    power: tuple[float, ...] = (0.9,),
    kept: int = 10_000,
    streams: int = 200,
    seed: int = 0,
) -> list[float]:
    """Simulate the number of labels by which the served test says "broken" in shares ``power`` of cases.

    Labels are right with the probability ``promise`` until ``kept`` of them, then ``breach`` below. Cases in
    which it is said before the breach, at most 5 %, are left out.
    """
    rng = np.random.default_rng(seed)
    found: list[int] = []
    while len(found) < streams:
        start = _fed(Evidence.none(), rng.random(kept) >= promise, promise)
        # What is said before the breach is a false alarm, and no sign of power.
        if not _broken(start):
            found.append(_stop(start, rng, promise, breach))
    return [float(np.quantile(found, share, method="higher")) for share in power]


def _stop(evidence: Evidence, rng: np.random.Generator, promise: float, breach: float) -> int:
    """The number of labels after which a stream is said to be broken."""
    done, block = 0, 256  # labels fed at once, at first
    while done < _MOST:
        wrong = rng.random(block) >= promise - breach
        after = _fed(evidence, wrong, promise)
        if _broken(after):
            low, high = 0, block
            while high - low > 1:  # the peak only rises
                middle = (low + high) // 2
                low, high = (
                    (low, middle) if _broken(_fed(evidence, wrong[:middle], promise)) else (middle, high)
                )
            return done + high
        evidence, done, block = after, done + block, min(2 * block, 4096)
    raise ValueError(
        f"a breach of {100 * breach:g} points is not noticed within {_MOST:,} labels; plan for a larger one"
    )


def _fed(evidence: Evidence, wrong: np.ndarray, promise: float) -> Evidence:
    """Feed labels as the watch does."""
    return evidence.after(*share_bets(~wrong, promise))


def _broken(evidence: Evidence) -> bool:
    return evidence.peak >= -math.log(ALPHA)


def fixed_labels(promise: float, breach: float, *, power: float = 0.9, alpha: float = ALPHA) -> int:
    """The labels of a binomial test at level ``alpha``, looked at once, with ``power`` at the breach.

    The smallest number at which the exact test has that power; of ten thousands, one that is hardly larger.
    """
    n = 1
    while _power(n, promise, breach, alpha) < power:
        n = math.ceil(n * 1.2)
        if n > _MOST:
            raise ValueError(f"a breach of {100 * breach:g} points takes more than {_MOST:,} labels to find")
    low, high = max(int(n / 1.45), 1), n
    while high - low > max(_WINDOW * high, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if _power(middle, promise, breach, alpha) >= power else (middle, high)
    # The power is not monotone: it falls back a little wherever one more right label is allowed.
    first = max(int(low * (1 - _WINDOW)), 1)
    step = max((high - first) // 1000, 1)
    tried = range(first, high + step, step)
    return next((m for m in tried if _power(m, promise, breach, alpha) >= power), high)


def _power(n: int, promise: float, breach: float, alpha: float) -> float:
    """P(rejected) at ``promise - breach``, by the test that rejects a kept promise with ``alpha``."""
    low, high = -1, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_at_most(middle, n, promise) <= alpha else (low, middle)
    return 0.0 if low < 0 else binomial_at_most(low, n, promise - breach)


def breached(promise: float, breach: float, kept: int, streams: int) -> dict:
    """Labels until a breach is said, against the fixed test of each power."""
    shares = np.linspace(0, 1, 201)[1:-1]
    stops = labels_until_broken(promise, breach, power=tuple(shares.tolist()), kept=kept, streams=streams)
    fixed = {f"{power:g}": fixed_labels(promise, breach, power=power) for power in QUANTILES[1:]}
    mean = float(np.mean(stops))
    at = dict(zip(shares.round(3).tolist(), stops, strict=True))
    return {
        "promise": promise,
        "breach": breach,
        "kept_before": kept,
        "mean": mean,
        "quantiles": {f"{q:g}": at[q] for q in QUANTILES},
        "fixed": fixed,
        "times_fixed": {power: mean / n for power, n in fixed.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--labels", type=int, default=20_000)
    parser.add_argument("--breaches", type=int, default=500)
    args = peers.arguments(parser, streams=50, labels=5000, breaches=50)
    pool, result = confidences(), vars(args).copy()
    result["said"] = {}
    for accuracy in ("as promised", "calibrated"):
        for case in CASES:
            found = said(case, accuracy, pool, args.streams, args.labels)
            result["said"][f"{accuracy}, {case}"] = found
            print(
                f"{accuracy:12} {case:20} broken {found['broken']:.3f} kept {found['kept']:.3f}", flush=True
            )
    result["breaches"] = []
    for promise in (0.95, 0.98):
        for breach in (0.01, 0.03):
            for kept in (0, 10_000):
                one = breached(promise, breach, kept, args.breaches)
                result["breaches"].append(one)
                times = ", ".join(f"{t:.2f} of power {p}" for p, t in one["times_fixed"].items())
                print(
                    f"{promise} {breach} after {kept}: mean {one['mean']:.0f}, {one['quantiles']}; {times}",
                    flush=True,
                )
    peers.save("contracts", result, args)


if __name__ == "__main__":
    main()
