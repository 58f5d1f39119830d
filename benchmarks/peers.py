"""The environments that peers are measured in, and how a measurement is taken and kept.

    python benchmarks/peers.py [requirements-fit.txt ...]

makes .venv-bench-fit (and so on; all of them without a name) at the root of the checkout: torch first
where the file names it, so that nothing resolves another, then the file's exact pins and nothing that
they ask for beyond them. A line that ends in ``# old build`` is built by the setuptools and wheel of
constraints-build.txt, which it was written for. A package that cannot be installed is absent, with what pip
said last: the others are there, and results name it. An environment that is there and was made from the same
files is left as it is, but for what is absent, which is tried again.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import json
import os
import platform
import re
import shlex
import socket
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"
QUICK = RESULTS / "quick"
BUILD = HERE / "constraints-build.txt"
OLD = "# old build"
ABSENT = "absent.json"  # in the environment's folder
PACKAGES = (
    "calib-serve",
    "numpy",
    "scipy",
    "scikit-learn",
    "torch",
    "onnx",
    "onnxruntime",
    "torchserve",
    "numba",
)


def environment(requirements: str) -> Path:
    """The python of the environment with exactly ``benchmarks/requirements``, less what is ``absent``."""
    asked = (HERE / requirements).read_text()
    folder = _folder(requirements)
    python, made_from = folder / "bin" / "python", folder / requirements
    made = made_from.exists() and made_from.read_text() == asked + BUILD.read_text()
    missing = absent(requirements)
    if made and (not missing or Path(sys.prefix).resolve() == folder.resolve()):
        return python
    print(f"making {folder.name}", file=sys.stderr, flush=True)
    if not made:
        venv.create(folder, clear=True, with_pip=True)
    pins = [line for line in asked.splitlines() if line and not line.startswith("#")]
    if made:
        pins = [line for line in pins if canonical(line) in missing]
    torch = [line for line in pins if line.startswith("torch==")]
    old = [line.removesuffix(OLD).rstrip() for line in pins if line.endswith(OLD)]
    others = [line for line in pins if line not in torch and not line.endswith(OLD)]
    found = _install(python, torch)
    found |= _install(python, others, "--no-deps")
    found |= _install(python, old, "--no-deps", old=True)
    (folder / ABSENT).write_text(json.dumps(found, indent=1) + "\n")
    made_from.write_text(asked + BUILD.read_text())
    return python


def absent(requirements: str) -> dict[str, str]:
    """What that environment lacks, by name, and why; empty before it is made."""
    path = _folder(requirements) / ABSENT
    return dict(json.loads(path.read_text())) if path.exists() else {}


def imported(module: str, package: str, lacking: dict[str, str]) -> Any:
    """A peer's module; None where it cannot be imported, which ``lacking`` then says of ``package``."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # whatever its own imports run into
        lacking.setdefault(package, f"could not be imported: {type(error).__name__}: {error}")
        return None


def canonical(pin: str) -> str:
    """The name alone, as indexes spell it: ``torch_uncertainty==0.13.0`` is torch-uncertainty."""
    return re.sub(r"[-_.]+", "-", re.split(r"[=<>!~; \[]", pin)[0]).lower()


def _install(python: Path, pins: Sequence[str], *options: str, old: bool = False) -> dict[str, str]:
    """Install all pins at once, else each by itself; those that fail, with pip's last word."""
    if not pins or not _pip(python, pins, *options, old=old):
        return {}
    said = {canonical(pin): _pip(python, [pin], *options, old=old) for pin in pins}
    return {name: f"could not be installed: {last}" for name, last in said.items() if last}


def _pip(python: Path, pins: Sequence[str], *options: str, old: bool) -> str:
    """pip's last line that says why it failed; empty where it did not. ``old``: built by BUILD's versions."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options, *pins]
    # pip before 25.3 takes the versions to build with from the first, later ones from the second.
    builds = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(BUILD)) if old else {}
    done = subprocess.run(command, env={**os.environ, **builds}, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else last_line(done.stderr or done.stdout)


def last_line(said: str) -> str:
    """The last line that is neither advice nor a warning, such as ``ERROR: No matching distribution``."""
    lines = [line.strip() for line in said.splitlines()]
    advice = ("note:", "hint:", "warning:", "[notice]", "\N{BOX DRAWINGS LIGHT ARC UP AND RIGHT}")
    told = [line for line in lines if line and not line.lower().startswith(advice)]
    return told[-1] if told else "pip said nothing"


def _folder(requirements: str) -> Path:
    return ROOT / f".venv-bench-{Path(requirements).stem.removeprefix('requirements-')}"


def rerun_in(requirements: str) -> None:
    """Carry on in that environment, if we are not there yet."""
    python = environment(requirements)
    if Path(sys.prefix).resolve() != python.parents[1].resolve():
        os.execv(python, [str(python), *sys.argv])


def arguments(
    parser: argparse.ArgumentParser, given: Sequence[str] | None = None, **trimmed: Any
) -> argparse.Namespace:
    """The parsed options; ``--quick`` is added, and puts ``trimmed`` in the place of the defaults."""
    parser.add_argument("--quick", action="store_true", help="a trimmed run, written to results/quick")
    if parser.parse_known_args(given)[0].quick:
        parser.set_defaults(**trimmed)
    return parser.parse_args(given)


def free_port() -> int:
    """One whose cluster bus, 10,000 above it, is a port as well."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            if (port := one.getsockname()[1]) < 55_000:
                return int(port)


def alternate(
    candidates: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 7,
    patience: float = 4.0,
    clock: Callable[[], float] = time.process_time,
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
            start = clock()
            call()
            took = clock() - start
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


def compiled(folder: Path) -> dict[str, str]:
    """The environment of a process that keeps what it compiles in ``folder``, whoever owns its packages.

    Without, packages that were installed uncompiled are compiled at every start, and imports measure that.
    """
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return own | {"PYTHONPYCACHEPREFIX": str(folder)}


def machine(*packages: str) -> dict[str, Any]:
    """What a number depends on beside the code."""
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    found = {package: _version(package) for package in (*PACKAGES, *packages)}
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "gpu": _gpu(),
        "load_average": os.getloadavg(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {package: number for package, number in found.items() if number},
    }


def device(wanted: str) -> str:
    """``wanted``, or the end with a clear word where it is not here."""
    if wanted != "cpu":
        import torch

        if not torch.cuda.is_available():
            sys.exit(
                f"--device {wanted}: torch {torch.__version__} finds no CUDA device here; use --device cpu"
            )
    return wanted


def save(name: str, content: Mapping[str, Any], asked: argparse.Namespace) -> Path:
    """Write the result, with the command and the machine that made it."""
    run = {
        "command": shlex.join(["python", f"benchmarks/{name.partition('.')[0]}.py", *sys.argv[1:]]),
        "finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
    }
    path = result(name, asked)
    path.parent.mkdir(exist_ok=True)
    path.write_text(written({"run": run, **content}))
    return path


def written(content: Mapping[str, Any]) -> str:
    """A result as text: a line for each of its parts."""
    lines = (f"{json.dumps(key)}: {json.dumps(part)}" for key, part in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def result(name: str, asked: argparse.Namespace) -> Path:
    """results/NAME.json; quick runs and other devices have files of their own."""
    kind = getattr(asked, "device", "cpu").partition(":")[0]
    return (QUICK if asked.quick else RESULTS) / f"{name}{'' if kind == 'cpu' else f'.{kind}'}.json"


def _gpu() -> str | None:
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch and torch.cuda.is_available() else None


def _version(package: str) -> str | None:
    for name in (package, f"{package}-gpu"):
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


if __name__ == "__main__":
    for each in sys.argv[1:] or sorted(path.name for path in HERE.glob("requirements-*.txt")):
        print(environment(each))
        for name, why in absent(each).items():
            print(f"  {name}: {why}")
