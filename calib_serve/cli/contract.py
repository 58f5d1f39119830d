"""``calib-serve contract``: what an artifact's confidence promises; set, shown, checked and planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib_serve.cli import options
from calib_serve.cli.held_out import check_given, held_out
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact, Contract

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact, Contract
    from calib_serve.contracts import ContractCheck

__all__ = ["group", "plan"]

group = typer.Typer(
    no_args_is_help=True, help="Say what confidence promises in production, and whether it can be kept."
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The artifact's folder.")]
Out = Annotated[
    Path | None,
    typer.Option("-o", "--out", help="The folder to write; the artifact itself if not given."),
]


@group.command("set")
def put(
    folder: Folder,
    file: Annotated[Path, typer.Argument(metavar="CONTRACT", help="The contract, a YAML file.")],
    *,
    out: Out = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Put a contract into an artifact, in place of the one that it has.

    Classes are checked against the artifact's. Its probabilities stay as they are; its fingerprint changes,
    as the contract is part of it.
    """
    from calib_serve.artifact import Artifact
    from calib_serve.contracts import read_contract

    artifact = Artifact.load(folder)
    _write(artifact, read_contract(file, artifact), folder, out, force=force, as_json=as_json)


@group.command("remove")
def remove(
    folder: Folder, *, out: Out = None, force: options.Force = False, as_json: options.AsJson = False
) -> None:
    """Take the contract out of an artifact: what is served from then on promises nothing."""
    from calib_serve.artifact import Artifact

    artifact = Artifact.load(folder)
    if artifact.contract is None:
        raise InputError(f"{folder} has no contract")
    _write(artifact, None, folder, out, force=force, as_json=as_json)


@group.command("show")
def show(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR|ARCHIVE", help="An artifact's folder, or a calibrated archive.")
    ],
    *,
    as_json: options.AsJson = False,
) -> None:
    """Show the contract of an artifact: the YAML to change and set again, and what it says."""
    from calib_serve.fuse.torchserve import load_artifact

    artifact = load_artifact(folder)
    if artifact.contract is not None and not as_json:
        typer.echo(artifact.contract.text(artifact.class_names))
    _show(folder, artifact, as_json=as_json)


@group.command("check")
def check(
    folder: Folder,
    *,
    contract: Annotated[
        Path | None,
        typer.Option(
            "--contract", help="A contract that is not set yet, a YAML file; the artifact's if not given."
        ),
    ] = None,
    logits: Annotated[
        Path | None,
        typer.Option("--logits", help="Scores and labels that the fit has not seen: npz, csv, ..."),
    ] = None,
    model: options.Model = None,
    weights: options.Weights = None,
    data: options.Data = None,
    split: options.Split = None,
    labels: options.Labels = None,
    outputs: options.Outputs = None,
    columns: options.Columns = None,
    class_names: options.ClassNames = None,
    sample_weight: options.SampleWeight = None,
    groups: options.Groups = None,
    ignore_label: options.IgnoreLabel = None,
    segments: Annotated[
        Path | None, typer.Option("--segments", help="An npy file of text: the segment of each sample.")
    ] = None,
    per_day: Annotated[
        float | None,
        typer.Option(
            "--predictions-per-day", help="Tells how likely a promise is kept over one window of them."
        ),
    ] = None,
    level: Annotated[float, typer.Option("--level", help="The level of intervals and of guarantees.")] = 0.95,
    replicates: options.Replicates = 1000,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Say of each clause whether it can be kept, by samples that the fit has not seen; exit code 1 if not.

    "can be kept" and "cannot be kept" are said where the whole interval lies on one side of the promise; else
    there are not enough samples. For what is acted on, the smallest threshold is named that keeps the promise
    with a finite-sample guarantee, as a line for the contract.
    """
    from calib_serve.artifact import Artifact
    from calib_serve.scores.files import read_npy
    from calib_serve.contracts import check_contract, read_contract
    from calib_serve.fit.decide import refuse_labels, refuse_seen

    check_given(logits, model)
    artifact = Artifact.load(folder)
    refuse_labels(artifact, outputs)
    promised = artifact.contract if contract is None else read_contract(contract, artifact)
    if promised is None:
        raise InputError(f"{folder} has no contract: name one with --contract, or set it (contract set)")
    samples = held_out(
        artifact,
        logits=logits,
        model=model,
        weights=weights,
        data=data,
        split=split,
        labels=labels,
        outputs=outputs,
        columns=columns,
        class_names=class_names,
        sample_weight=sample_weight,
        groups=groups,
        ignore_label=ignore_label,
    )
    refuse_seen(artifact, samples)
    calibrated = artifact.calibrated(samples)
    found = check_contract(
        promised,
        calibrated.probs[:],
        calibrated.labelled(),
        segments=None if segments is None else read_npy(segments),
        groups=calibrated.groups,
        level=level,
        predictions_per_day=per_day,
        replicates=replicates,
        seed=seed,
    )
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
    else:
        _tell(found, artifact.class_names)
    if found.broken:
        raise typer.Exit(1)


def _write(
    artifact: Artifact,
    contract: Contract | None,
    folder: Path,
    out: Path | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """The artifact with this contract, to ``out`` or else in its own place."""
    from dataclasses import replace

    if out is not None and out.exists() and not force:
        raise InputError(f"{out} exists; give --force to replace it, or another --out")
    found = replace(artifact, contract=contract)
    found.save(out or folder)
    _show(out or folder, found, as_json=as_json)
    if not as_json:
        typer.echo(f"written to {out or folder}")


def _show(folder: Path, artifact: Artifact, *, as_json: bool) -> None:
    contract = artifact.contract
    if as_json:
        typer.echo(json.dumps({"artifact": str(folder), **_facts(artifact, contract)}))
    elif contract is None:
        typer.echo("no contract")
    else:
        for sentence in contract.says(artifact.class_names):
            typer.echo(sentence)


def _facts(artifact: Artifact, contract: Contract | None) -> dict[str, Any]:
    return {
        "fingerprint": artifact.fingerprint,
        "contract": None if contract is None else contract.facts,
        "says": [] if contract is None else contract.says(artifact.class_names),
        "ids": [] if contract is None else [one.id for one in contract.clauses],
    }


def _tell(found: ContractCheck, class_names: tuple[str, ...]) -> None:
    from rich.console import Console

    console = Console(markup=False, soft_wrap=True)
    colors = {"can be kept": "green", "cannot be kept": "red"}
    for one in found.clauses:
        first, *rest = one.says(class_names)
        console.print(first, style=f"bold {colors.get(one.found, 'yellow')}", highlight=False)
        for sentence in rest:
            console.print(f"  {sentence}", highlight=False)


@group.command("plan")
def plan(
    where: Annotated[
        Path, typer.Argument(metavar="DIR|CONTRACT", help="An artifact's folder, or a contract, a YAML file.")
    ],
    *,
    breach: Annotated[
        float, typer.Option("--breach", help="Points below the promised accuracy that are to be noticed.")
    ],
    within: Annotated[str, typer.Option("--within", help="The time to notice it in, such as 7d or 12h.")],
    power: Annotated[float, typer.Option("--power", help="How surely it is noticed by then.")] = 0.9,
    kept: Annotated[
        int, typer.Option("--kept", min=0, help="Labels of a kept promise that came before the breach.")
    ] = 10_000,
    acted_share: Annotated[
        float | None,
        typer.Option("--acted-share", help="The share of predictions that is acted on, where it is known."),
    ] = None,
    logits: Annotated[
        Path | None, typer.Option("--logits", help="Logits or probs that tell that share: npz, csv, ...")
    ] = None,
    split: options.Split = None,
    labels: options.Labels = None,
    outputs: options.Outputs = None,
    per_day: Annotated[
        float | None, typer.Option("--predictions-per-day", help="Tells which share of them to label.")
    ] = None,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Say how many labels a day it takes to notice that an act clause is broken, within a time.

    The numbers are of the test that the watch runs, by simulation. It may be looked at at any moment, which
    takes more labels than a test that is looked at once; that number is shown as well.
    """
    from calib_serve.names import parse_duration
    from calib_serve.contract_plan import plan_contract

    artifact, contract = _promised(where)
    if logits is not None and (artifact is None or acted_share is not None):
        raise InputError(
            "--logits tell the share that is acted on of an artifact: name its folder, without --acted-share"
        )
    acted = {} if acted_share is None else _told(contract, acted_share)
    if artifact is not None and logits is not None:
        acted = _measured(artifact, contract, logits, split=split, labels=labels, outputs=outputs)
    found = plan_contract(
        contract,
        breach=breach / 100,
        within=parse_duration(within, what="--within"),
        power=power,
        kept=kept,
        acted=acted,
        predictions_per_day=per_day,
        seed=seed,
    )
    if as_json:
        typer.echo(json.dumps([one.as_dict() for one in found]))
        return
    for one in found:
        for sentence in one.says():
            typer.echo(sentence)


def _promised(where: Path) -> tuple[Artifact | None, Contract]:
    from calib_serve.artifact import Artifact
    from calib_serve.contracts import read_contract

    if where.is_file():
        return None, read_contract(where)
    artifact = Artifact.load(where)
    if artifact.contract is None:
        raise InputError(f"{where} has no contract: set it (contract set), or name a contract's file")
    return artifact, artifact.contract


def _told(contract: Contract, share: float) -> dict[str, float]:
    """Of the clause about all predictions; of a segment's or a class's the share is not known."""
    return {one.name: share for one in contract.clauses if not one.segment and one.predicted is None}


def _measured(artifact: Artifact, contract: Contract, logits: Path, **how: Any) -> dict[str, float]:
    """Of each clause; none of a segment's, as a file of scores has none."""
    import numpy as np

    samples = held_out(artifact, logits=logits, model=None, weights=None, data=None, **how)
    probs = artifact.probs(samples)
    predicted = probs.argmax(axis=1)
    acts = contract.acts(np.minimum(probs.max(axis=1), 1), predicted)
    shares = {
        one.name: float((acts & (predicted == one.predicted if one.predicted is not None else True)).mean())
        for one in contract.clauses
        if not one.segment
    }
    return {name: share for name, share in shares.items() if share}
