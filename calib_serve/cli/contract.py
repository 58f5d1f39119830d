"""``calib-serve contract``: what an artifact's confidence promises in production; set, shown and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib_serve.cli import options
from calib_serve.cli.contract_plan import plan
from calib_serve.cli.held_out import check_given, held_out
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact, Contract
    from calib_serve.workflows.contracts import ContractCheck

__all__ = ["group"]

group = typer.Typer(
    no_args_is_help=True, help="Say what confidence promises in production, and whether it can be kept."
)
group.command("plan")(plan)

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
    from calib_serve.workflows.contracts import read_contract

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
        typer.Option(
            "--logits", help="Logits or probs, and labels, that the fit has not seen: npz, csv, ..."
        ),
    ] = None,
    model: options.Model = None,
    weights: options.Weights = None,
    data: options.Data = None,
    split: options.Split = None,
    labels: options.Labels = None,
    outputs: options.Outputs = None,
    groups: Annotated[
        Path | None,
        typer.Option("--groups", help="An npy file of numbers or text: which samples belong together."),
    ] = None,
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
    from calib_serve.data import read_groups
    from calib_serve.workflows.contracts import check_contract, read_contract
    from calib_serve.workflows.decide import refuse_labels, refuse_seen

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
    )
    artifact.check_takes(samples.outputs, "the samples")
    refuse_seen(artifact, samples)
    found = check_contract(
        promised,
        artifact.probs(samples.logits),
        samples.labels,
        segments=None if segments is None else read_groups(segments, len(samples), beside=logits),
        groups=None if groups is None else read_groups(groups, len(samples), beside=logits),
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
