"""``calib-serve contract plan``: how many labels a day it takes to notice a breach in time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib_serve.cli import options
from calib_serve.cli.held_out import held_out
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact, Contract

__all__ = ["plan"]


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
    from calib_serve.workflows.contract_plan import plan_contract

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
    from calib_serve.workflows.contracts import read_contract

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
    artifact.check_takes(samples.outputs, "the samples")
    probs = artifact.probs(samples.logits)
    predicted = probs.argmax(axis=1)
    acts = contract.acts(np.minimum(probs.max(axis=1), 1), predicted)
    shares = {
        one.name: float((acts & (predicted == one.predicted if one.predicted is not None else True)).mean())
        for one in contract.clauses
        if not one.segment
    }
    return {name: share for name, share in shares.items() if share}
