"""What do millions of rows cost, in memory and in time?

    python benchmarks/large.py [--rows 10000000] [--classes 10] [--repeats 3]

A file of float32 logits and labels, and the commands ``evaluate`` and ``fit --method temperature`` on it,
each in a process of its own: its largest resident memory, and its wall time. Both are told beyond those of
the same command on a thousand rows, which are imports. Beside them numpy's own softmax, sum and sort of the
same array, in this run. Of all repeats the least.

Writes benchmarks/results/large.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import peers

COMMANDS = {
    "evaluate": ["evaluate", "FILE"],
    "fit": ["fit", "--method", "temperature", "--data", "FILE", "--out", "OUT"],
}
BLOCK = 1 << 18


def written(path: Path, rows: int, classes: int) -> Path:
    rng = np.random.default_rng(0)
    z, y = np.empty((rows, classes), np.float32), np.empty(rows, np.int64)
    for start in range(0, rows, BLOCK):
        at = slice(start, min(start + BLOCK, rows))
        z[at] = 3 * rng.standard_normal(z[at].shape, dtype=np.float32)
        y[at] = (z[at] / 2 + rng.gumbel(size=z[at].shape)).argmax(axis=1)
    np.savez(path, logits=z, labels=y)
    return path


def numpy_seconds(path: Path) -> float:
    """Softmax, the sum of what it gives and its sort, of an array that is in memory."""
    z = np.load(path)["logits"]
    start = time.perf_counter()
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p.sum()
    np.sort(p, axis=None)
    return time.perf_counter() - start


def run(arguments: list[str]) -> tuple[float, int]:
    """Seconds and the largest resident bytes of a command."""
    start = time.perf_counter()
    child = os.fork()
    if not child:
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.execv(sys.executable, [sys.executable, "-m", "calib_serve", *arguments])
    _, status, used = os.wait4(child, 0)
    if status:
        sys.exit(f"calib-serve {' '.join(arguments)} failed")
    return time.perf_counter() - start, used.ru_maxrss * 1024


def least(command: list[str], path: Path, repeats: int) -> tuple[float, int]:
    found = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            named = {"FILE": str(path), "OUT": str(Path(folder) / "artifact")}
            found.append(run([named.get(word, word) for word in command]))
    return min(seconds for seconds, _ in found), min(bytes_ for _, bytes_ in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    asked = peers.arguments(parser, rows=1_000_000, repeats=1)
    with tempfile.TemporaryDirectory() as folder:
        large = written(Path(folder) / "large.npz", asked.rows, asked.classes)
        small = written(Path(folder) / "small.npz", 1000, asked.classes)
        size = large.stat().st_size
        numpy = min(numpy_seconds(large) for _ in range(asked.repeats))
        commands = {}
        for name, command in COMMANDS.items():
            told = [least(command, path, asked.repeats) for path in (large, small)]
            seconds, memory = (big - tiny for big, tiny in zip(*told, strict=True))
            commands[name] = {
                "seconds": seconds,
                "memory": memory,
                "times_numpy": seconds / numpy,
                "times_file": memory / size,
            }
    sizes = {"rows": asked.rows, "classes": asked.classes, "file_bytes": size, "numpy_seconds": numpy}
    path = peers.save("large", {**sizes, "commands": commands}, asked)
    for name, found in commands.items():
        print(
            f"{name}: {found['times_file']:.2f} times the file, {found['times_numpy']:.2f} times numpy's time"
        )
    print(path)


if __name__ == "__main__":
    main()
