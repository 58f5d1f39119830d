"""``calib-serve audit``: the monitor's numbers from logs in files or a database."""

import math
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

from calib_serve.app._command import Flat, Json, OfOutput, command, named_columns
from calib_serve.app._progress import stages
from calib_serve.app._show import console, print_json, show_verdict
from calib_serve.core.options.audit import AuditOptions

if TYPE_CHECKING:
    from rich.table import Table

    from calib_serve.integrations.audit.expressions import Columns
    from calib_serve.integrations.audit.measuring import Audit, Measured

app = command(
    "audit",
    "calib-serve audit predictions.parquet --labels labels.parquet\n"
    "calib-serve audit serving.predictions --labels serving.labels --engine postgres://auditor@db/logs",
    details="PREDICTIONS are Parquet, a file, a folder or a pattern; or with --engine a table. They are "
    "measured where they lie, as the monitor measures live ones.",
)


@dataclass(frozen=True, kw_only=True)
class _Options(AuditOptions):
    """Options of ``calib-serve audit``."""

    labels: str
    """The labels: Parquet, or a table, as the predictions are."""
    column: list[str] = field(default_factory=list)
    """What a column is called where it is not by its own name, NAME=COLUMN: confidence=score."""


@app.default
def _audit(
    predictions: str,
    *,
    options: Annotated[_Options, Flat],
    output: Annotated[Json, OfOutput] = Json(),
) -> None:
    """Measure the calibration of logged predictions."""
    from calib_serve.integrations.audit.measuring import audit

    columns = _columns(options.column)
    with stages("audit", quiet=output.json) as progress:
        found = audit(predictions, options.labels, options, columns=columns, progress=progress)
    if output.json:
        print_json(found.as_dict())
    else:
        _show(found)


def _columns(given: list[str]) -> "Columns":
    from calib_serve.integrations.audit.expressions import Columns

    return Columns(**named_columns(given, tuple(vars(Columns()))))


def _show(found: "Audit") -> None:
    from calib_serve.app.evaluate import PREDICTIONS, reliability_table

    out = console()
    out.print(found.reading)
    out.print(_table(found))
    event = found.read.event
    of = PREDICTIONS if event is None else ("reliability", f"P({event})", f"the share of {event}")
    out.print(reliability_table(found.total.bins, of=of))
    for sentence in found.says():
        out.print(f"- {sentence}")
    if len(found.measured) == 1:
        show_verdict(out, found.measured[0].verdict)
        return
    shown = found.measured[:10]  # an audit by day and model has hundreds
    for one in shown:
        out.print(f"{_name(one)}:")
        show_verdict(out, one.verdict)
    if left := len(found.measured) - len(shown):
        out.print(f"{left} more verdicts by --json")


def _table(found: "Audit") -> "Table":
    """Make a table with a row for each group and window, and the total below where there are several."""
    from rich.table import Table

    title = f"{found.predictions:,} predictions, {found.labels.counted:,} labels; shares in percent"
    table = Table(title=title)
    table.add_column("group")
    rate = f"share of {found.read.event}" if found.read.event is not None else "accuracy"
    for word in ("n", "labels", rate, "gap", "ECE", "of all, 95 %"):
        table.add_column(word, justify="right", no_wrap=True)
    for one in found.measured:
        table.add_row(_name(one), *_cells(one))
    if len(found.measured) > 1:
        table.add_row("all", *_cells(found.total))
    return table


def _cells(one: "Measured") -> tuple[str, ...]:
    bins, ece = one.bins, one.estimates.debiased_ece
    return (
        f"{one.sums.predictions.sum():,.0f}",
        f"{one.sums.labels.sum():,.0f}",
        _percent(bins.accuracy()),
        _percent(bins.signed_gap(), sign="+"),
        _percent(bins.ece()),
        " to ".join(filter(None, (_percent(ece.low), _percent(ece.high)))),
    )


def _percent(value: float, *, sign: str = "") -> str:
    return f"{100 * value:{sign}.2f}" if math.isfinite(value) else ""


def _name(one: "Measured") -> str:
    by = " ".join(value for value in one.by.values() if value)
    since = "" if one.since is None else f"{datetime.fromtimestamp(one.since, timezone.utc):%Y-%m-%d %H:%MZ}"
    return " ".join(part for part in (by, since) if part) or "all"
