"""What each extra brings: MiB and packages, as the table of docs/install.md.

    python scripts/install_sizes.py             # all of them; minutes, and gigabytes of /tmp in turn
    python scripts/install_sizes.py watch torch  # these; "" is the base install

Each goes into an empty environment of its own, from the wheel of this checkout and by
calib_serve/constraints.txt, and is deleted after. MiB are of all files below site-packages, bytecode
included.
torch is the CPU build where pip's sources have it; PyPI's for Linux would bring CUDA.
"""

from __future__ import annotations

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


def mebibytes(folder: Path) -> float:
    """Of all files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def measured(wheel: Path, extra: str) -> tuple[float, int]:
    """MiB and packages of one extra; "" is the base install."""
    with tempfile.TemporaryDirectory(prefix="calib-serve-install-") as scratch:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", scratch], check=True)
        python = Path(scratch) / "bin" / "python"
        pins = Path(scratch) / "constraints.txt"
        text = (ROOT / "calib_serve" / "constraints.txt").read_text("utf-8")
        # Of what it holds back, torch alone is pinned, so that none of another size is found.
        pins.write_text(
            "".join(x for x in text.splitlines(True) if extra not in UNPINNED or x.startswith("torch=="))
        )
        asked = f"{wheel}[{extra}]" if extra else str(wheel)
        subprocess.run([*PIP, "--python", str(python), "install", "-c", str(pins), asked], check=True)
        (site,) = (Path(scratch) / "lib").glob("python3*/site-packages")
        names = json.loads(subprocess.check_output([str(python), "-c", LISTING], text=True))
        return mebibytes(site), len(names)


def main() -> None:
    """Print a row for each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    every = ["", *(name for name in project["optional-dependencies"] if name not in OF_OTHERS)]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", folder, str(ROOT)], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        print("| extra | MiB | packages |\n| --- | --- | --- |", flush=True)
        for extra in sys.argv[1:] or every:
            mib, packages = measured(wheel, extra)
            name = f"`{extra}`" if extra else "(none)"
            print(f"| {name} | {mib:,.0f} | {packages} |", flush=True)


if __name__ == "__main__":
    main()
