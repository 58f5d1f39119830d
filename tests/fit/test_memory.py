"""A fit on a memory-mapped file holds chunks of it, never a copy."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from calib_serve.fit.output.candidates import fit_by_name

N, K = 50_000, 100


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    logits = 4 * rng.standard_normal((N, K), dtype=np.float32)
    labels = np.where(rng.random(N) < 0.7, logits.argmax(axis=1), rng.integers(0, K, N))
    path: Path = tmp_path_factory.mktemp("logits") / "z.npy"
    np.save(path, logits)
    return np.load(path, mmap_mode="r"), labels


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("temperature", {}),
        ("temperature-ece", {"grid": "coarse"}),
        ("matrix", {}),
        ("isotonic", {"of": "top"}),
    ],
)
def test_the_peak_stays_below_the_size_of_the_logits(method: str, options: dict, mapped):
    logits, labels = mapped
    fit_by_name(method, np.asarray(logits[:500]), labels[:500], **options)  # imports, once
    tracemalloc.start()
    artifact = fit_by_name(method, logits, labels, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < logits.nbytes, f"{peak / 1e6:.1f} MB for {logits.nbytes / 1e6:.1f} MB of logits"
    assert artifact.reference is not None
    assert artifact.reference.n == N
