"""What does the base install bring, and what does it cost to import?

    python benchmarks/base_install.py

``pip install calib-serve``, base dependencies alone as constraints.txt pins them, into an empty environment
without pip: MiB and packages. Then processor seconds, which a busy machine does not disturb, of
``import calib_serve`` in a fresh interpreter and of the whole of ``calib-serve --help``.

Writes benchmarks/results/base_install.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import peers

IMPORT = "import time; start = time.process_time(); import calib_serve; print(time.process_time() - start)"
PACKAGES = (
    "import json; from importlib.metadata import distributions as all; "
    "print(json.dumps(sorted(f'{d.name} {d.version}' for d in all())))"
)


def install(folder: Path) -> Path:
    """The python of an environment with the base install and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", str(python)]
    constraints = str(peers.ROOT / "constraints.txt")
    subprocess.run([*pip, "install", "-c", constraints, str(peers.ROOT)], check=True)
    return python


def size(folder: Path) -> float:
    """MiB of all files, bytecode included."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def children() -> float:
    """Processor seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds(measure, rounds: int) -> dict[str, float]:
    times = [measure() for _ in range(rounds + 1)][1:]  # the first one warms the disk's cache
    found = peers.summary(times)
    return {"median": found["median_s"], "min": found["min_s"], "max": found["max_s"], "calls": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    asked = peers.arguments(parser, rounds=3)
    with tempfile.TemporaryDirectory() as scratch:
        python = install(Path(scratch) / "env")

        def imported() -> float:
            return float(subprocess.check_output([python, "-c", IMPORT], text=True, cwd=scratch))

        def helped() -> float:
            start = children()
            subprocess.run(
                [python.with_name("calib-serve"), "--help"],
                check=True,
                cwd=scratch,
                stdout=subprocess.DEVNULL,
            )
            return children() - start

        (site,) = (python.parents[1] / "lib").glob("python3*/site-packages")
        result = {
            "mib": size(site),
            "packages": json.loads(subprocess.check_output([python, "-c", PACKAGES], text=True)),
            "import_s": seconds(imported, asked.rounds),
            "help_s": seconds(helped, asked.rounds),
        }
    print(f"{result['mib']:.0f} MiB in {len(result['packages'])} packages: {', '.join(result['packages'])}")
    print(f"import {result['import_s']['median']:.3f} s, --help {result['help_s']['median']:.3f} s")
    peers.save("base_install", result, asked)


if __name__ == "__main__":
    main()
