"""``calib-serve fit --model M --data D``: fits that need the deployed model, not its logits alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact

__all__ = ["fit_on_model"]


def fit_on_model(
    model: str,
    data: str,
    *,
    split: str | None,
    method: str,
    options: dict[str, Any],
    seed: int,
    quiet: bool,
) -> Artifact:
    """Fit ``method`` to a deployed model and its calibration data; ``options`` are the method's own.

    ``quiet``: show no progress. An output method is fitted to the logits that the model gives.
    """
    from calib_serve.cli.fit import fit_output
    from calib_serve.data import load_data
    from calib_serve.model import load_model

    classifier = load_model(model)
    samples = load_data(data, split=split)
    artifact = fit_output(
        method,
        classifier.logits(samples.inputs),
        samples.labels,
        class_names=samples.class_names or (),
        options=options,
        seed=seed,
        quiet=quiet,
    )
    return replace(artifact, model={"fingerprint": classifier.fingerprint})
