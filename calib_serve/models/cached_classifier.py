"""A classifier whose logits and features are kept: on disk, or the last ones in memory.

On disk each input goes through the model once, even if a run is killed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Head, InputShift, ModelFacts
from calib_serve.core.arrays import AnyFloats
from calib_serve.core.errors import ModelError
from calib_serve.core.files import make_private, private_folder
from calib_serve.models.classifier import Classifier, Loss, Progress
from calib_serve.scores import Outputs


@dataclass(frozen=True, eq=False)
class CachedClassifier:
    """A ``Classifier`` whose logits and features are memory-mapped from a folder, or kept in memory.

    A file's name identifies the model, the inputs, the shift and the batch size. Without a folder the last
    results are kept, as several methods ask for those of the same array. Gradients are not cached: they
    change with every step of a fit.

    Args:
        inner: Classifier that makes them.
        folder: Folder of the files; None: in memory.
    """

    inner: Classifier
    folder: Path | None = None
    _last: dict[str, tuple[Any, NDArray[np.float32]]] = field(default_factory=dict, init=False, repr=False)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.inner.input_shape

    @property
    def classes(self) -> int:
        """The number K of classes."""
        return self.inner.classes

    @property
    def differentiable(self) -> bool:
        """Whether ``input_gradient`` is available."""
        return self.inner.differentiable

    @property
    def outputs(self) -> Outputs:
        """The kind of scores that the model returns."""
        return self.inner.outputs

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes' names by the model itself; () where it has none."""
        return getattr(self.inner, "class_names", ())

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences for the user on what was taken of the model's file."""
        return getattr(self.inner, "remarks", ())

    @property
    def fingerprint(self) -> str:
        """The sha256 of the model file's bytes."""
        return self.inner.fingerprint

    @property
    def batch_size(self) -> int:
        """The inputs per batch."""
        return self.inner.batch_size

    @property
    def head(self) -> Head:
        """The last linear layer."""
        return self.inner.head

    def facts(self) -> ModelFacts:
        """Facts about the model for an artifact's manifest."""
        return self.inner.facts()

    def logits(
        self, inputs: AnyFloats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Logits (n, K).

        Args:
            inputs: (n, *input_shape).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        return self._kept("logits", inputs, shift, progress)

    def features(
        self, inputs: AnyFloats, *, shift: InputShift | None = None, progress: Progress | None = None
    ) -> NDArray[np.float32]:
        """Inputs (n, d) of the last linear layer.

        Args:
            inputs: (n, *input_shape).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        return self._kept("features", inputs, shift, progress)

    def input_gradient(
        self,
        inputs: AnyFloats,
        loss: Loss,
        *,
        shift: InputShift | None = None,
        progress: Progress | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """The summed loss's gradient by one shift shared by all inputs, and the logits.

        Args:
            inputs: (n, *input_shape).
            loss: From logits (b, K) and their rows to losses (b,).
            shift: Added to the inputs first.
            progress: Called with how many inputs are done, and of how many.
        """
        return self.inner.input_gradient(inputs, loss, shift=shift, progress=progress)

    def _kept(
        self,
        what: Literal["logits", "features"],
        inputs: AnyFloats,
        shift: InputShift | None,
        progress: Progress | None,
    ) -> NDArray[np.float32]:
        run = partial(getattr(self.inner, what), shift=shift)
        if self.folder is None:
            held, found = self._last.get(what, (None, None))
            if shift is not None or held is not inputs or found is None:
                found = run(inputs, progress=progress)
            if shift is None:
                self._last[what] = (inputs, found)  # held, so that no other array can be taken for it
            return found
        width = self.classes if what == "logits" else self.head.weights[0].shape[1]
        done = self.folder / f"{what}-{self._key(inputs, shift)}.npy"
        if not done.exists():
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
        private_folder(done.parent)
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
