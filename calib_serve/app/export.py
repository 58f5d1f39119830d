"""``calib-serve export``: files that configure other programs, or that they read."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from calib_serve.app._command import Flat, OfData, OfOutput, Replacing, command, shown_example
from calib_serve.app._data import plain_scores
from calib_serve.app._show import console, note
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import fields_of
from calib_serve.core.options.data import PlainData
from calib_serve.web import MonitoringOptions

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact
    from calib_serve.scores import Scores

app = command(
    "export",
    "calib-serve export probabilities artifact scores.npz --split test -o probs.npz\n"
    "calib-serve export monitoring deploy/\n"
    "calib-serve export constraints constraints.txt",
)


@dataclass(frozen=True, kw_only=True)
class _Rules(MonitoringOptions, Replacing):
    """Options of ``calib-serve export monitoring``."""


@dataclass(frozen=True, kw_only=True)
class _Npz:
    """Options of the output of ``calib-serve export probabilities``."""

    out: Annotated[Path, Parameter(name=("-o", "--out"))]
    """The npz file to write."""


@app.command(help_prologue=shown_example("calib-serve export monitoring deploy/"))
def _monitoring(
    folder: Annotated[Path, Parameter(help="Where to write; made if it is missing.")],
    *,
    options: Annotated[_Rules, Flat] = _Rules(),
) -> None:
    """Write rules, alerts, the dashboard and example settings, for Prometheus, Alertmanager and Grafana.

    Nothing is written where a file would change, unless --force is given.
    """
    from calib_serve.web import export_monitoring

    own = MonitoringOptions(**fields_of(MonitoringOptions, options))
    written = export_monitoring(folder, own, force=options.force)
    for path in written:
        console().print(f"wrote {path}")
    if not written:
        console().print(f"{folder} is up to date")


@app.command(help_prologue=shown_example("calib-serve export constraints constraints.txt"))
def _constraints(
    file: Annotated[Path, Parameter(help="Where to write; for pip's and uv's -c.")] = Path("constraints.txt"),
    *,
    options: Annotated[Replacing, Flat] = Replacing(),
) -> None:
    """Write the versions of other packages that this release was tested with."""
    from importlib.resources import files

    from calib_serve.core.files import write_changed

    # Its users add pins of their own to such a file.
    write_changed({file: (files("calib_serve") / "constraints.txt").read_bytes()}, force=options.force)
    console().print(f"wrote {file}")


@app.command(help_prologue=shown_example("calib-serve export probabilities artifact scores.npz -o probs.npz"))
def _probabilities(
    artifact: Annotated[Path, Parameter(help="The artifact's folder.")],
    data: Annotated[Path, Parameter(help="The scores: npz, csv, ...")],
    *,
    source: Annotated[PlainData, OfData] = PlainData(),
    output: Annotated[_Npz, OfOutput],
) -> None:
    """Write calibrated probabilities, predictions and confidences of a file of scores.

    The npz holds probs (n, K), predictions and confidence (n,), where the
    artifact has them set (n, K), whether each class is in it, abstain, act
    and decision, the id of an action (n,), and labels (n,) where the file has them; of a multi-label model
    label_probs, predictions (0 or 1), confidence and labels (n, L). It can be
    read again as a file of probabilities.
    """
    import numpy as np

    from calib_serve.artifact import Artifact
    from calib_serve.core.files import write_atomically

    out = output.out
    if out.suffix != ".npz":
        raise InputError(f"the output is an npz file, got {out.name!r}")
    known = Artifact.load(artifact)
    if known.model_steps:
        raise InputError(
            f"{artifact} changes the model itself, so scores alone are not enough; fuse it into the model"
        )
    found = known.accepted(plain_scores(data, source, known))
    arrays = _arrays(known, found)
    try:
        with write_atomically(out) as partial:
            np.savez_compressed(partial, allow_pickle=False, **arrays)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error}") from error
    what = "labels" if known.is_multilabel else "classes"
    console().print(f"{len(arrays['predictions'])} samples, {known.classes} {what}: {out}")


def _arrays(artifact: "Artifact", found: "Scores") -> dict[str, Any]:
    import numpy as np

    probs = artifact.probs(found)
    arrays: dict[str, Any]
    if artifact.is_multilabel:
        chosen = (probs > 0.5).astype(np.uint8)
        arrays = {"label_probs": probs, "predictions": chosen, "confidence": np.maximum(probs, 1 - probs)}
    else:
        arrays = {"probs": probs, "predictions": probs.argmax(axis=1), "confidence": probs.max(axis=1)}
    decisions = {"set": artifact.sets, "abstain": artifact.abstain, "decision": artifact.choice}
    arrays |= {name: decide(probs) for name, decide in decisions.items() if decide is not None}
    contract = artifact.contract
    if contract is not None and contract.segments:
        note(["act is left out, as it depends on segments, which the file has not"])
    elif contract is not None:
        arrays["act"] = contract.acts(arrays["confidence"], arrays["predictions"])
    if found.labels is not None:
        arrays["labels"] = found.labels
    if artifact.class_names:
        arrays["class_names"] = np.array(artifact.class_names, str)
    if found.ids is not None and found.ids.dtype.kind != "O":
        arrays["ids"] = found.ids
    # Whoever calibrates these again is refused.
    arrays["calibrated_by"] = np.array(artifact.fingerprint)
    return arrays
