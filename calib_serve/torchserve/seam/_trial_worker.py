"""The process that ``run_trial`` starts: it asks an archive's handler, or finds its seam.

``python -m calib_serve.torchserve.seam._trial_worker JOB RESULT`` runs one of three trials: ``look`` finds
the seam of an archive's original handler, ``answer`` asks a calibrated archive the same requests,
``scores`` sends samples through the handler and keeps their scores, each compared with its reply.

The process ends with the one that started it, whose end of the pipe at its standard input is then closed, and
so do those that the handler started.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import Floats
from calib_serve.core.data_files import map_npy
from calib_serve.core.errors import CalibServeError, ModelError
from calib_serve.scores import PROBABILITIES, Form, as_json, refuted, to_logits, to_probs
from calib_serve.torchserve.declared import DECLARED
from calib_serve.torchserve.seam._finding import LoadedHandler, initialize, look
from calib_serve.torchserve.seam._handler import load_handler
from calib_serve.torchserve.seam._host import ask, context_of
from calib_serve.torchserve.seam._refutation import (
    ANOTHER_PLACE,
    DECLARE,
    NotAnswered,
    NotOneOwned,
    Place,
    contradiction,
)
from calib_serve.torchserve.seam._requests import Request, alternatives
from calib_serve.torchserve.seam._seam import Seam
from calib_serve.torchserve.seam._trial import Ticks
from calib_serve.torchserve.shown import Readings


def answer(
    folder: Path, *, batches: Sequence[Sequence[dict[str, str]]], bare: bool, progress: str
) -> list[dict[str, Any]]:
    """Ask a calibrated archive's handler each batch of requests; return its replies and headers."""
    ctx = context_of(folder, batch_size=max(map(len, batches)))
    handler = load_handler(ctx.manifest["model"]["handler"])
    initialize(handler, ctx)
    tick, found = Ticks(progress), []
    for batch in batches:
        tick()
        got = ask(handler.handle, ctx, [Request.from_dict(held) for held in batch], bare=bare)
        if got.failure:
            raise ModelError(got.failure)
        found.append({"replies": [as_json(reply) for reply in got.replies], "headers": list(got.headers)})
    return found


def collect(
    folder: Path,
    *,
    seam: Mapping[str, Any],
    files: Sequence[str] = (),
    rows: str | None = None,
    out: str,
    batch_size: int,
    progress: str,
) -> None:
    """Send ``files``, or the rows of the .npy ``rows``, in batches; write the logits (n, K) at the seam.

    ``seam``: a ``Seam``, as JSON holds it. ``out`` becomes an .npy of float32; K is 2 for one column, but of
    labels. ``progress``: a file that says how many are done. Raises ModelError, which names the sample,
    where the handler fails on one, or where it is not known which scores are whose: each reply has to be of
    its own row.
    """
    found = Seam.from_dict(seam)
    loaded = LoadedHandler.of(folder, found.place, batch_size)
    samples = [*map(Path, files)] if rows is None else map_npy(Path(rows))
    tick, n = Ticks(progress), len(samples)
    place = Place(
        found.place,
        lambda batch: loaded.ask(batch, found.bare),
        loaded.recorders[found.place],
        Form.parse(found.output),
        found.kind,
        found.columns,
    )
    # Not a memory map: of a full disk a write says so, a map ends the process.
    with Path(out).open("wb") as written:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n, found.classes)}
        np.lib.format.write_array_header_1_0(written, header)
        for start in range(0, n, batch_size):
            batch = samples[start : start + batch_size]
            requests = [alternatives(sample)[found.form] for sample in batch]
            names = list(map(str, batch)) if rows is None else [f"row {start + i}" for i in range(len(batch))]
            logits = _logits(place, requests, names, found.shown)
            try:
                written.write(logits.tobytes())
            except OSError as error:
                raise ModelError(f"cannot keep the scores of {n} samples: {error}") from error
            tick(start + len(batch), n)


def _logits(
    place: Place, requests: Sequence[Request], names: Sequence[str], shown: Readings
) -> NDArray[np.float32]:
    """The scores of one batch as logits (n, K); ModelError where it is not one row a sample."""
    all_ = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    try:
        seen = place.see(requests, served=True)
    except NotOneOwned as error:
        raise ModelError(f"{names[error.at]}: {error}") from error
    except NotAnswered as error:
        for name, request in zip(names, requests, strict=True):
            if failure := place.ask([request]).failure:
                raise ModelError(f"the handler failed on {name}: {failure}") from error
        raise ModelError(
            f"the handler answers {all_} one at a time and not together: {error}; try --batch-size 1"
        ) from error
    except ModelError as error:
        raise ModelError(f"{all_}: {error}") from error
    if not seen.in_order:
        raise ModelError(
            f"{all_}: scores pass on several threads: which sample each row is of is not known; try "
            "--batch-size 1"
        )
    if (
        place.kind in PROBABILITIES
        and np.isfinite(seen.rows).all()
        and (why := refuted(seen.rows, place.kind))
    ):
        raise ModelError(
            f"{place.kind} are expected here as on the first sample; its scores are others: {why}"
        )
    with np.errstate(over="ignore"):
        logits = to_logits(seen.rows, place.kind).astype("<f4")
    for name, row, own, reply in zip(names, seen.rows, logits, seen.replies, strict=True):
        if not np.isfinite(own).all():
            raise ModelError(f"{name}: the scores {row[:5].tolist()} are not finite {place.kind}")
        _refuse_parted(place, shown, name, row, reply)
    return logits


def _refuse_parted(place: Place, shown: Readings, sample: str, row: Floats, reply: Any) -> None:
    """Raise ModelError where the reply to a sample is not of its row, or cannot be compared with it."""
    p = to_probs(row[None], place.kind)[0]
    if against := contradiction(shown, reply, p):
        raise ModelError(
            f"{sample}: {against}; the reply is not made of the scores at {place.name} alone (another "
            f"network, a filter, an earlier request, another order): {ANOTHER_PLACE}"
        )
    if shown.compare(reply, p).reason == "nothing" and place.name != DECLARED:
        raise ModelError(
            f"{sample}: the reply {reply!r:.100} shows nothing of the scores at {place.name}, so that it "
            f"cannot be told whether these are its own: leave the sample out, {DECLARE}"
        )


TRIALS: dict[str, Callable[..., Any]] = {"look": look, "answer": answer, "scores": collect}


def main(order: str, result: str) -> None:
    """Run the trial that the file ``order`` describes, and write its result to ``result``."""
    job = json.loads(Path(order).read_text("utf-8"))
    trial, folder = TRIALS[job.pop("what")], Path(job.pop("folder"))
    # Kept under another number: the handler may read or close its standard input.
    pipe = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what a handler reads
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    try:
        outcome = {"result": trial(folder, **job)}
    except CalibServeError as error:
        outcome = {"error": str(error)}
    Path(result).write_text(json.dumps(outcome), "utf-8")
    sys.stdout.flush()
    os._exit(0)  # threads of the handler's, such as micro-batching's, would keep the process


def _end_with_parent(pipe: int) -> None:
    """Wait until the other end of the pipe is closed, then end this process's group."""
    os.read(pipe, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
