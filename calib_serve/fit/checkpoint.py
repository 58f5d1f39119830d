"""What a killed fit leaves behind, so that the next one goes on from there."""

from __future__ import annotations

import hashlib
import os
import secrets
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Checkpoints"]


@dataclass(frozen=True)
class Checkpoints:
    """Named sets of arrays in a folder of one's own; each is written whole or not at all.

    A key must say everything that the arrays depend on: then a stale one is never found.
    """

    folder: Path

    def load(self, key: str) -> dict[str, NDArray[Any]] | None:
        """The arrays saved under ``key``, or None; one that cannot be read counts as none."""
        try:
            # Opened here: numpy leaves a torn file open.
            with self._path(key).open("rb") as file, np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            return None

    def save(self, key: str, arrays: Mapping[str, Any]) -> None:
        """Replace what is under ``key``."""
        path = self._path(key)
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{secrets.token_hex(4)}.partial")
        with partial.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def _path(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"
