"""A classifier whose logits and features are kept on disk.

Each input goes through the model once, even if a run is killed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import InputShift
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import ModelError
from calib_serve.core.files import make_private, private_folder
from calib_serve.models.classifier import Around, Made, Progress


@dataclass(frozen=True, eq=False)
class CachedClassifier(Around):
    """A ``Classifier`` whose results are memory-mapped from a folder.

    A file's name identifies the model, the inputs, the shift and the batch size. Gradients are not cached:
    they change with every step of a fit.

    Args:
        inner: Classifier that makes them.
        folder: Folder of the files.
    """

    folder: Path

    def _run(
        self, what: Made, inputs: AnyFloats, shift: InputShift | None, progress: Progress | None
    ) -> NDArray[np.float32]:
        """Logits or features, memory-mapped."""
        width = self.classes if what == "logits" else self.head.weights[0].shape[1]
        done = self.folder / f"{what}-{self._key(inputs, shift)}.npy"
        if not done.exists():
            run = partial(getattr(self.inner, what), shift=shift)
            try:
                self._compute(done, run, inputs, width=width, progress=progress)
            except OSError as error:
                raise ModelError(
                    f"cannot keep {what} in {done}: {error}; fix that and run again, it resumes there"
                ) from error
        try:
            return np.load(done, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
        except (ValueError, OSError, EOFError) as error:
            raise ModelError(f"cannot read {done}: {error}; delete it, and it is computed again") from error

    def _compute(
        self,
        done: Path,
        run: Callable[[AnyFloats], NDArray[np.float32]],
        inputs: AnyFloats,
        *,
        width: int,
        progress: Progress | None,
    ) -> None:
        private_folder(self.folder)
        growing, count = done.with_suffix(".partial"), done.with_suffix(".rows")
        make_private(growing)
        first = _rows_done(growing, count, (len(inputs), width))
        out = np.lib.format.open_memmap(growing, "r+" if first else "w+", np.float32, (len(inputs), width))
        _take_room(growing)
        # To flush after every batch would cost as much as a small model's pass.
        step = 32 * self.batch_size  # between two writes to disk
        for start in range(first, len(inputs), step):
            rows = slice(start, min(start + step, len(inputs)))
            out[rows] = run(inputs[rows])
            out.flush()
            count.write_text(str(rows.stop))
            if progress:
                progress(rows.stop, len(inputs))
        # Renamed when whole: a file under its final name is complete.
        growing.replace(done)
        count.unlink(missing_ok=True)

    def _key(self, inputs: AnyFloats, shift: InputShift | None) -> str:
        # Whatever changes a result is in the name: a stale file is never read.
        digest = hashlib.sha256(f"{self.fingerprint} {self.batch_size} {self.facts()}".encode())
        digest.update(f"{inputs.dtype.str}{inputs.shape}".encode())
        for start in range(0, len(inputs), 1024):
            digest.update(np.ascontiguousarray(inputs[start : start + 1024]).data)
        if shift is not None:
            digest.update(f"{shift.low} {shift.high}".encode())
            digest.update(np.ascontiguousarray(shift.delta).data)
        return digest.hexdigest()[:32]


def _rows_done(growing: Path, count: Path, shape: tuple[int, int]) -> int:
    """Count the rows that a killed run had computed; 0 where its files are missing or damaged."""
    try:
        done = int(count.read_text())
        found = np.lib.format.open_memmap(growing, "r")
    except (OSError, ValueError, EOFError):
        return 0
    return done if 0 < done <= shape[0] and found.shape == shape and found.dtype == np.float32 else 0


def _take_room(path: Path) -> None:
    """Allocate the file's disk space: a write to a mapped file on a full disk kills the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
