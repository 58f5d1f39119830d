"""A bounded sample of logits and labels, on which the next calibration is fitted.

Opt-in. It keeps logits in float16 and class ids, never inputs. Predictions and labels are written
as they come, in shards of their own, and joined by receipt when they are read; so labels may come
late, to another process, or never. What a killed process had not flushed is lost: it is a sample.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.data_files import read_npz
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.files import make_private, private_folder
from calib_serve.receipts.nonces import NONCE_BYTES
from calib_serve.receipts.wire import DAY, Label

log = logging.getLogger(__name__)

_SHARD, _FLUSH = 4096, 60.0  # rows of a shard, and seconds between two writings of what waits


@dataclass(frozen=True, eq=False)
class LabelledSamples:
    """Labelled samples of a log, first labelled first.

    Args:
        logits: (n, K), in float32.
        labels: Class ids (n,).
        times: When each was predicted (n,), in seconds since 1970.
        predictions: Number of predictions that were read, before joining.
    """

    logits: NDArray[np.float32]
    labels: NDArray[np.int64]
    times: NDArray[np.float64]
    predictions: int


def in_half(logits: ArrayLike) -> NDArray[np.float16]:
    """Round logits to float16, in which they are kept; the largest are clipped, as is -inf of masked ones.

    >>> in_half([1.0, -np.inf]).tolist()
    [1.0, -65504.0]
    """
    most = np.finfo(np.float16).max
    return np.asarray(np.clip(np.asarray(logits), -most, most), np.float16)


class SampleLog:
    """Appends to a folder; several processes of one user may share it.

    What waits is written once it fills a shard, and from time to time after ``start``. ``trouble`` says where
    another process keeps another share here.

    Args:
        folder: Folder of the shards, made for this user alone.
        rate: Share of the predictions to keep, above 0; chosen by nonce, so that all processes of one rate
            keep the same ones.
        days: Days for which samples are kept.
        max_bytes: Most bytes that are kept; the oldest shards go first.
        clock: Seconds since 1970.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        rate: float = 0.1,
        days: float = 30.0,
        max_bytes: int = 256 << 20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not 0 < rate <= 1:
            raise InputError(f"rate must be in (0, 1], got {rate}")
        self.folder, self.rate, self.days, self.max_bytes = Path(folder), rate, days, max_bytes
        try:
            private_folder(self.folder)
        except OSError as error:
            raise InputError(f"cannot keep samples in {self.folder}: {error}") from error
        self._clock = clock
        self.trouble: str | None = None
        self._began = clock()
        self._lock = threading.RLock()
        self._predictions: dict[tuple[str, str], list[tuple[bytes, float, NDArray[np.float16]]]] = {}
        self._labels: dict[tuple[str, str], list[tuple[bytes, int]]] = {}

    def start(self) -> SampleLog:
        """Write once a minute from now on, in a thread; for processes that may be killed."""
        threading.Thread(target=self._write_on_time, name="calib-samples", daemon=True).start()
        return self

    def _write_on_time(self) -> None:
        while True:
            time.sleep(_FLUSH)
            try:
                self.flush()
            except OSError as error:  # a full disk may have room again next time
                log.error("samples could not be written: %s", error)

    def predicted(
        self, model: str, version: str, nonces: Sequence[bytes], logits: ArrayLike, *, times: Sequence[float]
    ) -> None:
        """Store the sampled ones among some predictions.

        Args:
            model: Name of the model.
            version: Its version.
            nonces: Nonce of each (n,).
            logits: (n, K).
            times: When each was predicted (n,), in seconds since 1970.

        Raises:
            ShapeError: Where shapes do not fit.
        """
        z = np.asarray(logits)
        if z.ndim != 2 or not len(z) == len(nonces) == len(times):
            raise ShapeError(
                f"logits must be (n, K) with n nonces and times, got {z.shape}, {len(nonces)}, {len(times)}"
            )
        half = in_half(z)
        with self._lock:
            rows = self._predictions.setdefault((model, version), [])
            rows += [
                (n, t, row) for n, t, row in zip(nonces, times, half, strict=True) if is_sampled(n, self.rate)
            ]
            full = len(rows) >= _SHARD
        if full:
            self.flush()

    def labelled(self, labels: Sequence[Label]) -> None:
        """Store accepted labels of sampled predictions."""
        with self._lock:
            for one in labels:
                if is_sampled(one.receipt.nonce, self.rate):
                    key = (one.receipt.model, one.receipt.version)
                    self._labels.setdefault(key, []).append((one.receipt.nonce, one.label))
            full = any(len(rows) >= _SHARD for rows in self._labels.values())
        if full:
            self.flush()

    def take_back(self, model: str, version: str, nonces: Sequence[bytes]) -> None:
        """Revoke labels, also those that another process has yet to write.

        Args:
            model: Name of the model.
            version: Its version.
            nonces: Nonces of the predictions whose labels are revoked.
        """
        if nonces:
            self._write("revoked", model, version, nonces)

    def flush(self) -> None:
        """Write the waiting rows, and delete files that are too old or too many."""
        with self._lock:
            # Taken out before writing: on a full disk the rows are lost, and memory stays bounded.
            predictions, self._predictions = self._predictions, {}
            labels, self._labels = self._labels, {}
        for (model, version), rows in predictions.items():
            if rows:
                nonces, times, logits = zip(*rows, strict=True)
                columns = {"time": np.array(times), "logits": np.stack(logits)}
                self._write("predictions", model, version, nonces, **columns)
        for (model, version), pairs in labels.items():
            if pairs:
                nonces, ids = zip(*pairs, strict=True)
                self._write("labels", model, version, nonces, label=np.array(ids, np.int64))
        self._retain()

    close = flush

    def _write(self, kind: str, model: str, version: str, nonces: Sequence[bytes], **columns: Any) -> None:
        of = "" if kind == "revoked" else f"-{self.rate:g}"
        name = f"{kind}-{int(self._clock() * 1000):015d}-{os.getpid()}-{secrets.token_hex(4)}{of}.npz"
        partial = self.folder / f".{name}.partial"
        nonce = np.frombuffer(b"".join(nonces), np.uint8).reshape(len(nonces), -1)
        try:
            make_private(partial)
            with partial.open("wb") as file:
                np.savez(file, model=model, version=version, nonce=nonce, **columns)
            partial.rename(self.folder / name)
        except OSError:
            partial.unlink(missing_ok=True)  # frees its space on a full disk
            raise

    def _retain(self) -> None:
        # Half-written files of a killed process count too, or nobody would ever delete them.
        found = [*self.folder.glob("*-*-*-*.npz"), *self.folder.glob(".*-*-*-*.npz.partial")]
        shards = sorted(found, key=_written, reverse=True)
        oldest, size = self._clock() - self.days * DAY, 0
        for shard in shards:
            with contextlib.suppress(FileNotFoundError):  # another process keeps the same folder
                size += shard.stat().st_size
            if size > self.max_bytes or _written(shard) < oldest * 1000:
                shard.unlink(missing_ok=True)
        self._compare(shards)

    def _compare(self, shards: Sequence[Path]) -> None:
        """Note a recent shard of another rate as a trouble: its logits and labels would not meet."""
        # Programs that run write once a minute: each has a shard of the last five.
        since, before = max(self._began, self._clock() - 300.0), self.trouble
        rates = {_rate(shard) for shard in shards if _written(shard) >= since * 1000}
        others = sorted(rates - {"", f"{self.rate:g}"})
        self.trouble = None
        if others:
            self.trouble = (
                f"another program keeps samples in this folder at the rate {others[0]}, and this one at "
                f"{self.rate:g}; what only one of them keeps is no sample: give both one"
            )
            if before is None:
                log.warning("%s: %s", self.folder, self.trouble)


def read_samples(
    folder: str | Path, *, model: str, version: str, since: float = 0.0, most: int = 1_000_000
) -> LabelledSamples:
    """Return the latest labelled predictions of one model version.

    In the order in which they were written, the prediction and its label: what is read later has more at
    the end, and none in between. A shard that is damaged is logged and left out.

    Args:
        folder: Folder that a server keeps samples in.
        model: Name of the model.
        version: Its version.
        since: Time of the first prediction, seconds since 1970.
        most: Number of them, at most.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there are no samples at {folder}; start the server with --samples")
    rows: dict[bytes, tuple[float, NDArray[np.float16]]] = {}
    labels: dict[bytes, int] = {}
    revoked: set[bytes] = set()
    written: dict[bytes, int] = {}
    for shard in sorted(folder.glob("*-*-*-*.npz"), key=_written):
        try:
            shard_rows, shard_labels, gone = _read_shard(shard, model, version)
        except (ValueError, KeyError, TypeError) as error:
            log.warning("%s is damaged, and its samples are left out: %r", shard, error)
        else:
            rows |= shard_rows
            labels |= shard_labels
            revoked |= gone
            written |= dict.fromkeys((*shard_rows, *shard_labels), _written(shard))
    labels = {nonce: label for nonce, label in labels.items() if nonce not in revoked}
    joined = sorted(
        (nonce for nonce, (t, _) in rows.items() if nonce in labels and t >= since),
        key=lambda nonce: (written[nonce], rows[nonce][0], nonce),
    )[-most:]
    logits = [rows[nonce][1] for nonce in joined]
    if len(widths := {len(row) for row in logits}) > 1:
        raise InputError(
            f"{folder} holds logits of several widths {sorted(widths)} of {model} {version}; did its classes "
            "change? take later ones alone (since)"
        )
    return LabelledSamples(
        np.stack(logits).astype(np.float32) if logits else np.empty((0, 0), np.float32),
        np.array([labels[nonce] for nonce in joined], np.int64),
        np.array([rows[nonce][0] for nonce in joined]),
        len(rows),
    )


def _read_shard(
    shard: Path, model: str, version: str
) -> tuple[dict[bytes, tuple[float, NDArray[np.float16]]], dict[bytes, int], set[bytes]]:
    """Read predictions, labels and revoked labels by nonce; empty for a shard of another version."""
    kept, _ = read_npz(shard)
    if (str(kept["model"]), str(kept["version"])) != (model, version):
        return {}, {}, set()
    if kept["nonce"].ndim != 2 or kept["nonce"].shape[1] != NONCE_BYTES:
        raise ShapeError(f"nonces of a shard must be (n, {NONCE_BYTES}), got {kept['nonce'].shape}")
    nonces = [row.tobytes() for row in kept["nonce"].astype(np.uint8)]
    if "label" in kept:
        return {}, dict(zip(nonces, kept["label"].astype(np.int64).tolist(), strict=True)), set()
    if shard.name.startswith("revoked-"):
        return {}, {}, set(nonces)
    times, logits = kept["time"].astype(np.float64), kept["logits"].astype(np.float16)
    if logits.ndim != 2:
        raise ShapeError(f"logits of a shard must be (n, K), got {logits.shape}")
    return dict(zip(nonces, zip(times.tolist(), logits, strict=True), strict=True)), {}, set()


def is_sampled(nonce: bytes, rate: float) -> bool:
    """Whether a sample of this ``rate`` holds the prediction of this nonce, in every process."""
    # Hashed, as those of one batch begin alike.
    return zlib.crc32(nonce) < rate * 2.0**32


def _written(shard: Path) -> int:
    """Milliseconds since 1970, from the shard's name."""
    part = shard.name.split("-")[1]
    return int(part) if part.isdigit() else 0


def _rate(shard: Path) -> str:
    """The rate in the shard's name; "" where it has none, as in shards of revoked labels."""
    return "".join(shard.name.removesuffix(".npz").split("-", 4)[4:])
