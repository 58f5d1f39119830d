"""``calib-serve apply``: logits in, calibrated probabilities out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calib_serve.cli import options
from calib_serve.errors import InputError

__all__ = ["run"]


def run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The artifact's folder.")],
    *,
    logits: options.Logits,
    out: Annotated[Path, typer.Option("-o", "--out", help="The npz file to write.")],
    split: options.Split = None,
    labels: options.Labels = None,
    outputs: options.Outputs = None,
    columns: options.Columns = None,
    class_names: options.ClassNames = None,
) -> None:
    """Write calibrated probabilities, predictions and confidences of a file of logits.

    The npz holds probs (n, K), predictions and confidence (n,), where the artifact has them set (n, K),
    whether each class is in it, abstain and act (n,), and labels (n,) where the file has them; of a
    multi-label model label_probs, predictions (0 or 1), confidence and labels (n, L). It can be read again as
    a file of probabilities.
    """
    import numpy as np

    from calib_serve.artifact import Artifact
    from calib_serve.files import written_whole
    from calib_serve.scores.files import holds_files

    if out.suffix != ".npz":
        raise InputError(f"the output is an npz file, got {out.name!r}")
    if holds_files(logits):
        raise InputError(
            f"the rows of {logits} come in any order, so nothing would say which probabilities are whose; "
            "apply to one file after the other"
        )
    artifact = Artifact.load(folder)
    if artifact.input_shift is not None or artifact.head is not None:
        raise InputError(
            f"{folder} changes the model itself, so logits alone are not enough; fuse it into the model"
        )
    found = artifact.accepted(
        options.read_scores(
            logits,
            split=split,
            labels=labels,
            outputs=outputs,
            columns=columns,
            class_names=class_names,
            expected=artifact.model.outputs,
        )
    )
    probs = artifact.probs(found)
    arrays: dict[str, Any]
    if artifact.is_multilabel:
        chosen = (probs > 0.5).astype(np.uint8)
        arrays = {"label_probs": probs, "predictions": chosen, "confidence": np.maximum(probs, 1 - probs)}
    else:
        arrays = {"probs": probs, "predictions": probs.argmax(axis=1), "confidence": probs.max(axis=1)}
    decisions = {"set": artifact.sets, "abstain": artifact.abstain}
    arrays |= {name: decide(probs) for name, decide in decisions.items() if decide is not None}
    contract = artifact.contract
    if contract is not None and contract.segments:
        typer.echo(
            "calib-serve: act is left out, as it depends on segments, which the file has not", err=True
        )
    elif contract is not None and contract.decides:
        arrays["act"] = contract.acts(arrays["confidence"], arrays["predictions"])
    if found.labels is not None:
        arrays["labels"] = found.labels
    if artifact.class_names:
        arrays["class_names"] = np.array(artifact.class_names, str)
    if found.ids is not None and found.ids.dtype.kind != "O":
        arrays["ids"] = found.ids
    # Whoever calibrates these again is refused.
    arrays["calibrated_by"] = np.array(artifact.fingerprint)
    try:
        with written_whole(out) as partial:
            np.savez_compressed(partial, allow_pickle=False, **arrays)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error}") from error
    what = "labels" if artifact.is_multilabel else "classes"
    typer.echo(f"{len(probs)} samples, {artifact.classes} {what}: {out}")
