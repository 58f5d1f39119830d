"""``calib-serve audit``: the monitor's numbers of logs that lie in files or a database."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calib_serve.cli import options, parse
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from calib_serve.audit import Audit, Measured

__all__ = ["run"]

_ENGINE = "Where and how"
_WHICH = "Which predictions"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_VERDICTS = 10


def moment(text: str) -> datetime:
    """A time with its zone, ISO 8601.

    >>> moment("2026-03-01T00:00:00Z").timestamp()
    1772323200.0
    """
    try:
        # Python 3.10 reads no Z.
        found = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError:
        raise typer.BadParameter(f"it is a time such as 2026-03-01T00:00:00Z, got {text!r}") from None
    if found.tzinfo is None:
        raise typer.BadParameter(f"it has no zone; write {found.isoformat()}Z if it is of UTC, got {text!r}")
    return found


def span(text: str) -> int:
    """A number of seconds, minutes, hours, days or weeks.

    >>> span("36h"), span("7d")
    (129600, 604800)
    """
    found = re.fullmatch(r"([1-9]\d{0,5})([smhdw])", text)
    if found is None:
        raise typer.BadParameter(f"it is a number and one of s, m, h, d and w, such as 1d, got {text!r}")
    return int(found[1]) * _SECONDS[found[2]]


def run(
    predictions: Annotated[
        str, typer.Argument(metavar="PREDICTIONS", help="Parquet: a file, folder or pattern; or a table.")
    ],
    *,
    labels: Annotated[str, typer.Option("--labels", metavar="LABELS", help="The same of the labels.")],
    on: Annotated[str, typer.Option("--on", metavar="COLUMN", help="The column of ids in both.")] = "id",
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME=COLUMN", help="What a column is called, confidence=score."),
    ] = None,
    by: Annotated[
        Any,
        typer.Option(
            "--by",
            parser=parse.names,
            metavar="COLUMNS",
            help="Group by these, commas between; default: model,version, if there.",
            rich_help_panel=_WHICH,
        ),
    ] = None,
    since: Annotated[
        Any,
        typer.Option(
            parser=moment, metavar="TIME", help="From this time on, with its zone.", rich_help_panel=_WHICH
        ),
    ] = None,
    until: Annotated[
        Any,
        typer.Option(parser=moment, metavar="TIME", help="Before this time.", rich_help_panel=_WHICH),
    ] = None,
    every: Annotated[
        Any,
        typer.Option(
            parser=span, metavar="SPAN", help="Windows of this length, such as 1d.", rich_help_panel=_WHICH
        ),
    ] = None,
    skip_invalid: Annotated[
        bool,
        typer.Option(
            "--skip-invalid",
            help="Count what cannot be measured and leave it out, not refuse the log.",
            rich_help_panel=_WHICH,
        ),
    ] = False,
    bins: Annotated[int, typer.Option("--bins", min=1, max=1000, help="How many confidence bins.")] = 15,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="AUROC and equal-mass ECE too, for which the engine sorts.")
    ] = False,
    tolerance: options.Tolerance = 0.02,
    missing: Annotated[
        Literal["chance", "unknown"],
        typer.Option("--missing", help="Why labels are missing: chance, or unknown, for what came of it."),
    ] = "chance",
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="ADDRESS",
            help="The database of the tables, such as postgres://user@host/logs.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file",
            help="File with its password; or set CALIB_SERVE_ENGINE_PASSWORD.",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    unique_ids: Annotated[
        bool,
        typer.Option(
            "--unique-ids", help="No id is repeated, so do not look: faster.", rich_help_panel=_ENGINE
        ),
    ] = False,
    memory: Annotated[
        str, typer.Option("--memory", help="What DuckDB may hold at once.", rich_help_panel=_ENGINE)
    ] = "1GB",
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="Threads of DuckDB.", rich_help_panel=_ENGINE),
    ] = None,
    temporary: Annotated[
        Path | None,
        typer.Option("--temporary", help="Where DuckDB puts the rest.", rich_help_panel=_ENGINE),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure the calibration of logged predictions where the logs lie, as the monitor measures live ones."""
    from calib_serve.audit import audit
    from calib_serve.cli.progress import stages

    with stages("audit", quiet=as_json) as progress:
        found = audit(
            predictions,
            labels,
            columns=_columns(on, column or []),
            by=by,
            since=since,
            until=until,
            every=every,
            bins=bins,
            ranks=ranks,
            unique_ids=unique_ids,
            skip_invalid=skip_invalid,
            tolerance=tolerance,
            missing=missing,
            engine=engine,
            password_file=password_file,
            memory=memory,
            threads=threads,
            temporary=temporary,
            progress=progress,
        )
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
    else:
        _show(found)


def _columns(on: str, given: list[str]) -> Any:
    from calib_serve.audit import Columns

    names = {"id": on}
    for one in given:
        name, is_named, column = one.partition("=")
        if not is_named or name not in vars(Columns()) or name in names:
            known = ", ".join(name for name in vars(Columns()) if name != "id")
            raise InputError(f"--column is NAME=COLUMN, once for each of {known} (ids: --on), got {one!r}")
        names[name] = column
    return Columns(**names)


def _show(found: Audit) -> None:
    from rich.console import Console

    from calib_serve.cli.evaluate import reliability_table
    from calib_serve.cli.verdict import show_verdict

    console = Console(markup=False)
    console.print(_table(found))
    if any(one.ranks is not None for one in found.measured):
        console.print(_ranks(found))
    console.print(reliability_table(found.total.bins))
    for sentence in found.says():
        console.print(f"- {sentence}", highlight=False)
    if len(found.measured) == 1:
        show_verdict(console, found.measured[0].verdict)
        return
    for one in found.measured[:_VERDICTS]:
        console.print(f"{_name(one)}:", highlight=False)
        show_verdict(console, one.verdict)
    if len(found.measured) > _VERDICTS:
        console.print(f"{len(found.measured) - _VERDICTS} more verdicts by --json", highlight=False)


def _table(found: Audit) -> Table:
    """A group and window a row, the whole below where there are several."""
    from rich.table import Table

    title = f"{found.predictions:,} predictions, {found.labels.counted:,} labels; shares in percent"
    table = Table(title=title)
    table.add_column("group")
    for word in ("n", "labels", "accuracy", "gap", "ECE", "of all, 95 %"):
        table.add_column(word, justify="right", no_wrap=True)
    for one in found.measured:
        table.add_row(_name(one), *_cells(one))
    if len(found.measured) > 1:
        table.add_row("all", *_cells(found.total))
    return table


def _cells(one: Measured) -> tuple[str, ...]:
    bins, ece = one.bins, one.estimates.debiased_ece
    return (
        f"{one.sums.predictions.sum():,.0f}",
        f"{one.sums.labels.sum():,.0f}",
        _percent(bins.accuracy()),
        _percent(bins.signed_gap(), sign="+"),
        _percent(bins.ece()),
        " to ".join(filter(None, (_percent(ece.low), _percent(ece.high)))),
    )


def _ranks(found: Audit) -> Table:
    from rich.table import Table

    table = Table(title="by the order of confidences")
    table.add_column("group")
    for word in ("AUROC", "equal-mass ECE"):
        table.add_column(word, justify="right", no_wrap=True)
    for one in found.measured:
        if one.ranks is not None:
            table.add_row(_name(one), _percent(one.ranks.auroc), _percent(one.ranks.adaptive_ece))
    return table


def _percent(value: float, *, sign: str = "") -> str:
    return f"{100 * value:{sign}.2f}" if math.isfinite(value) else ""


def _name(one: Measured) -> str:
    by = " ".join(value for value in one.by.values() if value)
    since = "" if one.since is None else f"{datetime.fromtimestamp(one.since, timezone.utc):%Y-%m-%d %H:%MZ}"
    return " ".join(part for part in (by, since) if part) or "all"
