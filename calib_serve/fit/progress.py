"""Progress of a fit: reported to a callback, and kept on disk, so that a killed fit resumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.data_files import read_npz
from calib_serve.core.errors import FitError
from calib_serve.core.files import private_folder, sha256, write_atomically

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, how much of it is done, how much of it there is)."""


def stage(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    """The callback of one part of the work, (done, total); None without a callback.

    Args:
        progress: Called with the part, the steps done and their number; None: no callback.
        what: Name of the part.

    >>> calls = []
    >>> stage(lambda *call: calls.append(call), "logits")(1, 2)
    >>> calls
    [('logits', 1, 2)]
    """
    return None if progress is None else partial(progress, what)


@dataclass(frozen=True)
class Checkpoints:
    """Named sets of arrays in their own folder, each written atomically.

    A key must name everything that the arrays depend on, so that stale ones are never loaded.
    """

    folder: Path

    def load(self, key: str) -> dict[str, NDArray[Any]] | None:
        """The arrays saved under ``key``, or None; unreadable ones count as missing."""
        try:
            return read_npz(self._path(key))[0]
        # A checkpoint only saves time: what cannot be read is computed again.
        except ValueError:
            return None

    def save(self, key: str, arrays: Mapping[str, Any]) -> None:
        """Replace the arrays under ``key``; FitError where they cannot be written, and the old ones stay."""
        path = self._path(key)
        try:
            # For the user alone: results on that user's data are in it.
            private_folder(self.folder)
            with write_atomically(path, mode=0o600) as partial:
                np.savez(partial, **arrays)
        except OSError as error:
            raise FitError(
                f"cannot write the checkpoint {path}: {error}; fix that and run the fit again, it resumes "
                "from the one before"
            ) from error

    def _path(self, key: str) -> Path:
        return self.folder / f"{sha256(key.encode())[:32]}.npz"
