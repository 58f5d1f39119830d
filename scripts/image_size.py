"""How large the image of calib-serve watch is, without a container engine.

    python scripts/image_size.py

It makes the environment of deploy/watch/Dockerfile: what lock/watch.txt names, and the wheel of this
checkout, without bytecode and tests. Its files are added up, and packed as a registry holds them (tar and
gzip). The layers below are those of python:3.11-slim, of which BASE says the usual sizes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
BASE = 45.0, 124.0
"""MB of python:3.11-slim-trixie, amd64, as it is sent and on disk: rounded, and not measured here."""


def main() -> None:
    """Print both sizes, and the packages that are the largest."""
    with tempfile.TemporaryDirectory(prefix="calib-serve-image-") as scratch:
        venv = Path(scratch) / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        into = [*PIP, "--python", str(venv / "bin" / "python"), "install", "--no-deps", "--no-compile"]
        subprocess.run(
            [*into, "--require-hashes", "--only-binary=:all:", "-r", "lock/watch.txt"], cwd=ROOT, check=True
        )
        subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", scratch, str(ROOT)], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        subprocess.run([*into, "--no-index", str(wheel)], check=True)
        find = ["find", venv, "-type", "d", "(", "-name", "tests", "-o", "-name", "test", ")", "-prune"]
        subprocess.run([*find, "-exec", "rm", "-r", "{}", "+"], check=True)
        files = [path for path in venv.rglob("*") if path.is_file() and not path.is_symlink()]
        on_disk = sum(path.stat().st_size for path in files) / 1e6
        packed = subprocess.run(["tar", "-czf", "-", "venv"], cwd=scratch, check=True, capture_output=True)
        sent = len(packed.stdout) / 1e6
        sys.stdout.write(
            f"its own layer: {sent:.0f} MB sent, {on_disk:.0f} MB on disk\n"
            f"with python-slim: {BASE[0] + sent:.0f} MB sent, {BASE[1] + on_disk:.0f} MB on disk\n"
        )


if __name__ == "__main__":
    main()
