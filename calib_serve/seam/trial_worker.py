"""The trial's process: ``python -m calib_serve.seam.trial_worker JOB RESULT``, started by ``run_trial``.

Three trials: ``look`` finds and proves the seam of an archive's original handler, ``answer`` asks a
calibrated archive the same requests, ``scores`` sends samples through the handler and keeps their scores.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from calib_serve.errors import CalibServeError, ModelError
from calib_serve.seam.collect import collect
from calib_serve.seam.handler import load_handler
from calib_serve.seam.host import Request, Ticks, ask, context_of
from calib_serve.seam.look import initialize, look, manifest_of_model
from calib_serve.seam.reply import as_json

__all__ = ["main"]


def answer(
    folder: Path, *, batches: Sequence[Sequence[dict[str, str]]], bare: bool, progress: str
) -> list[dict[str, Any]]:
    """The replies and the headers of a calibrated archive's handler to each batch of requests."""
    handler = load_handler(manifest_of_model(folder)["handler"])
    ctx = context_of(folder, batch_size=max(map(len, batches)))
    initialize(handler, ctx)
    tick, found = Ticks(progress), []
    for batch in batches:
        tick()
        got = ask(handler.handle, ctx, [Request.from_dict(held) for held in batch], bare=bare)
        if got.failure:
            raise ModelError(got.failure)
        found.append({"replies": [as_json(reply) for reply in got.replies], "headers": list(got.headers)})
    return found


TRIALS: dict[str, Callable[..., Any]] = {"look": look, "answer": answer, "scores": collect}


def main(order: str, result: str) -> None:
    """Run the trial that the file ``order`` describes, and write what comes of it to ``result``."""
    job = json.loads(Path(order).read_text("utf-8"))
    trial, folder = TRIALS[job.pop("what")], Path(job.pop("folder"))
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
