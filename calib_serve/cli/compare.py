"""``calib-serve compare``: fit several methods on one split, measure them all on another."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from calib_serve.errors import CalibServeError, InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.table import Table

    from calib_serve.data.logits_file import LogitsFile

__all__ = ["run"]

_METRICS = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "refinement_auroc")
_HEADS = ("acc", "nll", "brier", "ece", "aece", "cwece", "auroc", "s")


def run(
    *,
    logits: Annotated[Path, typer.Option("--logits", help="npz, csv, parquet or safetensors.")],
    methods: Annotated[
        str, typer.Option("--methods", help="Names with commas between, auto among them, or all.")
    ] = "all",
    fit_split: Annotated[str, typer.Option("--fit-split", help="The split to fit on.")] = "cal",
    test_split: Annotated[str, typer.Option("--test-split", help="The split to measure on.")] = "test",
    replicates: Annotated[
        int, typer.Option("--replicates", min=0, help="Bootstrap resamples; 0 for no such intervals.")
    ] = 200,
    seed: Annotated[int, typer.Option("--seed", help="The seed of everything that is drawn.")] = 0,
    csv_out: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads the annotation at run time, also on 3.10
        typer.Option("--csv", help="Write the table here as well."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Fit methods on one split and show what each does to another that no fit has seen.

    A method that cannot be fitted is listed with the reason. Exit code 1 if none could.
    """
    from calib_serve.data.logits_file import read_logits
    from calib_serve.fit.output import CANDIDATES, options_of

    names = list(CANDIDATES) if methods == "all" else [name.strip() for name in methods.split(",")]
    for name in names:
        if name != "auto":
            options_of(name)
    fitted, tested = (_labelled(read_logits(logits, split=split), split) for split in (fit_split, test_split))
    rows = _rows(names, fitted, tested, replicates=replicates, seed=seed, quiet=as_json)
    if csv_out is not None:
        _write_csv(csv_out, rows)
    if as_json:
        typer.echo(json.dumps({"fit_split": fit_split, "test_split": test_split, "methods": rows}))
    else:
        from rich.console import Console

        console = Console()
        console.print(_table(rows, f"fitted on {fit_split}, measured on {test_split}"))
        for row in rows:
            if "error" in row:
                console.print(f"{row['method']}: {row['error']}", highlight=False, markup=False)
    if not any("metrics" in row for row in rows):
        raise typer.Exit(1)


def _labelled(found: LogitsFile, split: str) -> tuple[NDArray[Any], NDArray[Any]]:
    from calib_serve.metrics import two_columns

    if found.labels is None:
        raise InputError(f"the split {split} has no labels")
    return two_columns(found.logits), found.labels


def _rows(
    names: list[str],
    fitted: tuple[NDArray[Any], NDArray[Any]],
    tested: tuple[NDArray[Any], NDArray[Any]],
    *,
    replicates: int,
    seed: int,
    quiet: bool,
) -> list[dict[str, Any]]:
    import time

    from calib_serve.cli.progress import steps
    from calib_serve.fit.output import fit_by_name, select
    from calib_serve.metrics import evaluate

    rows: list[dict[str, Any]] = []
    test_logits, test_labels = tested
    with steps(len(names), quiet=quiet) as advance:
        for name in names:
            advance(name)
            start = time.perf_counter()
            try:
                if name == "auto":
                    artifact = select(*fitted, seed=seed)
                else:
                    artifact = fit_by_name(name, *fitted, seed=seed)
            except CalibServeError as error:
                rows.append({"method": name, "error": str(error)})
                continue
            seconds = time.perf_counter() - start
            found = evaluate(artifact.probs(test_logits), test_labels, replicates=replicates, seed=seed)
            shown = f"auto: {artifact.method}" if name == "auto" else name
            rows.append({"method": shown, "seconds": seconds, "metrics": found.as_dict()})
    return rows


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    from rich.table import Table

    table = Table("method", *_HEADS, title=title, title_justify="left")
    table.columns[0].no_wrap = True
    best = {
        name: (max if name in ("accuracy", "refinement_auroc") else min)(
            (row["metrics"][name]["value"] for row in rows if "metrics" in row), default=None
        )
        for name in _METRICS
    }
    for row in rows:
        if "error" in row:
            continue
        values = {name: row["metrics"][name]["value"] for name in _METRICS}
        cells = [f"[bold]{v:.4f}" if v == best[name] else f"{v:.4f}" for name, v in values.items()]
        table.add_row(row["method"], *cells, f"{row['seconds']:.2f}")
    return table


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    names = [f"{name}{end}" for name in _METRICS for end in ("", "_low", "_high")]
    try:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["method", *names, "seconds", "error"])
            writer.writeheader()
            for row in rows:
                found = {name: row["metrics"][name] for name in _METRICS} if "metrics" in row else {}
                cells: dict[str, Any] = {name: estimate["value"] for name, estimate in found.items()}
                for end in ("low", "high"):
                    cells.update({f"{name}_{end}": estimate.get(end) for name, estimate in found.items()})
                cells.update({key: row[key] for key in ("method", "seconds", "error") if key in row})
                writer.writerow(cells)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error}") from error
