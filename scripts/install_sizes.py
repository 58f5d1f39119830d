"""What each extra brings, as the table of docs/install.md: MB, packages, and what the doctor says.

    python scripts/install_sizes.py             # all of them; minutes, and gigabytes of /tmp in turn
    python scripts/install_sizes.py watch torch  # these; "" is the base install
    python scripts/install_sizes.py --python python3.14 --uv uv watch  # on another Python, by uv

Each goes into an empty environment of its own, from the wheel of this checkout and by
calib_serve/constraints.txt, runs `calib-serve doctor --for EXTRA`, and is deleted after. MB, of 10^6 bytes,
are of all files below site-packages, with the bytecode that pip writes and uv leaves to the first run.
torch is the CPU build where the sources of pip, or UV_FIND_LINKS, have it; PyPI's for Linux would bring CUDA.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
LISTING = (
    "import json; from importlib.metadata import distributions as d; print(json.dumps([x.name for x in d()]))"
)
OF_OTHERS = {"docs", "dev"}  # for who works on this project
UNPINNED = {"mlflow"}  # it holds others back: calib_serve/constraints.txt is without it
NO_EXTRAS = {"", "all"}  # of which the doctor knows nothing


def megabytes(folder: Path) -> float:
    """Of all files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def examined(scratch: Path, extra: str) -> str:
    """What the doctor finds wrong in this environment; what runs on this host is not of it."""
    asked = [] if extra in NO_EXTRAS else ["--for", extra]
    ran = subprocess.run(
        [scratch / "bin" / "calib-serve", "doctor", "--json", *asked],
        check=False,
        capture_output=True,
        text=True,
    )
    if ran.returncode not in (0, 1):
        return ran.stderr.strip().splitlines()[-1]
    found = json.loads(ran.stdout)["findings"]
    wrong = [f"{one['about']}: {one['what']}" for one in found if one["level"] == "wrong"]
    return "; ".join(one for one in wrong if not one.startswith("port ")) or "ok"


def measured(wheel: Path, extra: str, python: str, uv: str | None) -> tuple[float, int, str]:
    """MB, packages and what the doctor says of one extra; "" is the base install."""
    with tempfile.TemporaryDirectory(prefix="calib-serve-install-") as scratch:
        subprocess.run([python, "-m", "venv", "--without-pip", scratch], check=True)
        inside = f"{scratch}/bin/python"
        pins = Path(scratch) / "constraints.txt"
        text = (ROOT / "calib_serve" / "constraints.txt").read_text("utf-8")
        # Of what it holds back, torch alone is pinned, so that none of another size is found.
        pins.write_text(
            "".join(x for x in text.splitlines(True) if extra not in UNPINNED or x.startswith("torch=="))
        )
        asked = f"calib-serve[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
        into = [uv, "pip", "install", "--quiet"] if uv else [*PIP, "--python", inside, "install"]
        if uv:
            into += ["--python", inside]
        done = subprocess.run([*into, "-c", pins, asked], check=False, capture_output=True, text=True)
        if done.returncode:
            return 0.0, 0, "does not install: " + " ".join(done.stderr.split())[-300:]
        (site,) = (Path(scratch) / "lib").glob("python3*/site-packages")
        names = json.loads(subprocess.check_output([inside, "-c", LISTING], text=True))
        return megabytes(site), len(names), examined(Path(scratch), extra)


def main() -> None:
    """Print a row for each; fail where one is wrong."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    parser = argparse.ArgumentParser()
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--uv")
    given = parser.parse_args()
    every = ["", *(name for name in project["optional-dependencies"] if name not in OF_OTHERS)]
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", folder, str(ROOT)], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        print("| extra | MB | packages | doctor |\n| --- | --- | --- | --- |", flush=True)
        for extra in given.extras or every:
            size, packages, says = measured(wheel, extra, given.python, given.uv)
            bad += says != "ok"
            name = f"`{extra}`" if extra else "(none)"
            print(f"| {name} | {size:,.0f} | {packages} | {says} |", flush=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
