"""The trial's process: ``python -m calib_serve.seam.trial_worker JOB RESULT``, started by ``run_trial``.

Three trials: ``look`` finds the seam of an archive's original handler with a made-up request, ``answer`` asks
a calibrated archive the same, ``scores`` sends samples through the handler and keeps what passes the seam.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from calib_serve.errors import CalibServeError, ModelError
from calib_serve.seam.collect import collect
from calib_serve.seam.handler import load_handler
from calib_serve.seam.host import Request, ask, context_of
from calib_serve.seam.look import initialize, look, manifest_of_model
from calib_serve.seam.reply import as_json

__all__ = ["main"]


def answer(folder: Path, *, requests: Sequence[dict[str, str]], bare: bool) -> dict[str, Any]:
    """The reply and the headers of a calibrated archive's handler to a batch of requests."""
    handler = load_handler(manifest_of_model(folder)["handler"])
    ctx = context_of(folder, batch_size=len(requests))
    initialize(handler, ctx)
    got = ask(handler.handle, ctx, [Request.from_dict(held) for held in requests], bare=bare)
    if got.failure:
        raise ModelError(got.failure)
    return {"replies": [as_json(reply) for reply in got.replies], "headers": list(got.headers)}


TRIALS: dict[str, Callable[..., Any]] = {"look": look, "answer": answer, "scores": collect}


def main(order: str, result: str) -> None:
    """Run the trial that the file ``order`` describes, and write what comes of it to ``result``."""
    job = json.loads(Path(order).read_text("utf-8"))
    trial, folder = TRIALS[job.pop("what")], Path(job.pop("folder"))
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    try:
        outcome = {"result": trial(folder, **job)}
    except CalibServeError as error:
        outcome = {"error": str(error)}
    Path(result).write_text(json.dumps(outcome), "utf-8")
    sys.stdout.flush()
    os._exit(0)  # threads of the handler's, such as micro-batching's, would keep the process


if __name__ == "__main__":
    main(*sys.argv[1:])
