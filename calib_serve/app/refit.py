"""``calib-serve refit``: from served traffic to its next calibration, the next version, or new shares."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from calib_serve.app._command import (
    Flat,
    OfOutput,
    Output,
    command,
    refuse_existing,
    subcommand,
)
from calib_serve.app._data import plain_scores
from calib_serve.app._progress import stages
from calib_serve.app._show import console, note, said
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import Checked, check_default
from calib_serve.core.options.data import PlainData
from calib_serve.core.options.fit import ServedRefitOptions

if TYPE_CHECKING:
    from rich.table import Table

    from calib_serve.fit import PriorEstimate
    from calib_serve.torchserve import Host

app = command(
    "refit",
    "calib-serve refit model_store/digits.mar --samples samples -o artifact-2 --new-version 1.1\n"
    "calib-serve refit promote model_store/digits-1.1.mar\n"
    "calib-serve refit prior artifact traffic.npz -o corrected",
    details="SERVED is what is served now, an archive or an artifact. Its model, input shift and head stay, "
    "and so do all options of an archive. Ask as often as you like: exit code 1 and nothing written while "
    "there is not enough evidence that a new calibration is better.",
)


@dataclass(frozen=True, kw_only=True)
class _Written(Output):
    """Options of the output: the new artifact's place."""

    new_version: str = ""
    """Pack the archive again, beside it, as this version."""


@dataclass(frozen=True, kw_only=True)
class _Options(ServedRefitOptions):
    """Options of ``calib-serve refit``."""

    samples: Path
    """The folder of sampled logits and labels."""


@app.default
def _refit(
    served: Path, *, options: Annotated[_Options, Flat], output: Annotated[_Written, OfOutput]
) -> int | None:
    """Fit again on recent labelled samples, and keep the result only where there is evidence for it."""
    from calib_serve.torchserve import is_archive, recalibrated, refit_served

    if output.new_version and not is_archive(served):
        raise InputError(f"--new-version packs an archive again; give the .mar that is served, not {served}")
    refuse_existing(output.out)
    with stages() as progress:
        found = refit_served(served, options.samples, options, progress=progress)
    said(found.says())
    if found.artifact is None:
        return 1
    found.artifact.save(output.out)
    said(f"written to {output.out}")
    if output.new_version:
        packed = recalibrated(served, found.artifact, served.parent, version=output.new_version)
        said(f"packed {packed}; register it and make it the default")
    return None


@dataclass(frozen=True, kw_only=True)
class _Promotion(Checked):
    """Options of ``calib-serve refit promote``."""

    folder: Path = Path("serving")
    """Where the server runs: its config.properties and tokens."""
    unproven: bool = False
    """Promote whatever labels say."""
    back: str = ""
    """Go back to the version of this model before its last promotion."""

    def _check(self) -> None:
        if self.back:
            check_default(self, ["unproven"], "is not for --back, which asks no labels")


@subcommand(app)
def _promote(
    archive: Path | None = None, *, options: Annotated[_Promotion, Flat] = _Promotion()
) -> int | None:
    """Serve the next version of a model, without a lost request or label.

    ARCHIVE is the new version, which ran in the shadow of the served one. Exit code 0: done, and --back
    undoes it. 1: refused, as labels do not say that it is better, or not yet. 2 or 3: it could not be done;
    what was served is still served.
    """
    from calib_serve.torchserve import Host, swap

    if (archive is not None) == bool(options.back):
        raise InputError("give the archive of the new version, or --back MODEL")
    host = Host.of(options.folder)
    # Two promotions at a time would each keep the other's version as the one before.
    with host.lock():
        if archive is None:
            archive = host.store / host.before(options.back).archive_before
        elif not (options.unproven or _is_better(host, archive)):
            return 1
        model, version, before = swap(host, archive)
    said(f"{model} {version} is served, {before} before")
    return None


def _is_better(host: "Host", archive: Path) -> bool:
    """Show what labels say of the archive; whether they say that it is better, or it is served already."""
    from calib_serve.ledger import Ledger
    from calib_serve.torchserve import evidence_of, same_model, served_artifact

    artifact, model, version = served_artifact(archive)
    running = host.default(model)
    if running.version == version:
        return True
    if not same_model(archive, host.store / running.archive):
        raise InputError(
            f"{archive} holds another model file than {running.archive}, in whose shadow only its "
            "calibration ran: labels say nothing of it; look at it yourself, then give --unproven"
        )
    with contextlib.closing(Ledger(host.ledger, must_exist=True)) as book:
        enough, says = evidence_of(book, (model, running.version), artifact.fingerprint)
    said(says)
    return enough


@dataclass(frozen=True, kw_only=True)
class _Traffic(PlainData):
    """Options of ``calib-serve refit prior``."""

    calibrated: bool = False
    """DATA are what the calibrated model returned."""


@dataclass(frozen=True, kw_only=True)
class _Corrected:
    """Options of the output: the corrected artifact's place."""

    out: Annotated[Path | None, Parameter(name=("-o", "--out"))] = None
    """Write the corrected artifact here, where that is right."""


@subcommand(app)
def _prior(
    artifact: Path,
    data: str,
    *,
    options: Annotated[_Traffic, Flat] = _Traffic(),
    output: Annotated[_Corrected, OfOutput] = _Corrected(),
) -> None:
    """Estimate the class shares of traffic without labels; say whether they, and they alone, have moved.

    ARTIFACT is one, or an archive with one; DATA are scores of traffic, whose labels are not needed nor used.
    """
    from calib_serve.fit import estimate_prior, with_prior
    from calib_serve.torchserve import load_artifact

    if output.out is not None:
        refuse_existing(output.out)
    current = load_artifact(artifact)
    traffic = plain_scores(data, options, current, calibrated=options.calibrated)
    estimate = estimate_prior(current, traffic, calibrated=options.calibrated)
    console().print(_table(estimate))
    console().print(estimate.says)
    if output.out is None:
        return
    with_prior(current, estimate).save(output.out)
    note([f"written to {output.out}; it has no reference for monitoring: fit with --prior to keep one"])


def _table(estimate: "PriorEstimate") -> "Table":
    from rich.table import Table

    from calib_serve.core.text import percent

    counted = estimate.counted
    title = f"class shares of {estimate.n:,} samples, 95 % intervals"
    table = Table("class", "calibration", "now", title=title, title_justify="left")
    names = estimate.class_names or tuple(map(str, range(len(estimate.old))))
    moved = abs((estimate.old if counted is None else counted.shares) - estimate.old)
    shown = sorted(sorted(range(len(names)), key=lambda k: -moved[k])[:50])
    for k in shown:
        table.add_row(
            names[k],
            percent(estimate.old[k]),
            "unknown" if counted is None else _interval(counted.shares[k], counted.low[k], counted.high[k]),
        )
    if len(names) > len(shown):
        table.caption = f"and {len(names) - len(shown)} classes that moved less"
    return table


def _interval(value: float, low: float, high: float) -> str:
    from calib_serve.core.text import percent

    return f"{percent(value)} [{percent(low)}, {percent(high)}]"
