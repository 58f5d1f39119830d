"""A calibration that is served now, fitted again on the predictions that its server sampled."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FitError, InputError, OptionError
from calib_serve.core.options.base import changed, fields_of
from calib_serve.core.options.fit import GateOptions, RefitOptions, ServedRefitOptions
from calib_serve.fit import LEAST, Progress, Refitted, refit
from calib_serve.receipts import DAY, read_samples
from calib_serve.torchserve.archive._archive import is_archive
from calib_serve.torchserve.archive._packing import served_artifact

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ServedRefitKeywords


def refit_served(
    served: str | Path,
    samples: str | Path,
    options: ServedRefitOptions | None = None,
    *,
    progress: Progress | None = None,
    **keywords: Unpack[ServedRefitKeywords],
) -> Refitted:
    """Fit the calibration of a served model again, on its sampled predictions.

    Samples of the last ``days`` are used and what came before since the last multiple of ``days`` (since
    1970), so that the first sample stays the same for ``days``: ``alpha`` holds for all that is asked within
    such a period.

    Args:
        served: An archive, or the folder of an artifact.
        samples: The folder in which the server keeps samples.
        options: A ``ServedRefitOptions``; keywords replace its fields.
        progress: Called with a stage, and how much of it is done, of how much.
        **keywords: Fields of ``ServedRefitOptions``: ``alpha``, ``days``, ``method``, ``model``, ``seed``.

    Raises:
        FitError: For fewer than 200 labelled samples.
        InputError: For a multi-label model, and for options that cannot be right.
    """
    options = changed(options or ServedRefitOptions(), keywords, refit_served)
    current, name, version = _served(Path(served), options.model)
    if current.is_multilabel:
        raise InputError(
            "of a multi-label model no samples are kept while it is served; fit it on new data, with "
            "calib-serve fit"
        )
    found = read_samples(samples, model=name, version=version, since=_window_start(time.time(), options.days))
    if len(found.labels) < LEAST:
        raise FitError(
            f"{len(found.labels)} labelled samples of {found.predictions} kept predictions; at least "
            f"{LEAST} are needed: look farther back, keep a larger share, or wait for labels"
        )
    gate = fields_of(GateOptions, options)
    return refit(current, found.logits, found.labels, RefitOptions(**gate), progress=progress)


def _window_start(now: float, days: float) -> float:
    """The multiple of ``days``, in seconds, at which the samples begin: one to two before ``now``.

    A window that moved with the clock would start other evidence at every ask.

    >>> [_window_start(day * DAY, 7.0) / DAY for day in (14, 20.9, 21)]
    [7.0, 7.0, 14.0]
    """
    return (math.floor(now / (days * DAY)) - 1) * days * DAY


def _served(served: Path, model: str) -> tuple[Artifact, str, str]:
    """The artifact that is served now, with its name and version."""
    name, _, version = model.rpartition(":")
    if model and not (name and version):
        raise OptionError("model", f"is NAME:VERSION, got {model!r}")
    if is_archive(served):
        artifact, own_name, own_version = served_artifact(served)
        return artifact, name or own_name, version or own_version
    if not model:
        raise InputError(
            "an artifact does not know where it is served; give its name and version, NAME:VERSION (--model)"
        )
    return Artifact.load(served), name, version
