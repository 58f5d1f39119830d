"""What of a run of all benchmarks has ended, so that an interrupted one goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import peers

import calib_serve

FOLDER = peers.ROOT / "build" / "benchmarks"


@dataclass(frozen=True)
class Progress:
    """The outcome of each benchmark, in a file that is whole after each of them."""

    path: Path

    @classmethod
    def of(cls, *, quick: bool) -> Progress:
        return cls(FOLDER / f"{'quick' if quick else 'full'}.json")

    def done(self, name: str, command: list[str]) -> dict[str, Any] | None:
        """The outcome of a run that ended well, of the same command at the same code and settings."""
        kept = self._read().get(name)
        same = kept is not None and kept["command"] == command and kept["at"] == self.at
        return kept if same and kept["status"] == "done" else None

    def keep(self, name: str, command: list[str], outcome: dict[str, Any]) -> None:
        told = {**outcome, "command": command, "at": self.at, "commit": commit()}
        self._write({**self._read(), name: told})

    def forget(self, name: str) -> None:
        """What was done is no more, as it runs again."""
        self._write({other: kept for other, kept in self._read().items() if other != name})

    @cached_property
    def at(self) -> dict[str, str | None]:
        """The code, read once, and the settings that a run is of; a commit of other files changes nothing."""
        return {
            "code": code(),
            "python": platform.python_version(),
            "CALIB_SERVE_DATA": os.environ.get("CALIB_SERVE_DATA"),
        }

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self.path.read_text())) if self.path.exists() else {}

    def _write(self, kept: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_suffix(".part")
        scratch.write_text(json.dumps(kept, indent=1) + "\n")
        scratch.replace(self.path)


def code() -> str:
    """A digest of the package, the benchmarks and their pins; results and pages are left out."""
    digest = hashlib.sha256()
    package = Path(calib_serve.__file__).parent
    for root, kinds in ((package, ("*.py",)), (peers.HERE, ("*.py", "*.txt"))):
        for path in sorted(path for kind in kinds for path in root.rglob(kind)):
            digest.update(f"{path.relative_to(root.parent)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def commit() -> str | None:
    """The commit of the checkout, where it is one."""
    asked = ["git", "-C", str(peers.ROOT), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
