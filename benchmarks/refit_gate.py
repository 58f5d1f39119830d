"""How often does a refit deploy when nothing changed, and how many labels does it need when something did?

    CALIB_SERVE_DATA=... python benchmarks/refit_gate.py [--quick] [--runs N]

Served samples are drawn from real scores (Kull's ResNet-110 on CIFAR-10, two-class forecasts of ACS
employment). "exact": labels are drawn from the current calibration itself. "estimated": from a temperature,
which the current one estimates from 5,000 other samples. "real": real labels; the current one is fitted to
5,000 samples, and others are served. Where something changed the current one was right, and is said to be
fitted to 5,000, too. Four rules are asked once, after 2,000 labels, and 20 times, after every
250 labels of the same stream; "asked 20 times" counts a stream once, however often it deployed.

- one standard error: held-out NLL of the latest 30 %, more than one standard error better;
- t test: the same at the stated rate, at the k-th ask at its share 1 / (k (k + 1));
- betting on differences: of the NLL of each label, prequentially, each at least log 0.1 by mixing
  (Waudby-Smith and Ramdas 2023);
- evidence: what ``calib_serve.fit.refitting`` does.

Structured vector scaling has a tenth of the streams, as it takes fifty times as long.

Writes benchmarks/results/refit_gate.json. Times are not measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import peers  # noqa: E402

from calib_serve.core.errors import FitError  # noqa: E402
from calib_serve.fit import fit_by_name  # noqa: E402
from calib_serve.fit.refitting import prequential  # noqa: E402
from calib_serve.fit.samples import Samples  # noqa: E402
from calib_serve.metrics.distributions import student_beyond  # noqa: E402
from calib_serve.scores import log_probs, softmax  # noqa: E402

ALPHA = 0.05
ASKS = tuple(range(250, 5001, 250))
ONE_ASK = ASKS.index(2000)
FITTED = 5000
NULLS = ("exact", "estimated", "real")
CHANGES = ("T x 1.3", "T / 1.3", "a class doubled")
SLOW = ("structured-vector",)  # a tenth of the streams
OLD, T_TEST, BETTING, OURS = "one standard error", "t test", "betting on differences", "evidence"
METHODS = {2: ("temperature", "platt"), 10: ("temperature", "structured-vector")}


def scores(classes):
    """Logits (n, K) and labels (n,)."""
    folder = Path(os.environ["CALIB_SERVE_DATA"])
    if classes == 10:
        kept = np.load(folder / "logits" / "kull_resnet110_c10.npz")
        parts = [
            np.concatenate([kept[f"{part}_{what}"] for part in ("cal", "test")])
            for what in ("logits", "labels")
        ]
        return parts[0].astype(float), parts[1].ravel().astype(int)
    kept = np.load(folder / "streams" / "acs_employment_ma.npz")
    first = kept["year"] == kept["year"].min()
    p = np.clip(kept["prob1"][first].astype(float), 1e-6, 1 - 1e-6)
    return np.stack([np.zeros(len(p)), np.log(p) - np.log1p(-p)], axis=1), kept["label"][first].astype(int)


def fitted(method, z, y):
    """Its probabilities."""
    return fit_by_name(method, Samples.of(z, y, outputs="logits"), y).probs


def drawn(probs, rng):
    return (probs.cumsum(axis=1) < rng.random((len(probs), 1))).sum(axis=1).clip(max=probs.shape[1] - 1)


def stream(kind, method, z, y, temperature, rng):
    """The current probabilities, to how many they were fitted, and what is served: (n, K) and (n,)."""
    rows = rng.permutation(len(z))
    old, rows = rows[:FITTED], rows[FITTED:]
    if kind == "real":
        return fitted(method, z[old], y[old]), FITTED, z[rows[: ASKS[-1]]], y[rows[: ASKS[-1]]]

    def truth(logits, factor=1.0):
        return softmax(logits / (temperature * factor))

    if kind == "estimated":
        rows = rows[: ASKS[-1]]
        current = fitted(method, z[old], drawn(truth(z[old]), rng))
        return current, FITTED, z[rows], drawn(truth(z[rows]), rng)
    factor = {"T x 1.3": 1.3, "T / 1.3": 1 / 1.3}.get(kind, 1.0)
    labels = drawn(truth(z[rows], factor), rng)
    if kind == "a class doubled":  # what is not of that class is left out half of the time
        kept = (labels == 1) | (rng.random(len(rows)) < 0.5)
        rows, labels = rows[kept], labels[kept]
    return truth, np.inf if kind == "exact" else FITTED, z[rows[: ASKS[-1]]], labels[: ASKS[-1]]


def held_out(method, current, z, y):
    """At each ask: the gain of the latest 30 % over its standard error, and their number."""
    found = []
    for n in ASKS:
        if n > len(y):
            break
        cut = n - int(0.3 * n)
        try:
            new = fitted(method, z[:cut], y[:cut])
        except FitError:  # such as no finite temperature: nothing is deployed
            found.append((0.0, n - cut))
            continue
        rows = np.arange(n - cut)
        old_nll, new_nll = (-log_probs(p(z[cut:n])[rows, y[cut:n]]) for p in (current, new))
        d = old_nll - new_nll
        found.append((d.mean() / (d.std(ddof=1) / np.sqrt(len(d)) + 1e-300), len(d)))
    return found


def t_test(found, alpha):
    """Whether each gain is above 0 at level ``alpha``, one-sided."""
    return [t > 0 and student_beyond(t, n - 1) / 2 < a for (t, n), a in zip(found, alpha, strict=False)]


def difference_bets(old, new):
    """log evidence (n,) against "the new one is no better": bets on NLL differences."""
    mixed = -np.logaddexp(np.log(0.9) - new, np.log(0.1) - old)
    low = -np.log(0.1)
    gain = (old - mixed) / low  # at least -1
    mean, square = np.cumsum(gain), np.cumsum(gain**2) + 1 / 4
    share = np.clip(np.concatenate([[0], mean[:-1] / square[:-1]]), 0, 0.5)
    return np.cumsum(np.log1p(share * gain))


def run(kind, method, data, temperature, seed, *, rivals):
    """Whether each rule deploys, at each ask; rules by held-out samples where ``rivals`` says so."""
    current, fitted_to, z, y = stream(kind, method, *data, temperature, np.random.default_rng(seed))
    samples = Samples.of(z, y, outputs="logits")
    found = prequential(
        samples, current, lambda part: fit_by_name(method, part, part.labels).probs, fitted_to=fitted_to
    )
    asks = np.array([n for n in ASKS if n <= len(y)]) - 1
    needed = -np.log(ALPHA)
    by_bets = (difference_bets(*found.nll)[asks] >= needed).tolist()
    by_evidence = (found.log_evidence[asks] >= needed).tolist()
    rules = {BETTING: (by_bets, by_bets), OURS: (by_evidence, by_evidence)}
    if rivals:
        held = held_out(method, current, z, y)
        k = np.arange(1, len(held) + 1)
        better = [t > 1 for t, _ in held]
        spent = t_test(held, ALPHA / (k * (k + 1)))
        rules |= {OLD: (better, better), T_TEST: (spent, t_test(held, np.full(len(held), ALPHA)))}
    return rules


def summary(runs):
    """Of each rule: shares that deployed, and after how many labels (quartiles; None for never)."""
    rules = {}
    for rule in (OLD, T_TEST, BETTING, OURS):
        told = [one[rule] for one in runs if rule in one]
        if not told:
            continue
        first = [ASKS[many.index(True)] if True in many else np.inf for many, _ in told]
        quartiles = np.quantile(first, [0.25, 0.5, 0.75], method="nearest")
        rules[rule] = {
            "streams": len(told),
            "one_ask": float(np.mean([bool(single[ONE_ASK]) for _, single in told])),
            "asks": float(np.mean([any(many) for many, _ in told])),
            "labels": [None if np.isinf(q) else int(q) for q in quartiles],
        }
    return rules


def setting(classes, method, kind, data, temperature, options):
    """One kind of streams under one method."""
    changed, slow = kind in CHANGES, method in SLOW
    count = (options.changed if changed else options.runs) // (10 if slow else 1)
    runs = [
        run(kind, method, data, temperature, seed, rivals=seed < options.rivals // (10 if slow else 1))
        for seed in range(count)
    ]
    rules = summary(runs)
    print(f"\n{classes} classes, {method}, {kind}")
    for rule, row in rules.items():
        shares = f"one ask {row['one_ask']:6.1%}, {len(ASKS)} asks {row['asks']:6.1%}"
        print(f"  {rule:24s} {shares}, labels {row['labels']}, {row['streams']} streams", flush=True)
    return {"classes": classes, "method": method, "kind": kind, "changed": changed, "rules": rules}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000, help="streams where nothing changed")
    parser.add_argument("--changed", type=int, default=100, help="streams where something did")
    parser.add_argument("--rivals", type=int, default=100, help="streams of rules by held-out samples")
    parser.add_argument("--only", default="", help="a part of a setting's name")
    options = peers.arguments(parser, runs=40, changed=20, rivals=10)
    result = {"quick": options.quick, "alpha": ALPHA, "asks": ASKS, "settings": []}
    for classes, methods in METHODS.items():
        data = scores(classes)
        temperature = fit_by_name("temperature", Samples.of(*data, outputs="logits"), data[1]).temperature
        for method in methods:
            for kind in (*NULLS, *CHANGES):
                if options.only in f"{classes} classes, {method}, {kind}":
                    result["settings"].append(setting(classes, method, kind, data, temperature, options))
    peers.save("refit_gate", result, options)


if __name__ == "__main__":
    main()
