"""The environment that peers are measured in, and how a measurement is taken.

    python benchmarks/peers.py requirements-metrics.txt

makes .venv-bench at the root of the checkout: torch first, so that nothing resolves another, then
the file's exact pins and nothing that they ask for beyond them.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch==2.13.0"


def environment(requirements: str) -> Path:
    """The python of .venv-bench, with ``benchmarks/requirements`` installed."""
    folder = ROOT / ".venv-bench"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, TORCH], check=True)
    subprocess.run([*pip, "--no-deps", "-r", str(ROOT / "benchmarks" / requirements)], check=True)
    return python


def rerun_in(requirements: str) -> None:
    """Carry on in .venv-bench, if we are not there yet."""
    if Path(sys.prefix).resolve() != (ROOT / ".venv-bench").resolve():
        python = environment(requirements)
        os.execv(python, [str(python), *sys.argv])


def alternate(
    candidates: Mapping[str, Callable[[], Any]], *, rounds: int = 7, patience: float = 4.0
) -> dict[str, list[float]]:
    """CPU seconds of each call, the candidates taking turns so that a busy machine is busy for all.

    CPU and not wall time, because others may hold the cores meanwhile: so give every candidate one
    thread. The first turn warms up and is not counted, except for a candidate that takes longer than
    ``patience`` seconds: that one is called once.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    slow: set[str] = set()
    for turn in range(rounds + 1):
        for name, call in candidates.items():
            if name in slow:
                continue
            start = time.process_time()
            call()
            took = time.process_time() - start
            if turn > 0 or took > patience:
                seconds[name].append(took)
            if took > patience:
                slow.add(name)
    return seconds


def summary(seconds: list[float]) -> dict[str, float]:
    """Median, fastest and slowest of some calls, and how many."""
    return {
        "median_s": statistics.median(seconds),
        "min_s": min(seconds),
        "max_s": max(seconds),
        "calls": len(seconds),
    }


def machine(*packages: str) -> dict[str, Any]:
    """What a number depends on beside the code."""
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
    }


def save(name: str, content: Mapping[str, Any]) -> Path:
    """Write benchmarks/results/NAME.json."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


if __name__ == "__main__":
    print(environment(sys.argv[1]))
