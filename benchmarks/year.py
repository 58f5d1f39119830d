"""What does a watch cost after a year: scrape, page, label, retention, opening and size of a ledger?

Ledgers of SQLite and PostgreSQL are filled in bulk with labels of ``--days`` days, by spans as old as they
would be, the rows of the last 30 days too: a quarter of ``--days``, all of them, and all with a quarter of
the traffic. Then each look and step of a watch that runs is measured in processor time, its database's too,
while 100 labels come between. ``growth``: the year beside its last quarter at the same traffic, which none
should have, as only what is settled differs; ``busier``: four times the traffic of the same days. A scrape
comes 15 seconds after the last, by a clock of processor time: a busy machine postpones no version to the
next one. Writes benchmarks/results/year.json.

    python benchmarks/year.py --labels 1000000 --versions 10 --segments 10 --classes 10 --database SQLite
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable

import numpy as np
import peers
import psutil
import psycopg
import stores
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import insert

from calib_serve import Keyring
from calib_serve.ledger import Ledger
from calib_serve.ledger.entries import span_of
from calib_serve.ledger.schema import COLUMNS, DELAY, LABEL, TALLY
from calib_serve.ledger.spans import note_changes
from calib_serve.monitor import Watch, Watched
from calib_serve.receipts import DAY, ServedPrediction, Sums, changes
from calib_serve.web.exporter import export
from calib_serve.web.page import render_page
from calib_serve.web.window_gauges import WindowGauges

BINS = 15
DATABASES = ("SQLite", "PostgreSQL")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--labels", type=int, default=60_000, help="of the larger ledger")
    parser.add_argument("--versions", type=int, default=2)
    parser.add_argument("--days", type=float, default=365.0)
    parser.add_argument("--segments", type=int, default=2)
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--database", choices=DATABASES, help="that one alone, kept beside the run of both")
    args = peers.arguments(parser, labels=6_000)
    result: dict[str, object] = vars(args).copy()
    with tempfile.TemporaryDirectory() as folder, stores.postgresql() as (address, server):
        for kind in DATABASES if args.database is None else (args.database,):
            looks = []
            for name, labels, days in (("short", 4, 4), ("calm", 4, 1), ("year", 1, 1)):
                where = f"{folder}/{name}.db"
                if kind == "PostgreSQL":
                    where = address.replace("/postgres", f"/{name}")
                    with psycopg.connect(address, autocommit=True) as connection:
                        connection.execute(f"create database {name}")
                fill(where, args, args.labels // labels, args.days / days)
                looks.append(measured(where, args, server if kind == "PostgreSQL" else None))
            result[kind] = {
                name: {"quarter": short, "whole": now, "growth": now / short, "busier": now / looks[1][name]}
                for (name, now), short in zip(looks[2].items(), looks[0].values(), strict=True)
            }
            for name, found in result[kind].items():
                print(
                    f"{kind:12}{name:14}{found['quarter']:11.4g}{found['whole']:11.4g}"
                    f"{found['growth']:6.2f}x{found['busier']:6.2f}x"
                )
    peers.save("year" if args.database is None else f"year.{args.database.lower()}", result, args)


def fill(where: str, args: argparse.Namespace, labels: int, days: float) -> None:
    """Fill the ledger version by version."""
    rng, now = np.random.default_rng(0), time.time()
    ledger = Ledger(where)
    each = labels // args.versions
    for v in range(args.versions):
        made = now - rng.random(each) * days * DAY
        c, seg, cls = (
            rng.beta(5, 2, each),
            rng.integers(0, args.segments, each),
            rng.integers(0, args.classes, each),
        )
        y, delay = rng.random(each) < c, rng.exponential(60.0, each)
        with ledger.transaction() as connection:
            number = ledger.version_id(connection, (f"m{v}", "1"))
            spans = {tuple(span_of(t, now)) for t in made} - {(0.0, 0.0)}
            places = [(number, start, width) for start, width in spans]
            note_changes(ledger.database, connection, places)
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
    return {
        "predicted_at": float(made), "receipt": rng.bytes(10), "version_id": number,
        "arrived_at": float(made + delay), "confidence": float(c), "predicted": int(cls),
        "label": int(cls if y else cls + 1), "inclusion": 1.0, "group_id": 0, "source": "",
        "segment": f"s{seg}", "slices": f'[["class","{cls}"]]', "history": "", "tallied": True, "fed": True,
        "revoked": False,
    }  # fmt: skip


def measured(where: str, args: argparse.Namespace, server: psutil.Process | None) -> dict[str, float]:
    """Processor seconds of each look and step of a running watch, its database's too; the least of five."""
    ledger = Ledger(where)
    models = {(f"m{v}", "1"): Watched.of(args.classes) for v in range(args.versions)}
    watch = Watch(Keyring.new(), ledger, models=models, maturity=0.0, segments=64)
    registry, turn, waited = CollectorRegistry(), iter(range(10**6)), [0.0]
    export(watch, registry)._gauges = WindowGauges(watch, clock=lambda: waited[0] + time.process_time())

    def scrape() -> bytes:
        waited[0] += 15.0
        return generate_latest(registry)

    def served() -> None:
        version = f"m{next(turn) % args.versions}"
        told = [ServedPrediction(version, "1", predicted=1, confidence=0.8, segment="s1")] * 100
        receipts = watch.predictions(told)
        watch.labels([{"receipt": str(one), "label": 1} for one in receipts])
        ledger.roll_up()

    def spent(work: Callable[[], object]) -> float:
        began = time.process_time() + (stores.processor_seconds(server) if server else 0.0)
        work()
        return time.process_time() + (stores.processor_seconds(server) if server else 0.0) - began

    # The first scrapes of a process read what later ones keep, two seconds' worth each.
    while scrape().count(b"calib_window_begin_timestamp_seconds{") < args.versions:
        pass
    found: dict[str, float] = {}
    for name, work, times in (
        ("opening", lambda: Ledger(where).close(), 20),
        ("100 labels", served, 5),
        ("scrape", scrape, 5),
        ("page", lambda: render_page(watch, model="m0", version="1", window="24h"), 5),
        ("all-time page", lambda: render_page(watch, window="all"), 5),
        ("retention", ledger.sweep, 5),
    ):
        work()  # the first turn of a process reads what the later ones keep
        turns = []
        for _ in range(5):
            served()
            turns.append(spent(lambda work=work, times=times: [work() for _ in range(times)]) / times)
        found[name] = min(turns)
    found["bytes"] = float(ledger.database.size())
    ledger.close()
    return found


if __name__ == "__main__":
    main()
