"""``calib-serve contract``: what an artifact's confidence promises; set, shown, checked and planned."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from calib_serve.app._command import Flat, Json, OfData, OfOutput, command, shown_example
from calib_serve.app._data import held_out, plain_scores
from calib_serve.app._show import console, print_json
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import check, check_default, fields_of
from calib_serve.core.options.data import HeldData, PlainData
from calib_serve.core.options.evaluate import ContractOptions, PlanOptions

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact, Contract
    from calib_serve.monitor import ContractCheck

app = command(
    "contract",
    "calib-serve contract set artifact contract.yaml\n"
    "calib-serve contract check artifact scores.npz --split held\n"
    "calib-serve contract plan artifact --breach 5 --within 7d",
)
Folder = Annotated[Path, Parameter(help="The artifact's folder.")]


@app.command(name="set", help_prologue=shown_example("calib-serve contract set artifact contract.yaml"))
def _put(artifact: Folder, contract: Annotated[Path, Parameter(help="The contract, a YAML file.")]) -> None:
    """Put a contract into an artifact, in place of an earlier one.

    Its probabilities stay as they are; its fingerprint changes, as the
    contract is part of it. Copy the folder first where the other is served.
    """
    from calib_serve.artifact import Artifact
    from calib_serve.monitor import read_contract

    known = Artifact.load(artifact)
    _write(known, read_contract(contract, known), artifact)


@app.command(help_prologue=shown_example("calib-serve contract remove artifact"))
def _remove(artifact: Folder) -> None:
    """Take the contract out of an artifact: what is served from then on promises nothing."""
    from calib_serve.artifact import Artifact

    known = Artifact.load(artifact)
    if known.contract is None:
        raise InputError(f"{artifact} has no contract")
    _write(known, None, artifact)


@app.command(help_prologue=shown_example("calib-serve contract show artifact"))
def _show(
    path: Annotated[Path, Parameter(help="An artifact's folder, or a calibrated archive.")],
) -> None:
    """Show the contract of an artifact: the YAML to change and set again, and what it says."""
    from calib_serve.torchserve import load_artifact

    artifact = load_artifact(path)
    if artifact.contract is not None:
        console().print(artifact.contract.text(artifact.class_names))
    _say(artifact)


@dataclass(frozen=True, kw_only=True)
class _Check(ContractOptions):
    """Options of ``calib-serve contract check``."""

    contract: Path | None = None
    """A contract that is not set yet, a YAML file; the artifact's if not given."""


@app.command(help_prologue=shown_example("calib-serve contract check artifact scores.npz --split held"))
def _check(
    artifact: Folder,
    data: Annotated[str, Parameter(help="Samples that the fit has not seen; with --model its inputs.")],
    *,
    options: Annotated[_Check, Flat] = _Check(),
    source: Annotated[HeldData, OfData] = HeldData(),
    output: Annotated[Json, OfOutput] = Json(),
) -> int:
    """Say of each clause whether it can be kept, by held-out samples; exit code 1 if not.

    Where the whole interval lies on one side of the promise, it can or
    cannot be kept; else there are not enough samples. For what is acted on,
    the smallest threshold is named that keeps the promise with a
    finite-sample guarantee, as a line for the contract.
    """
    from calib_serve.artifact import Artifact
    from calib_serve.fit import refuse_labels, refuse_seen
    from calib_serve.monitor import check_contract, read_contract
    from calib_serve.scores import read_npy

    known = Artifact.load(artifact)
    refuse_labels(known, None)
    promised = known.contract if options.contract is None else read_contract(options.contract, known)
    if promised is None:
        raise InputError(f"{artifact} has no contract: name one with --contract, or set it (contract set)")
    samples = held_out(known, data, source)
    refuse_seen(known, samples)
    if samples.weights is not None:
        # Their exact intervals count samples; weights left out in silence would promise too much.
        raise InputError("a contract is checked on samples of weight 1: rename the column of weights")
    calibrated = known.calibrated(samples)
    own = fields_of(ContractOptions, options)
    if options.segments is not None:
        own["segments"] = read_npy(Path(options.segments))
    found = check_contract(
        promised, calibrated.probs[:], calibrated.labelled(), groups=calibrated.clusters, **own
    )
    if output.json:
        print_json(found.as_dict())
    else:
        _tell(found, known.class_names)
    return int(found.broken)


@dataclass(frozen=True, kw_only=True)
class _Plan(PlanOptions):
    """Options of ``calib-serve contract plan``."""

    breach: float
    """Points below the promised accuracy that are to be noticed."""
    within: str
    """The time to notice it in, such as 7d or 12h."""
    acted_share: float | None = None
    """The share of predictions that is acted on, where it is known and DATA do not tell it."""


@app.command(help_prologue=shown_example("calib-serve contract plan artifact --breach 5 --within 7d"))
def _plan(
    path: Annotated[Path, Parameter(help="An artifact's folder, or a contract, a YAML file.")],
    data: Annotated[Path | None, Parameter(help="Scores that tell the share acted on.")] = None,
    *,
    options: Annotated[_Plan, Flat],
    source: Annotated[PlainData, OfData] = PlainData(),
) -> None:
    """Say how many labels a day it takes to notice that an act clause is broken, within a time.

    The numbers are of the test that the watch runs, by simulation. The watch
    looks at it at every moment, which takes more labels than a test that is
    looked at once; that number is shown as well.
    """
    from calib_serve.core.names import parse_duration
    from calib_serve.monitor import plan_contract

    artifact, contract = _promised(path)
    if data is not None and (artifact is None or options.acted_share is not None):
        raise InputError(
            "DATA tell the share that is acted on of an artifact: name its folder, without --acted-share"
        )
    if data is None:
        check_default(source, fields_of(PlainData, source), "is of DATA, and none is given")
    acted = {} if options.acted_share is None else _told(contract, options.acted_share)
    if artifact is not None and data is not None:
        acted = _measured(artifact, contract, data, source)
    found = plan_contract(
        contract,
        breach=options.breach / 100,
        within=parse_duration(options.within, what="--within"),
        acted=acted,
        **fields_of(PlanOptions, options),
    )
    for sentence in (sentence for one in found for sentence in one.says()):
        console().print(sentence)


def _write(artifact: "Artifact", contract: "Contract | None", folder: Path) -> None:
    """Write the artifact with this contract in its own place."""
    from dataclasses import replace

    found = replace(artifact, contract=contract)
    found.save(folder)  # it replaces itself, whole or not at all
    _say(found)
    console().print(f"written to {folder}")


def _say(artifact: "Artifact") -> None:
    contract = artifact.contract
    for sentence in ["no contract"] if contract is None else contract.says(artifact.class_names):
        console().print(sentence)


def _tell(found: "ContractCheck", class_names: tuple[str, ...]) -> None:
    out = console()
    colors = {"can be kept": "green", "cannot be kept": "red"}
    for one in found.clauses:
        first, *rest = one.says(class_names)
        out.print(first, style=f"bold {colors.get(one.found, 'yellow')}")
        for sentence in rest:
            out.print(f"  {sentence}")


def _promised(where: Path) -> "tuple[Artifact | None, Contract]":
    from calib_serve.artifact import Artifact
    from calib_serve.monitor import read_contract

    if where.is_file():
        return None, read_contract(where)
    artifact = Artifact.load(where)
    if artifact.contract is None:
        raise InputError(f"{where} has no contract: set it (contract set), or name a contract's file")
    return artifact, artifact.contract


def _told(contract: "Contract", share: float) -> dict[str, float]:
    """The given share for each act clause about all predictions, not about a segment or a class."""
    of_all = [one for one in contract.clauses if not one.segment and one.predicted is None]
    found = {one.name: share for one in of_all if one.kind == "act"}
    check(bool(found), "acted_share", "is of all predictions, and no act clause is about all of them")
    return found


def _measured(artifact: "Artifact", contract: "Contract", data: Path, source: PlainData) -> dict[str, float]:
    """Measure the share acted on by clause, except of segments, which a file of scores has not."""
    import numpy as np

    if artifact.model_steps:
        raise InputError(
            "this calibration changes the model itself, which its scores cannot show; give the share that "
            "is acted on with --acted-share"
        )
    probs = artifact.probs(plain_scores(data, source, artifact))
    predicted = probs.argmax(axis=1)
    # A sum of float32 shares may exceed 1 by rounding, and a limit compares.
    acts = contract.acts(np.minimum(probs.max(axis=1), 1), predicted)
    shares = {
        one.name: float((acts & (predicted == one.predicted if one.predicted is not None else True)).mean())
        for one in contract.clauses
        if one.kind == "act" and not one.segment
    }
    return {name: share for name, share in shares.items() if share}
