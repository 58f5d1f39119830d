"""``calib-serve prior``: the class shares of scores without labels, and the artifact corrected to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calib_serve.cli import options
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from calib_serve.fit.shares import PriorEstimate

__all__ = ["run"]

_ROWS = 50  # classes that the table shows, those that moved most


def run(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR|ARCHIVE", help="An artifact, or an archive with one.")
    ],
    *,
    logits: Annotated[
        Path,
        typer.Option("--logits", help="Logits or probs of traffic; labels are not needed, and not used."),
    ],
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="They are what the calibrated model returned.")
    ] = False,
    split: options.Split = None,
    outputs: options.Outputs = None,
    columns: options.Columns = None,
    class_names: options.ClassNames = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the corrected artifact, where that is right.")
    ] = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Estimate the class shares of traffic without labels; say whether they, and they alone, have moved."""
    from calib_serve.fuse.torchserve import load_artifact
    from calib_serve.fit.shares import estimate_prior, with_prior

    if out is not None and out.exists() and not force:
        raise InputError(f"{out} exists; give --force to replace it, or another --out")
    artifact = load_artifact(folder)
    found = options.read_scores(
        logits, split=split, outputs=outputs, columns=columns, class_names=class_names,
        expected="probabilities" if calibrated else artifact.model.outputs,
    )  # fmt: skip
    estimate = estimate_prior(artifact, found, calibrated=calibrated)
    if as_json:
        typer.echo(json.dumps({"artifact": str(folder), **estimate.as_dict()}))
    else:
        from rich.console import Console

        console = Console(highlight=False, markup=False)
        console.print(_table(estimate))
        console.print(estimate.says)
    if out is None:
        return
    with_prior(artifact, estimate).save(out)
    typer.echo(
        f"written to {out}; it has no reference for monitoring: fit with --prior to keep one", err=True
    )


def _table(estimate: PriorEstimate) -> Table:
    from rich.table import Table

    from calib_serve.words import percent

    counted, likely = estimate.counted, estimate.likely
    title = f"class shares of {likely.n:,} samples, 95 % intervals"
    table = Table("class", "calibration", "by counts", "by likelihood", title=title, title_justify="left")
    names = estimate.class_names or tuple(map(str, range(len(estimate.old))))
    moved = abs((likely if counted is None else counted).shares - estimate.old)
    shown = sorted(sorted(range(len(names)), key=lambda k: -moved[k])[:_ROWS])
    for k in shown:
        half = 1.96 * likely.error[k]
        table.add_row(
            names[k],
            percent(estimate.old[k]),
            "unknown" if counted is None else _interval(counted.shares[k], counted.low[k], counted.high[k]),
            _interval(likely.shares[k], max(likely.shares[k] - half, 0), min(likely.shares[k] + half, 1)),
        )
    if len(names) > len(shown):
        table.caption = f"and {len(names) - len(shown)} classes that moved less"
    return table


def _interval(value: float, low: float, high: float) -> str:
    from calib_serve.words import percent

    return f"{percent(value)} [{percent(low)}, {percent(high)}]"
