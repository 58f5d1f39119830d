"""What does a watch cost after a year: scrape, page, label, retention, opening and size of a ledger?

A ledger is filled in bulk with labels of ``--days`` days, by spans as old as they would be, the rows of the
last 30 days too; then each look and step is timed in a new process's first and later turns.

    python benchmarks/year.py --labels 5000000 --versions 50 --days 365
    python benchmarks/year.py --ledger postgresql://127.0.0.1/year
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import insert

from calib_serve import Keyring
from calib_serve.ledger import Ledger
from calib_serve.ledger.entries import span_of
from calib_serve.ledger.schema import COLUMNS, DELAY, LABEL, TALLY
from calib_serve.monitor import Watch, Watched
from calib_serve.receipts import DAY, ServedPrediction, Sums, changes
from calib_serve.web.exporter import export
from calib_serve.web.page import render_page

BINS = 15


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--labels", type=int, default=5_000_000)
    parser.add_argument("--versions", type=int, default=50)
    parser.add_argument("--days", type=float, default=365.0)
    parser.add_argument("--segments", type=int, default=10)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--ledger", default="", help="an empty database; default: a new file")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        where = args.ledger or f"{folder}/ledger.db"
        took = timed(lambda: fill(where, args))
        result = {"asked": vars(args) | {"out": None}, "fill_seconds": took, **measured(where, args)}
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


def timed(work: Callable[[], object]) -> float:
    """Seconds of one turn, on the clock."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def fill(where: str, args: argparse.Namespace) -> None:
    """Fill the ledger version by version."""
    rng, now = np.random.default_rng(0), time.time()
    ledger = Ledger(where)
    each = args.labels // args.versions
    for v in range(args.versions):
        made = now - rng.random(each) * args.days * DAY
        c, seg, cls = (
            rng.beta(5, 2, each),
            rng.integers(0, args.segments, each),
            rng.integers(0, args.classes, each),
        )
        y, delay = rng.random(each) < c, rng.exponential(60.0, each)
        with ledger.transaction() as connection:
            number = ledger.version_id(connection, (f"m{v}", "1"))
            for table, rows in tallies(number, now, made, c, y, delay, seg, cls):
                for at in range(0, len(rows), 50_000):
                    connection.execute(insert(table), rows[at : at + 50_000])
            young = np.flatnonzero(made > now - 30 * DAY)
            rows = [label_row(number, rng, made[i], c[i], y[i], delay[i], seg[i], cls[i]) for i in young]
            for at in range(0, len(rows), 50_000):
                connection.execute(insert(LABEL), rows[at : at + 50_000])
    ledger.close()


def tallies(number, now, made, c, y, delay, seg, cls):  # type: ignore[no-untyped-def]
    """Rows of ``tally`` and ``delay``: by slice, over all time and by span, each label served and counted."""
    starts, widths = np.array([span_of(t, now) for t in made]).T
    sums = Sums.zeros(BINS).vector
    end = len(COLUMNS) * BINS
    added = [changes("labels", c, y, 1.0, delay, bins=BINS), changes("predictions", c, bins=BINS)]
    tally, steps = [], []
    for kind, of, begin in (("segment", seg, "s"), ("class", cls, "")):
        for start, width in ((starts * 0, widths * 0), (starts, widths)):
            code = ((start // 300).astype(np.int64) * 100_000 + width.astype(np.int64)) * 100 + of
            slices, where = np.unique(code, return_inverse=True)
            own = [
                {"version_id": number, "start": at // 10_000_000 * 300.0, "width": float(at // 100 % 100_000),
                 "kind": kind, "name": f"{begin}{at % 100}"}
                for at in slices.tolist()
            ]  # fmt: skip
            whole = np.zeros((len(slices), len(sums)))
            for at, values in added:
                np.add.at(whole.ravel(), (where[:, None] * len(sums) + at).ravel(), values.ravel())
            by_bin = whole[:, :end].reshape(len(slices), len(COLUMNS), BINS)
            for i, b in zip(*(x.tolist() for x in by_bin.any(axis=1).nonzero()), strict=True):
                tally.append(
                    {**own[i], "bin": b, **dict(zip(COLUMNS.values(), by_bin[i, :, b].tolist(), strict=True))}
                )
            for i, step in zip(*(x.tolist() for x in whole[:, end:].nonzero()), strict=True):
                steps.append({**own[i], "step": step, "labels": whole[i, end + step].item()})
    return (TALLY, tally), (DELAY, steps)


def label_row(number, rng, made, c, y, delay, seg, cls):  # type: ignore[no-untyped-def]
    """A row of ``label`` that is in the tallies."""
    slices = json.dumps([["segment", f"s{seg}"], ["class", str(cls)]])
    return {
        "day": int(made // DAY), "receipt": rng.bytes(10).hex(), "version_id": number,
        "predicted_at": float(made), "arrived_at": float(made + delay), "confidence": float(c),
        "correct": bool(y), "predicted": int(cls), "label": int(cls if y else 0), "history": "",
        "inclusion": 1.0, "segment": f"s{seg}", "source": "", "group_id": 0, "slices": slices,
        "tallied": True, "fed": True, "revoked": False,
    }  # fmt: skip


def measured(where: str, args: argparse.Namespace) -> dict[str, object]:
    """Seconds of each look and step, first and then the median of five."""
    models = {(f"m{v}", "1"): Watched.of(args.classes) for v in range(args.versions)}
    began = time.perf_counter()
    ledger = Ledger(where)
    opening = time.perf_counter() - began
    watch = Watch(Keyring.new(), ledger, models=models, maturity=0.0, segments=64)
    registry = CollectorRegistry()
    export(watch, registry)
    turn = iter(range(10**6))

    def served() -> None:
        version = f"m{next(turn) % args.versions}"
        told = [ServedPrediction(version, "1", predicted=1, confidence=0.8, segment="s1")] * 100
        receipts = watch.predictions(told)
        watch.labels([{"receipt": str(one), "label": 1} for one in receipts])
        ledger.roll_up()

    text = ""

    def scrape() -> None:
        nonlocal text
        text = generate_latest(registry).decode()

    found: dict[str, object] = {"opening": opening, "bytes": ledger.database.size()}
    for name, work in {
        "labels_100": served,
        "scrape": scrape,
        "page": lambda: render_page(watch),
        "page_all": lambda: render_page(watch, model="m0", version="1", window="all"),
        "retention": ledger.sweep,
    }.items():
        first, later = timed(work), []
        for _ in range(5):
            if name != "labels_100":
                served()
            later.append(timed(work))
        found[name] = {"first": first, "later": statistics.median(later)}
    found["series"] = sum(not line.startswith("#") for line in text.splitlines())
    found["scrape_bytes"] = len(text)
    return found


if __name__ == "__main__":
    main()
