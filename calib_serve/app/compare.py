"""``calib-serve compare``: fit several methods on one split, measure them all on another."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib_serve.cli import options
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from calib_serve.fit.compare import Compared

__all__ = ["run"]

_SHOWN = {
    "accuracy": "acc",
    "nll": "nll",
    "brier": "brier",
    "ece": "ece",
    "adaptive_ece": "aece",
    "classwise_ece": "cwece",
    "refinement_auroc": "auroc",
}
_LARGEST_IS_BEST = ("accuracy", "refinement_auroc")


def run(
    *,
    logits: options.Logits,
    labels: options.Labels = None,
    outputs: options.Outputs = None,
    columns: options.Columns = None,
    class_names: options.ClassNames = None,
    sample_weight: options.SampleWeight = None,
    groups: options.Groups = None,
    ignore_label: options.IgnoreLabel = None,
    methods: options.Methods = "all",
    fit_split: options.FitSplit = "cal",
    test_split: options.TestSplit = "test",
    replicates: Annotated[
        int, typer.Option("--replicates", min=0, help="Bootstrap resamples for --csv and --json; 0: none.")
    ] = 200,
    seed: options.Seed = 0,
    csv_out: Annotated[Path | None, typer.Option("--csv", help="Write the table here as well.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Fit methods on one split and show what each does to another that no fit has seen.

    A method that cannot be fitted is listed with the reason. Exit code 1 if none could.
    """
    from calib_serve.cli.progress import stages
    from calib_serve.fit.compare import compare

    how: dict[str, Any] = {
        "labels": labels, "columns": columns, "class_names": class_names, "sample_weight": sample_weight,
        "groups": groups, "ignore_label": ignore_label,
    }  # fmt: skip
    fit = options.read_scores(logits, split=fit_split, outputs=outputs, **how)
    test = options.read_scores(logits, split=test_split, outputs=outputs or fit.outputs, **how)
    with stages(quiet=as_json) as progress:
        rows = compare(
            fit,
            test,
            "all" if methods == ["all"] else methods,
            # The table shows no intervals, and they are most of the work.
            replicates=replicates if as_json or csv_out else 0,
            seed=seed,
            progress=progress,
        )
    if csv_out is not None:
        _write_csv(csv_out, rows)
    if as_json:
        told = [row.as_dict() for row in rows]
        typer.echo(json.dumps({"fit_split": fit_split, "test_split": test_split, "methods": told}))
    else:
        from rich.console import Console

        console = Console(highlight=False)
        title = f"fitted on {fit_split}, measured on {test_split}; percent, nll in nats; moved: other class"
        console.print(_table(rows, title))
        for row in rows:
            if row.error:
                console.print(f"{row.method}: {row.error}", markup=False)
    if not any(row.metrics for row in rows):
        raise typer.Exit(1)


def _shown(rows: Sequence[Compared]) -> dict[str, str]:
    """The metrics that there are, and their headings; of P(y = 1) and P(label) in place of each class's."""
    measured = next((row.metrics.estimates() for row in rows if row.metrics), dict.fromkeys(_SHOWN))
    if "positive_ece" not in measured:
        return _SHOWN
    shown = {**_SHOWN, "positive_ece": "ece P", "positive_brier": "brier P"}
    del shown["positive_brier" if "brier" in measured else "brier"], shown["classwise_ece"]
    return {name: words for name, words in shown.items() if name in measured}


def _table(rows: Sequence[Compared], title: str) -> Table:
    from rich.table import Table

    found = [(row, row.metrics.estimates()) for row in rows if row.metrics]
    shown = _shown(rows)
    table = Table("method", *shown.values(), "moved", "s", title=title, title_justify="left")
    table.columns[0].no_wrap = True
    best = {
        name: (max if name in _LARGEST_IS_BEST else min)((e[name].value for _, e in found), default=0)
        for name in shown
    }
    for row, estimates in found:
        cells = [(name, estimates[name].value) for name in shown]
        texts = [f"{v:.4f}" if name == "nll" else f"{100 * v:.2f}" for name, v in cells]
        marked = [f"[bold]{t}" if v == best[name] else t for t, (name, v) in zip(texts, cells, strict=True)]
        moved = "" if math.isnan(row.moved) else f"{100 * row.moved:.2f}"
        table.add_row(row.method, *marked, moved, f"{row.seconds:.2f}")
    return table


def _write_csv(path: Path, rows: Sequence[Compared]) -> None:
    shown = _shown(rows)
    names = [f"{name}{end}" for name in shown for end in ("", "_low", "_high")]
    try:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["method", *names, "moved", "seconds", "error"])
            writer.writeheader()
            for row in rows:
                cells: dict[str, Any] = {"method": row.method, "error": row.error}
                for name, estimate in (row.metrics.as_dict() if row.metrics else {}).items():
                    if name in shown:
                        cells |= {name: estimate["value"]}
                        cells |= {f"{name}_{end}": estimate[end] for end in ("low", "high")}
                told = {"moved": row.moved, "seconds": row.seconds} if row.metrics else {}
                writer.writerow(cells | told)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error}") from error
