"""``calib-serve label``: send a file of labels; safe to repeat."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from calib_serve.cli.progress import progress

__all__ = ["run"]


def run(
    file: Annotated[
        Path, typer.Argument(help="CSV or Parquet with the columns receipt or id, label[, segment].")
    ],
    *,
    url: Annotated[
        str, typer.Option("--url", help="Where labels are taken.")
    ] = "http://127.0.0.1:9300/v1/labels",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the token; or set CALIB_SERVE_TOKEN.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, max=10_000, help="Labels a request.")] = 1000,
    tries: Annotated[int, typer.Option("--tries", min=1, help="Times to try a request.")] = 8,
    receipt: Annotated[str, typer.Option("--receipt-column", help="Column of receipts.")] = "receipt",
    label: Annotated[str, typer.Option("--label-column", help="Column of labels.")] = "label",
    by: Annotated[
        Literal["id", "name"] | None,
        typer.Option("--by", help="What labels are; by default names, else ids, and refused where both."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Send late labels in bulk, with retries.

    A label that was counted before is refused as a duplicate, so a run that broke off is simply
    repeated; one that was not asked for is not wanted. Exit code 1 when any was refused for another reason.
    """
    from calib_serve.watch.sender import read_token, send_label_file

    with progress("labels") as advance:
        sent = send_label_file(
            file,
            url,
            token=os.environ.get("CALIB_SERVE_TOKEN", "") if token_file is None else read_token(token_file),
            batch=batch,
            tries=tries,
            receipt_column=receipt,
            label_column=label,
            by=by,
            progress=advance,
        )
    if as_json:
        typer.echo(json.dumps({"accepted": sent.accepted, "refused": dict(sent.refused)}))
    else:
        refused = ", ".join(f"{count} {reason}" for reason, count in sent.refused.most_common())
        typer.echo(f"{sent.accepted} counted" + (f"; refused: {refused}" if refused else ""))
    if set(sent.refused) - {"duplicate", "not_wanted"}:
        raise typer.Exit(1)
