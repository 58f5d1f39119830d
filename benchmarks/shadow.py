"""Is a better shadow promoted, and a worse one not? And what does a shadow cost a receipt and a label?

    CALIB_SERVE_DATA=... python benchmarks/shadow.py [--quick] [--streams N]

Streams are drawn with replacement from real logits and labels of seven networks; the served artifact is a
temperature, and so is the shadow. "gains 1 %": the served one is off, to either side, by as much as makes
the NLL of its confidences (of being right) 1 % worse than the shadow's, which is the best there is. "loses 1
%": the two change places. "same NLL": temperatures at both sides of the best one, of the same NLL. "same
score": one is as there, the other such that the mean of the score that is tested is 0, which is the null at
its hardest; NLL is not that score, as a few confident errors make much of it. After every 100 labels of
20,000 the verdict is asked for, and a stream counts as promoted once it was ever "better"; a refusal is a
shadow that gains and was not. The rivals bet on other scores with the same shares: the plain Brier score of
the confidence, and the log score cut off at 1 %, without the limit of a nat; and "looking every day" is a
paired t test of the log score at 5 %, asked as often.

A receipt's bytes are of the body that is signed. The cost of a label is that of ``labels.py``, processor
seconds up to the drift detector and the shadow's test, with a shadow over without, turn by turn.

Writes benchmarks/results/shadow.json.
"""

from __future__ import annotations

import argparse
import base64
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import peers  # noqa: E402
from scipy.optimize import brentq, minimize_scalar  # noqa: E402

from calib_serve.ledger import LabelRecord, Ledger, Shadowed  # noqa: E402
from calib_serve.ledger.intake import Intake  # noqa: E402
from calib_serve.monitor.bets import ALPHA, BETS, MeanBets  # noqa: E402
from calib_serve.monitor.feed import DriftFeed  # noqa: E402
from calib_serve.monitor.shadow import ShadowFollower, ShadowTest  # noqa: E402
from calib_serve.receipts import Keyring, Shadow  # noqa: E402
from calib_serve.receipts.classes import Classes  # noqa: E402
from calib_serve.scores import softmax  # noqa: E402

LABELS, EVERY = 20_000, 100
OURS, BRIER, LOG, T_TEST = "ours", "Brier score", "log score without a limit", "t test, looking every day"
TAG = b"\x0a\x1b\x2c\x3d"


def scores(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, K), and whether each of their first classes is right."""
    kept = np.load(Path(os.environ["CALIB_SERVE_DATA"]) / "logits" / f"{name}.npz")
    parts = [one.removesuffix("_logits") for one in kept.files if one.endswith("_logits")]
    z = np.concatenate([kept[f"{part}_logits"] for part in parts]).astype(float)
    return z, z.argmax(axis=1) == np.concatenate([kept[f"{part}_labels"].ravel() for part in parts])


def nll(c: np.ndarray, right: np.ndarray) -> float:
    """Of confidences, about being right."""
    c = c.clip(1e-12, 1 - 1e-12)
    return float(-np.where(right, np.log(c), np.log1p(-c)).mean())


def cases(name: str) -> dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """By what the shadow does: (served confidences, the shadow's, right) of the whole set."""
    z, right = scores(name)

    def at(log_t: float) -> np.ndarray:
        return softmax(z / np.exp(log_t)).max(axis=1)

    best = float(minimize_scalar(lambda t: nll(at(t), right), bounds=(-3, 3), method="bounded").x)
    sides = [
        at(brentq(lambda t: 0.99 * nll(at(t), right) - nll(at(best), right), best, best + side))
        for side in (2.0, -2.0)
    ]
    return {
        "gains 1 %": [(off, at(best), right) for off in sides],
        "loses 1 %": [(at(best), off, right) for off in sides],
        "same NLL": [(sides[0], sides[1], right), (sides[1], sides[0], right)],
        "same score": [
            (sides[0], at(brentq(lambda t: gain(sides[0], at(t), right), best - 2, best)), right),
            (sides[1], at(brentq(lambda t: gain(sides[1], at(t), right), best, best + 2)), right),
        ],
    }


def gain(served: np.ndarray, shadow: np.ndarray, right: np.ndarray) -> float:
    """The mean of the score that is tested, written out: log scores cut off at 1 %, a nat at most."""
    a, b = served.clip(0.01, 0.99), shadow.clip(0.01, 0.99)
    either = np.log(b / a), np.log((1 - b) / (1 - a))
    most = np.maximum(np.abs(either[0]), np.abs(either[1]))
    return float((np.where(right, *either) / np.maximum(most, 1)).mean())


def rows_of(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> list[LabelRecord]:
    """One for each sample of the set, as a ledger gives them."""
    return [
        LabelRecord("m", "1", 0.0, b"", 0.0, c, bool(y), 0, 1.0, 0, (), Shadowed(s, bool(y), True, TAG.hex()))
        for c, s, y in zip(*(one.tolist() for one in case), strict=True)
    ]


def of_each(rows: list[LabelRecord]) -> dict[str, np.ndarray]:
    """What a row adds to each of the test's sums: (n, 2 K) for ``gain``, ``margin`` and ``right``."""
    tests = [ShadowTest().fed([row]) for row in rows]
    return {
        name: np.array([[*getattr(one, name).up, *getattr(one, name).down] for one in tests])
        for name in ("gain", "margin", "right")
    }


def verdicts(sums: dict[str, np.ndarray], drawn: np.ndarray) -> list[str]:
    """The verdict after each step of one stream: (steps, EVERY) places of rows."""
    steps = {name: one[drawn].sum(axis=1).cumsum(axis=0) for name, one in sums.items()}
    said = []
    for i in range(len(drawn)):
        n, k = (i + 1) * drawn.shape[1], len(BETS)
        bets = {name: MeanBets(n, one[i, :k], one[i, k:]) for name, one in steps.items()}
        said.append(ShadowTest(labels=n, **bets).verdict)
    return said


def rivals(case: tuple[np.ndarray, np.ndarray, np.ndarray], drawn: np.ndarray) -> dict[str, bool]:
    """Which other rules would ever promote on this stream."""
    c, s, y = case
    a, b = c.clip(0.01, 0.99), s.clip(0.01, 0.99)
    log = np.where(y, np.log(b / a), np.log((1 - b) / (1 - a)))
    brier = (c - y) ** 2 - (s - y) ** 2
    found = {}
    for name, d in ((BRIER, brier), (LOG, log / np.log(99))):
        paid = np.log1p(np.multiply.outer(d[drawn], BETS)).sum(axis=1).cumsum(axis=0)
        found[name] = bool(
            (np.logaddexp.reduce(paid + np.log(BETS / BETS.sum()), axis=1) > -np.log(ALPHA)).any()
        )
    n = np.arange(1, len(drawn) + 1) * drawn.shape[1]
    mean = log[drawn].sum(axis=1).cumsum() / n
    var = (log[drawn] ** 2).sum(axis=1).cumsum() / n - mean**2
    found[T_TEST] = bool((mean > 1.645 * np.sqrt(var / n)).any())
    return found


def promoted(name: str, streams: int, rng: np.random.Generator) -> dict[str, list[dict]]:
    """Of each case of a network: the share of streams that were promoted, by rule, and when."""
    found: dict[str, list[dict]] = {}
    for what, each in cases(name).items():
        for case in each:
            sums, when, refused, others = of_each(rows_of(case)), [], 0, []
            for _ in range(streams):
                drawn = rng.integers(0, len(case[0]), (LABELS // EVERY, EVERY))
                said = verdicts(sums, drawn)
                when += [EVERY * (1 + said.index("better"))] if "better" in said else []
                refused += "worse" in said
                others.append(rivals(case, drawn))
            found.setdefault(what, []).append(
                {
                    "nll": [nll(case[0], case[2]), nll(case[1], case[2])],
                    OURS: len(when) / streams,
                    **{rule: float(np.mean([one[rule] for one in others])) for rule in others[0]},
                    "said worse": refused / streams,
                    "labels until better, median": statistics.median(when) if when else None,
                }
            )
    return found


def items_of(n: int, ring: Keyring, *, shadow: bool) -> list[dict]:
    """Receipts and labels of a calibrated classifier, as in labels.py."""
    rng, items = random.Random(0), []
    for i in range(n):
        c = 1 - 0.75 * rng.betavariate(1, 4)
        right = rng.random() < c
        beside = Shadow(i % 10, c**1.2, TAG) if shadow else None
        receipt = ring.sign(model="digits", version="1.0", predicted=i % 10, confidence=c, shadow=beside)
        items.append({"receipt": receipt, "label": (i if right else i + 1) % 10})
    return items


def spent(items: list[dict], request: int, ring: Keyring) -> float:
    """Processor seconds of counting them and of feeding detector and shadow's test."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger")
        intake = Intake(ring, ledger, models={("digits", "1.0"): Classes(10)})
        feed = DriftFeed(ledger, maturity=0.0, followers=[ShadowFollower(ledger)])
        began = time.process_time()
        for at in range(0, len(items), request):
            assert all(one.accepted for one in intake.take(items[at : at + request]).outcomes)
            feed.tick()
        assert ledger.sums()["digits", "1.0"].labels.sum() == len(items)
        took = time.process_time() - began
        ledger.close()
    return took


def cost(labels: int, rounds: int) -> dict[str, dict[str, float | list[float]]]:
    """Of a label with a shadow over one without, by labels a request."""
    ring = Keyring.new()
    with_shadow, without = (items_of(labels, ring, shadow=one) for one in (True, False))
    found = {}
    for request in (5_000, 50):
        n = labels if request == 5_000 else labels // 5
        ratios = []
        for _ in range(rounds):
            ours, plain = spent(with_shadow[:n], request, ring), spent(without[:n], request, ring)
            ratios.append(ours / plain)
        found[f"{request} a request"] = {
            "times": statistics.median(ratios),
            "range": [min(ratios), max(ratios)],
        }
    return found


def added_bytes() -> int:
    """To what is signed of a prediction."""
    ring = Keyring.new()
    sizes = [
        len(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        for token in (
            ring.sign(model="m", version="1", predicted=1, confidence=0.9, shadow=shadow)
            for shadow in (None, Shadow(1, 0.9, TAG))
        )
    ]
    return sizes[1] - sizes[0]


def share(found: dict[str, dict[str, list[dict]]], what: str, of: str, pick: Callable) -> float:
    """Over networks and sides."""
    return float(pick([one[of] for network in found.values() for one in network[what]]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200, help="of each case")
    parser.add_argument("--labels", type=int, default=50_000, help="whose cost is measured")
    parser.add_argument("--rounds", type=int, default=5)
    args = peers.arguments(parser, streams=4, labels=5_000, rounds=2)
    folder = Path(os.environ["CALIB_SERVE_DATA"]) / "logits"
    names = sorted(path.stem for path in folder.glob("*.npz"))
    rng = np.random.default_rng(0)
    networks = {name: promoted(name, args.streams, rng) for name in names[:2] if args.quick} or {
        name: promoted(name, args.streams, rng) for name in names
    }
    result: dict = vars(args).copy() | {"networks": networks, "summary": {}}
    for what in ("gains 1 %", "loses 1 %", "same NLL", "same score"):
        told = {rule: share(networks, what, rule, np.mean) for rule in (OURS, BRIER, LOG, T_TEST)}
        worst = share(networks, what, OURS, np.min if what.startswith("gains") else np.max)
        result["summary"][what] = told | {"worst of a network": worst}
        print(f"{what:10} promoted: " + ", ".join(f"{rule} {p:.3f}" for rule, p in told.items()), end="")
        print(f"; worst of a network {worst:.3f}")
    result["bytes"] = added_bytes()
    result["label"] = cost(args.labels, args.rounds)
    print(f"{result['bytes']} bytes a receipt")
    for name, found in result["label"].items():
        print(f"a label with a shadow, {name}: {found['times']:.2f} times one without")
    peers.save("shadow", result, args)


if __name__ == "__main__":
    main()
