"""What does the base install bring, and what does it cost to import?

    python benchmarks/base_install.py

``pip install calib-serve``, base dependencies alone as constraints.txt pins them, into an empty environment
without pip: MiB and packages. Then processor seconds, which a busy machine does not disturb, of
``import calib_serve`` in a fresh interpreter and of the whole of ``calib-serve --help``, each over that of
numpy in the same environment, in turns: ``import numpy``, and the whole of ``python -c "import numpy"``.

Writes benchmarks/results/base_install.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import peers

IMPORT = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"
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


def processor_seconds(command: list, folder: str) -> float:
    """Of a whole process."""
    start = children()
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return children() - start


def compared(ours, theirs, rounds: int) -> dict[str, float]:
    """Our seconds, those of numpy, and their ratio, in turns."""
    pairs = [(ours(), theirs()) for _ in range(rounds + 1)][1:]  # the first one warms the disk's cache
    ratios = [mine / other for mine, other in pairs]
    return {
        "median": statistics.median(mine for mine, _ in pairs),
        "numpy_median": statistics.median(other for _, other in pairs),
        "of_numpy": statistics.median(ratios),
        "of_numpy_range": [min(ratios), max(ratios)],
        "calls": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    asked = peers.arguments(parser, rounds=3)
    with tempfile.TemporaryDirectory() as scratch:
        python = install(Path(scratch) / "env")

        def imported(package: str) -> float:
            program = [python, "-c", IMPORT.format(package)]
            return float(subprocess.check_output(program, text=True, cwd=scratch))

        (site,) = (python.parents[1] / "lib").glob("python3*/site-packages")
        result = {
            "mib": size(site),
            "packages": json.loads(subprocess.check_output([python, "-c", PACKAGES], text=True)),
            "import_s": compared(lambda: imported("calib_serve"), lambda: imported("numpy"), asked.rounds),
            "help_s": compared(
                lambda: processor_seconds([python.with_name("calib-serve"), "--help"], scratch),
                lambda: processor_seconds([python, "-c", "import numpy"], scratch),
                asked.rounds,
            ),
        }
    print(f"{result['mib']:.0f} MiB in {len(result['packages'])} packages: {', '.join(result['packages'])}")
    for what in ("import_s", "help_s"):
        found = result[what]
        print(f"{what} {found['median']:.3f}, numpy's {found['numpy_median']:.3f}: {found['of_numpy']:.2f}")
    peers.save("base_install", result, asked)


if __name__ == "__main__":
    main()
