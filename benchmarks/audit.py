"""What does an audit cost beside the engine's own count and sum? Processor time, and memory at its peak.

    python benchmarks/audit.py
    python benchmarks/audit.py --predictions 100000000 --folder /large/disk

Predictions (id, model, version, predicted, confidence) and labels of half of them, in another order, lie in
Parquet files; ids are random numbers of 63 bits. Every candidate runs in a process of its own, on as many
threads of DuckDB, with as much memory for it, in turns. The unit is DuckDB's own count and sum over the same
columns: predictions joined with labels by id, counted, their confidences and right answers summed.

Whether ids are repeated it does not ask; an audit does, unless it is told by unique_ids that none are, and
DuckDB is measured with that question, too. Writes benchmarks/results/audit.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import peers

PREDICTIONS = 10_000_000
UNIT = "DuckDB: join, count and sum"
ASKS = "DuckDB: the same, repeated ids looked for"
SCAN = "DuckDB: count and sum of both files, not joined"
AUDIT, TRUSTED = "audit", "audit, unique_ids"
THREADS, MEMORY = os.cpu_count(), "1GB"
"""As an audit sets them for DuckDB."""
NUMPY = "numpy: both files whole in memory"


def write(folder: Path, n: int) -> None:
    """Both logs; labels are right about as often as confidences say."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET threads = 2; SELECT setseed(0.5)")
        connection.execute(
            f"COPY (SELECT (hash(i) // 2)::BIGINT AS id, 'digits' AS model, "
            "CASE WHEN i % 3 = 0 THEN '1.0' ELSE '2.0' END AS version, "
            "(hash(i + 1) % 10)::INTEGER AS predicted, "
            f"1 - 0.75 * random() * random() AS confidence FROM range({n}) t(i)) "
            f"TO '{folder}/predictions.parquet' (FORMAT parquet)"
        )
        connection.execute(
            "COPY (SELECT id, "
            "CASE WHEN random() < confidence THEN predicted ELSE (predicted + 1) % 10 END AS label "
            f"FROM '{folder}/predictions.parquet' WHERE hash(id + 7) % 2 = 0 ORDER BY hash(id)) "
            f"TO '{folder}/labels.parquet' (FORMAT parquet)"
        )


def own(folder: Path, *queries: str) -> list[float]:
    """What DuckDB answers by itself, with the audit's settings."""
    import duckdb

    found: list[float] = []
    with tempfile.TemporaryDirectory(dir=folder) as rest, duckdb.connect() as connection:
        connection.execute(f"SET threads = {THREADS}; SET memory_limit = '{MEMORY}'")
        connection.execute(f"SET preserve_insertion_order = false; SET temp_directory = '{rest}'")
        for query in queries:
            text = query.format(p=f"'{folder}/predictions.parquet'", l=f"'{folder}/labels.parquet'")
            found += connection.execute(text).fetchone() or ()
    return found


JOINED = "SELECT count(*), sum(confidence), sum((predicted = label)::INTEGER) FROM {p} JOIN {l} USING (id)"
REPEATED = "SELECT count(*) FROM (SELECT id FROM {%s} GROUP BY id HAVING count(*) > 1)"
PLAIN = "SELECT count(id), sum(confidence), sum(predicted), count(model), count(version) FROM {p}"


def audited(folder: Path, **options: bool) -> list[float]:
    from calib_serve.integrations.audit.measuring import audit

    found = audit(folder / "predictions.parquet", folder / "labels.parquet", **options)
    bins = found.total.bins
    return [bins.n, bins.confidence.sum(), bins.correct.sum(), bins.ece()]


def by_numpy(folder: Path) -> list[float]:
    from pyarrow import parquet

    from calib_serve.core.bins import Bins

    told = parquet.read_table(folder / "predictions.parquet", columns=["id", "predicted", "confidence"])
    truth = parquet.read_table(folder / "labels.parquet")
    order = np.argsort(truth["id"].to_numpy())
    ids = truth["id"].to_numpy()[order]
    wanted = told["id"].to_numpy()
    at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    known = ids[at] == wanted
    right = told["predicted"].to_numpy()[known] == truth["label"].to_numpy()[order[at[known]]]
    bins = Bins.tally(told["confidence"].to_numpy()[known], right)
    return [bins.n, bins.confidence.sum(), bins.correct.sum(), bins.ece()]


def candidates(folder: Path) -> dict[str, Callable[[], list[float]]]:
    return {
        UNIT: lambda: own(folder, JOINED),
        ASKS: lambda: own(folder, JOINED, REPEATED % "p", REPEATED % "l"),
        SCAN: lambda: own(folder, PLAIN, "SELECT count(id), sum(label) FROM {l}"),
        AUDIT: lambda: audited(folder),
        TRUSTED: lambda: audited(folder, unique_ids=True),
        NUMPY: lambda: by_numpy(folder),
    }


def one(name: str, folder: Path) -> dict:
    """Seconds and the peak of memory of one call, in this process; what is imported is not timed."""
    with tempfile.TemporaryDirectory(dir=folder) as small:
        write(Path(small), 10)
        audited(Path(small))
    before, wall = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    answer = candidates(folder)[name]()
    wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu": cpu, "wall": wall, "peak": after.ru_maxrss * 1024, "answer": [float(x) for x in answer]}


def in_a_process(name: str, folder: Path) -> dict:
    command = [sys.executable, __file__, "--one", name, "--folder", str(folder)]
    told = subprocess.check_output(command, text=True, env=os.environ | {"TMPDIR": str(folder)})
    return json.loads(told)


def measure(folder: Path, asked: argparse.Namespace) -> dict[str, dict]:
    runs: dict[str, list[dict]] = {}
    for turn in range(asked.rounds):
        for name in candidates(folder):
            if turn and name == NUMPY:  # once: it is not what the goal is about
                continue
            runs.setdefault(name, []).append(in_a_process(name, folder))
            print(name, {k: v for k, v in runs[name][-1].items() if k != "answer"}, flush=True)
    answers = [runs[name][0]["answer"] for name in (AUDIT, TRUSTED, NUMPY)]
    for other in answers[1:]:
        np.testing.assert_allclose(answers[0], other, rtol=1e-9)
    np.testing.assert_allclose(runs[UNIT][0]["answer"], answers[0][:3], rtol=1e-9)
    found = {}
    for name, every in runs.items():
        ratios = [a["cpu"] / b["cpu"] for a, b in zip(every, runs[UNIT], strict=False)]
        found[name] = {
            "cpu_s": statistics.median(run["cpu"] for run in every),
            "cpu_s_range": [min(run["cpu"] for run in every), max(run["cpu"] for run in every)],
            "wall_s": statistics.median(run["wall"] for run in every),
            "ratio": statistics.median(ratios),
            "ratio_range": [min(ratios), max(ratios)],
            "peak_bytes": max(run["peak"] for run in every),
            "runs": len(every),
        }
    return found


@contextlib.contextmanager
def workplace(asked: argparse.Namespace) -> Iterator[Path]:
    """A folder with both logs in it, gone at the end."""
    with tempfile.TemporaryDirectory(dir=asked.folder, prefix="audit-") as name:
        folder = Path(name)
        write(folder, asked.predictions)
        yield folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predictions", type=int, default=PREDICTIONS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="where the logs are written")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    asked = peers.arguments(parser, predictions=300_000, rounds=2)
    if asked.one:
        print(json.dumps(one(asked.one, asked.folder)))
        return
    with workplace(asked) as folder:
        size = {path.stem: path.stat().st_size for path in folder.glob("*.parquet")}
        found = measure(folder, asked)
    for name, cost in found.items():
        used = f"{cost['ratio']:6.2f} units {cost['peak_bytes'] / 1e6:7.0f} MB"
        print(f"{name:48} {cost['cpu_s']:7.2f} s cpu {used}")
    result = {
        "predictions": asked.predictions,
        "threads": THREADS,
        "memory_limit": MEMORY,
        "file_bytes": size,
        "unit": UNIT,
        "cost": found,
    }
    peers.save("audit", result, asked)


if __name__ == "__main__":
    main()
