"""A paper's table, and what other benchmarks have measured for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import peers


@dataclass(frozen=True)
class Table:
    """One table: which of the paper's it stands for, rows, and what could not be rebuilt and why."""

    paper: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    missing: str


def splits(folder, name):
    with np.load(folder / "logits" / f"{name}.npz") as arrays:
        return (arrays["cal_logits"], arrays["cal_labels"]), (arrays["test_logits"], arrays["test_labels"])


def recorded(name: str, key: str, results: Path | None = None) -> list[dict[str, Any]]:
    """What a benchmark wrote on any device that has something under ``key``; the newest is the last."""
    results = peers.RESULTS if results is None else results
    paths = [results / f"{name}.json", *sorted(results.glob(f"{name}.*.json"))]
    found = [{"file": path.name, **json.loads(path.read_text())} for path in paths if path.exists()]
    return sorted((f for f in found if f.get(key)), key=lambda f: f.get("run", {}).get("finished", ""))


def told(name: str, found: list[dict[str, Any]], *, program: str | None = None) -> str:
    """Where rows were read, or what has to be run for them."""
    program = program or f"benchmarks/{name}.py"
    if not found:
        return f"Not measured yet: benchmarks/results/{name}.json has none of it; run {program}."
    files = " and ".join(f["file"] for f in found)
    return f"Read from benchmarks/results/{files}, made by {program}."


def mean_over(splits, row, column):
    measured = [split[row][column] for split in splits if column in split.get(row, {})]
    return float(np.mean(measured)) if measured else None


def percent(value):
    return None if value is None else 100 * value
