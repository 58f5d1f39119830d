"""``calib-serve contract``: what an artifact's confidence promises; set and checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from calib_serve.app._command import Flat, Json, OfData, OfOutput, command, shown_example
from calib_serve.app._data import held_out
from calib_serve.app._show import console, print_json
from calib_serve.core.errors import InputError
from calib_serve.core.options.data import HeldData
from calib_serve.core.options.evaluate import ContractOptions

if TYPE_CHECKING:
    from calib_serve.monitor import ContractCheck

app = command(
    "contract",
    "calib-serve contract set artifact contract.yaml\n"
    "calib-serve contract check artifact scores.npz --split held",
)
Folder = Annotated[Path, Parameter(help="The artifact's folder.")]


@app.command(name="set", help_prologue=shown_example("calib-serve contract set artifact contract.yaml"))
def _put(artifact: Folder, contract: Annotated[Path, Parameter(help="The contract, a YAML file.")]) -> None:
    """Put a contract into an artifact, in place of an earlier one.

    Its probabilities stay as they are; its fingerprint changes, as the
    contract is part of it. Copy the folder first where the other is served.
    """
    from dataclasses import replace

    from calib_serve.artifact import Artifact
    from calib_serve.monitor import read_contract

    known = Artifact.load(artifact)
    promised = read_contract(contract, known)
    replace(known, contract=promised).save(artifact)  # it replaces itself, whole or not at all
    for sentence in promised.says(known.class_names):
        console().print(sentence)
    console().print(f"written to {artifact}")


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
    found = check_contract(
        promised,
        calibrated.probs[:],
        calibrated.labelled(),
        groups=calibrated.clusters,
        segments=None if options.segments is None else read_npy(Path(options.segments)),
        level=options.level,
    )
    if output.json:
        print_json(found.as_dict())
    else:
        _tell(found, known.class_names)
    return int(found.broken)


def _tell(found: "ContractCheck", class_names: tuple[str, ...]) -> None:
    out = console()
    colors = {"can be kept": "green", "cannot be kept": "red"}
    for one in found.clauses:
        first, *rest = one.says(class_names)
        out.print(first, style=f"bold {colors.get(one.found, 'yellow')}")
        for sentence in rest:
            out.print(f"  {sentence}")
