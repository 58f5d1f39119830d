"""A worker's sample of logits and labels, where the host asks for one."""

from __future__ import annotations

from calib_serve.errors import ModelError
from calib_serve.fuse.mar_options import SAMPLE_RATE, SAMPLE_SECONDS, SAMPLES, from_environment
from calib_serve.watch.samples import SampleLog

__all__ = ["host_sample_log"]


def host_sample_log() -> SampleLog | None:
    """The log in ``CALIB_SERVE_SAMPLES``, at rate ``CALIB_SERVE_SAMPLE_RATE`` (0.1); None where unset.

    Written every ``CALIB_SERVE_SAMPLE_SECONDS`` (60): a server that stops kills its workers.
    """
    folder, rate = from_environment(SAMPLES), from_environment(SAMPLE_RATE)
    if folder is None:
        return None
    try:
        seconds = float(from_environment(SAMPLE_SECONDS) or 60.0)
        return SampleLog(folder, rate=float(rate or 0.1), flush_seconds=seconds).start()
    except (ValueError, OSError) as error:
        raise ModelError(f"cannot keep samples in {folder} at rate {rate}: {error}") from error
