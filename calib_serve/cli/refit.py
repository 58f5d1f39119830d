"""``calib-serve refit``: fit the output calibration again, on what was served and labelled lately."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from calib_serve.errors import FitError, InputError

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact
    from calib_serve.watch.samples import LabelledSamples

__all__ = ["Judged", "refit", "run"]

_LEAST = 200  # labelled samples, below which nothing is fitted
_HELD_OUT = 0.3  # the latest share of them, on which old and new are compared


def run(
    served: Annotated[Path, typer.Argument(help="What is served now: an archive (.mar), or an artifact.")],
    *,
    log: Annotated[Path, typer.Option("--log", help="The folder of the sample log.")],
    name: Annotated[str, typer.Option("--name", help="The model's name; an archive knows its own.")] = "",
    version: Annotated[
        str, typer.Option("--version", help="The version whose samples to use; an archive knows its own.")
    ] = "",
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder the new artifact is written to.")],
    days: Annotated[float, typer.Option("--days", help="How far back to look.")] = 7.0,
    method: Annotated[str, typer.Option("--method", help="A method's name, or auto.")] = "auto",
    new_version: Annotated[
        str, typer.Option("--new-version", help="Pack the archive again as this version.")
    ] = "",
    store: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads the annotation at run time, also on 3.10
        typer.Option("--store", help="The model store to pack into; default: where the archive is."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of everything that is drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> None:
    """Fit again on recent labelled samples, and keep the result only if it is better on the latest ones.

    The model, its input shift and its head stay as they are, and so do all options of an archive. Exit
    code 1 and nothing written when the current calibration is as good.
    """
    from calib_serve.receipts import DAY
    from calib_serve.watch.samples import read_samples

    current, name, version = _served(served, name, version, packed=bool(new_version))
    samples = read_samples(log, model=name, version=version, since=time.time() - days * DAY)
    judged = refit(current, samples, method=method, seed=seed)
    if as_json:
        typer.echo(json.dumps(judged.as_dict()))
    else:
        typer.echo(judged.says())
    if judged.artifact is None:
        raise typer.Exit(1)
    judged.artifact.save(out)
    typer.echo(f"written to {out}", err=as_json)
    if new_version:
        from calib_serve.fuse.torchserve import recalibrated

        packed = recalibrated(served, judged.artifact, store or served.parent, version=new_version)
        typer.echo(f"packed {packed}; register it and make it the default", err=as_json)


def _served(served: Path, name: str, version: str, *, packed: bool) -> tuple[Artifact, str, str]:
    """The artifact that is served now, and under which name and version."""
    from calib_serve.artifact import Artifact

    if served.suffix == ".mar":
        from calib_serve.fuse.torchserve import served_artifact

        artifact, own_name, own_version = served_artifact(served)
        return artifact, name or own_name, version or own_version
    if packed:
        raise InputError(f"--new-version packs an archive again; give the .mar that is served, not {served}")
    if not (name and version):
        raise InputError("an artifact does not know where it is served; give --name and --version")
    return Artifact.load(served), name, version


@dataclass(frozen=True, eq=False)
class Judged:
    """The new artifact, or None when it is no better, and the numbers that decided.

    ``nll`` and ``ece`` hold (current, new) on the latest ``held_out`` samples, on which neither was
    fitted; ``gain`` is the fall of the NLL and ``error`` its standard error, in pairs. ``shift`` is how far
    confidences and predicted classes of all samples are from those of the calibration set: the population
    stability index, and how much of one chance alone would show.
    """

    artifact: Artifact | None
    samples: int
    held_out: int
    nll: tuple[float, float]
    ece: tuple[float, float]
    gain: float
    error: float
    shift: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kept": self.artifact is not None,
            "method": self.artifact.method if self.artifact else None,
            "samples": self.samples,
            "held_out": self.held_out,
            "nll": {"current": self.nll[0], "new": self.nll[1]},
            "ece": {"current": self.ece[0], "new": self.ece[1]},
            "gain": self.gain,
            "standard_error": self.error,
            "shift": {name: {"psi": psi, "by_chance": chance} for name, (psi, chance) in self.shift.items()},
        }

    def says(self) -> str:
        """Some lines for a person."""
        moved = (
            f"{name} against those of the calibration set: PSI {psi:.2f}, {chance:.2f} by chance\n"
            for name, (psi, chance) in self.shift.items()
        )
        numbers = "".join(moved) + (
            f"on the latest {self.held_out} of {self.samples} samples: NLL {self.nll[0]:.4f} -> "
            f"{self.nll[1]:.4f}, ECE {self.ece[0]:.2%} -> {self.ece[1]:.2%}"
        )
        if self.artifact is None:
            return f"{numbers}\nnot better by more than its standard error; the current one stays"
        return f"{numbers}\nbetter: {self.artifact.method}, fitted on all of them"


def refit(current: Artifact, samples: LabelledSamples, *, method: str = "auto", seed: int = 0) -> Judged:
    """Fit the output steps again; judged on the latest samples against the current artifact.

    The new one must lower the NLL of the held-out samples by more than one standard error of the
    paired difference; then it is fitted on all samples. Raises FitError when there are too few.
    """
    import numpy as np

    from calib_serve.bins import Bins

    n = len(samples.labels)
    if n < _LEAST:
        raise FitError(
            f"{n} labelled samples of {samples.predictions} kept predictions; at least {_LEAST} are needed: "
            "look farther back with --days, keep a larger share, or wait for labels"
        )
    if samples.logits.shape[1] != current.classes:
        raise InputError(f"the log holds {samples.logits.shape[1]} classes, the artifact {current.classes}")
    cut = n - int(n * _HELD_OUT)
    trial = _fitted(current, samples.logits[:cut], samples.labels[:cut], method=method, seed=seed)
    z, y = samples.logits[cut:], samples.labels[cut:]
    rows = np.arange(len(y))
    probs = [artifact.probs(z) for artifact in (current, trial)]
    old, new = (-np.log(np.maximum(p[rows, y], 1e-12)) for p in probs)
    gain, error = float((old - new).mean()), float((old - new).std(ddof=1) / np.sqrt(len(y)))
    before, after = (Bins.tally(p.max(axis=1), p.argmax(axis=1) == y).ece() for p in probs)
    better = (
        _fitted(current, samples.logits, samples.labels, method=method, seed=seed) if gain > error else None
    )
    return Judged(
        better,
        samples=n,
        held_out=len(y),
        nll=(float(old.mean()), float(new.mean())),
        ece=(before, after),
        gain=gain,
        error=error,
        shift=_shift(current, samples),
    )


def _shift(current: Artifact, samples: LabelledSamples) -> dict[str, tuple[float, float]]:
    """Of what was served against what the artifact was fitted on, as far as it tells."""
    import numpy as np

    from calib_serve.bins import bin_index
    from calib_serve.watch.drift import psi

    probs = current.probs(samples.logits)
    pairs = {}
    if current.reference is not None and current.reference.n:
        bins = bin_index(np.minimum(probs.max(axis=1), 1.0), bins=len(current.reference))
        pairs["confidences"] = (bins, current.reference.count)
    if sum(current.reference_classes):
        pairs["predicted classes"] = (probs.argmax(axis=1), np.array(current.reference_classes))
    found = {}
    for name, (served, known) in pairs.items():
        chance = (np.count_nonzero(known) - 1) * (1 / len(served) + 1 / known.sum())
        found[name] = (psi(np.bincount(served, minlength=len(known)), known), float(chance))
    return found


def _fitted(current: Artifact, logits: Any, labels: Any, *, method: str, seed: int) -> Artifact:
    """The current artifact with new output steps, and the reference bins of these samples."""
    from calib_serve.artifact.steps import Head, InputShift
    from calib_serve.cli.fit import fit_output

    fresh = fit_output(
        method, logits, labels, class_names=current.class_names, options={}, seed=seed, quiet=True
    )
    kept = tuple(step for step in current.steps if isinstance(step, (InputShift, Head)))
    return replace(
        fresh,
        steps=(*kept, *fresh.steps),
        model=current.model,
        data={**fresh.data, "refit_of": current.fingerprint},
    )
