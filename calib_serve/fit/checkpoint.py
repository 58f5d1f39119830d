"""What a killed fit leaves behind, so that the next one goes on from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import FitError
from calib_serve.files import sha256, written_whole
from calib_serve.npz import read_npz

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
            return read_npz(self._path(key))[0]
        except ValueError:
            return None

    def save(self, key: str, arrays: Mapping[str, Any]) -> None:
        """Replace what is under ``key``; FitError where it cannot be written: those before it stay."""
        path = self._path(key)
        try:
            with written_whole(path) as partial:
                np.savez(partial, **arrays)
        except OSError as error:
            raise FitError(
                f"cannot write the checkpoint {path}: {error}; mend that and run the fit again, it goes on "
                "from the one before"
            ) from error

    def _path(self, key: str) -> Path:
        return self.folder / f"{sha256(key.encode())[:32]}.npz"
