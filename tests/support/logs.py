"""Logs of predictions and of labels as arrow tables, and what an audit of them must find, written out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

START = 1_750_000_000


@dataclass(frozen=True)
class Logs:
    """``predictions`` and ``labels`` as tables."""

    predictions: pa.Table
    labels: pa.Table


def some_logs(n: int = 3000, *, seed: int = 0, weighted: bool = False, text: bool = False) -> Logs:
    """Two versions, three segments, ties, confidences on edges; two thirds have labels, in another order."""
    rng = np.random.default_rng(seed)
    c = rng.choice(
        [
            rng.random(n),
            rng.random(n).round(2),
            rng.integers(0, 16, n) / 15,
            np.linspace(0, 1, 16)[rng.integers(0, 16, n)],
        ]
    )
    predicted = rng.integers(0, 4, n)
    label = np.where(rng.random(n) < c, predicted, (predicted + 1) % 4)
    ids = rng.permutation(n)
    told = rng.permutation(n)[: 2 * n // 3]
    names = np.array(["cat", "dog", "owl", "yak"])
    columns: dict[str, Any] = {
        "id": ids.astype(str) if text else ids,
        "model": np.full(n, "pets"),
        "version": np.where(rng.random(n) < 0.3, "1.0", "2.0"),
        "predicted": names[predicted] if text else predicted.astype(np.int32),
        "confidence": c,
        "time": pa.array((START + np.arange(n) * 60) * 10**6, pa.timestamp("us", tz="UTC")),
        "segment": np.array(["north", "south", "east"])[rng.integers(0, 3, n)],
    }
    if weighted:
        columns["weight"] = rng.choice([1.0, 2.5, 10.0], n)
    labels = {
        "id": ids[told].astype(str) if text else ids[told],
        "label": names[label[told]] if text else label[told],
    }
    return Logs(pa.table(columns), pa.table(labels))


@dataclass(frozen=True)
class Expected:
    """By numpy alone: sums (15,) over labelled predictions, and what is counted."""

    predictions: int
    labelled: int
    count: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray
    ece: float
    accuracy: float
    brier: float


def expected(logs: Logs, which: np.ndarray | None = None, *, bins: int = 15) -> Expected:
    """Of the predictions ``which`` (n,), row by row."""
    truth = dict(zip(*(logs.labels[name].to_pylist() for name in ("id", "label")), strict=True))
    rows = logs.predictions.to_pylist()
    rows = rows if which is None else [row for row, is_in in zip(rows, which, strict=True) if is_in]
    found = [row for row in rows if row["id"] in truth]
    c = np.array([row["confidence"] for row in found], np.float64)
    y = np.array([float(row["predicted"] == truth[row["id"]]) for row in found])
    w = np.array([row.get("weight", 1.0) for row in found])
    edges = np.linspace(0, 1, bins + 1)
    sums = np.zeros((3, bins))
    for b in range(bins):
        inside = (c <= edges[b + 1]) & ((c > edges[b]) | (b == 0))
        sums[:, b] = w[inside].sum(), (w * c)[inside].sum(), (w * y)[inside].sum()
    return Expected(
        len(rows),
        len(found),
        *sums,
        ece=float(np.abs(sums[1] - sums[2]).sum() / w.sum()),
        accuracy=float((w * y).sum() / w.sum()),
        brier=float((w * (c - y) ** 2).sum() / w.sum()),
    )
