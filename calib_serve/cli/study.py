"""``calib-serve study``: the experiments of the papers, on your own data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from calib_serve.cli.progress import progress
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.study.result import Samples, Study

__all__ = ["group"]

group = typer.Typer(help="Experiments on your own data: how much, how stable, how far.", no_args_is_help=True)

LogitsFile = Annotated[
    Path, typer.Option("--logits", help="Logits and labels: npz, npy, csv, parquet or safetensors.")
]
FitSplit = Annotated[str, typer.Option("--fit-split", help="The split to fit on.")]
TestSplit = Annotated[str, typer.Option("--test-split", help="The split to test on.")]
Methods = Annotated[str, typer.Option("--methods", help="Methods by name, with commas.")]
Seed = Annotated[int, typer.Option("--seed", help="The seed of everything that is drawn.")]
Out = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads the annotation at run time, also on 3.10
    typer.Option("-o", "--out", metavar="DIR", help="Write study.json, study.csv and study.svg here."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the study as JSON.")]


@group.command("size")
def size(
    logits: LogitsFile,
    *,
    fit_split: FitSplit = "cal",
    test_split: TestSplit = "test",
    methods: Methods = "temperature",
    sizes: Annotated[str, typer.Option("--sizes", help="Sample counts, with commas.")] = "",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Random parts of each size.")] = 10,
    metric: Annotated[str, typer.Option("--metric", help="ece or nll.")] = "ece",
    seed: Seed = 0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """How many labelled samples does a calibration need? (Wang 2021, fig. 3)."""
    from calib_serve.study import validation_size

    with progress("sizes", quiet=as_json) as told:
        study = validation_size(
            _read(logits, fit_split),
            _read(logits, test_split),
            methods=_names(methods),
            sizes=_numbers(sizes),
            repeats=repeats,
            metric=metric,
            seed=seed,
            progress=told,
        )
    _show(study, out, as_json)


@group.command("optimum")
def optimum(
    logits: LogitsFile,
    *,
    fit_split: FitSplit = "cal",
    test_split: TestSplit = "test",
    bins: Annotated[int, typer.Option("--bins", min=1)] = 15,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """How much better could any temperature do? (Wang 2021, section 5.1)."""
    from calib_serve.study import optimal_temperature

    _show(optimal_temperature(_read(logits, fit_split), _read(logits, test_split), bins=bins), out, as_json)


@group.command("stability")
def stability(
    logits: Annotated[
        list[Path], typer.Option("--logits", help="Logits and labels; once for each trained model.")
    ],
    *,
    splits: Annotated[str, typer.Option("--splits", help="Splits to pool, with commas.")] = "cal,test",
    methods: Methods = "none,temperature",
    folds: Annotated[int, typer.Option("--folds", min=2)] = 5,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Shuffles of each model's samples.")] = 1,
    metric: Annotated[str, typer.Option("--metric", help="What the best is chosen by.")] = "ece",
    seed: Seed = 0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Do the numbers hold over folds, seeds and trainings? Mean, standard deviation, Welch's test."""
    from calib_serve.study import stability as run_stability

    with progress("stability", quiet=as_json) as told:
        study = run_stability(
            [_pool(path, _names(splits)) for path in logits],
            methods=_names(methods),
            folds=folds,
            repeats=repeats,
            metric=metric,
            seed=seed,
            progress=told,
        )
    _show(study, out, as_json)


@group.command("bins")
def bins(
    logits: LogitsFile,
    *,
    fit_split: FitSplit = "cal",
    test_split: TestSplit = "test",
    methods: Methods = "none,temperature",
    counts: Annotated[str, typer.Option("--counts", help="Bin counts, with commas.")] = "10,15,20",
    seed: Seed = 0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Does the ranking of methods depend on the bins? (Neural Clamping, appendix E)."""
    from calib_serve.study import bin_effect

    study = bin_effect(
        _read(logits, fit_split),
        _read(logits, test_split),
        methods=_names(methods),
        counts=_numbers(counts),
        seed=seed,
    )
    _show(study, out, as_json)


@group.command("shift")
def shift(
    *,
    model: Annotated[str, typer.Option("--model", help="The deployed model.")],
    weights: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--weights", help="The weights of a model that is a factory, module:factory."),
    ] = None,
    data: Annotated[str, typer.Option("--data", help="Images and labels; uint8, or floats in [0, 1].")],
    fit_split: FitSplit = "cal",
    test_split: TestSplit = "test",
    methods: Methods = "none,temperature",
    corruptions: Annotated[
        str, typer.Option("--corruptions", help="Of jpeg, noise, blur, brightness.")
    ] = "jpeg,noise,blur,brightness",
    severities: Annotated[str, typer.Option("--severities", help="1 (slight) to 5 (heavy).")] = "1,3,5",
    seed: Seed = 0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Which calibrations keep up when images are corrupted? (Singh 2021, section 5)."""
    from calib_serve.data import load_data
    from calib_serve.model import load_model
    from calib_serve.study import shift as run_shift

    cal, test = (load_data(data, split=split) for split in (fit_split, test_split))
    classifier = load_model(model, weights=weights, input_shape=cal.inputs.shape[1:])
    with progress("shift", quiet=as_json) as told:
        study = run_shift(
            classifier.logits,
            (cal.inputs, cal.labels),
            (test.inputs, test.labels),
            methods=_names(methods),
            corruptions=_names(corruptions),
            severities=_numbers(severities),
            seed=seed,
            progress=told,
        )
    _show(study, out, as_json)


def _read(path: Path, split: str) -> Samples:
    from calib_serve.data import read_labelled

    found = read_labelled(path, split=split or None)
    return found.logits, found.labels


def _pool(path: Path, splits: list[str]) -> Samples:
    import numpy as np

    parts = [_read(path, split) for split in splits]
    return np.concatenate([z for z, _ in parts]), np.concatenate([y for _, y in parts])


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"name one or more, with commas between, got {text!r}")
    return names


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",") if number.strip()]
    except ValueError as error:
        raise InputError(f"give whole numbers with commas between, got {text!r}") from error


def _show(study: Study, out: Path | None, as_json: bool) -> None:
    written = _write(study, out) if out else []
    if as_json:
        typer.echo(json.dumps(study.as_dict(), allow_nan=False))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title=study.title, title_justify="left")
    for i, name in enumerate(study.header):
        table.add_column(name, justify="right" if any(_is_number(row[i]) for row in study.rows) else "left")
    for row in study.rows:
        table.add_row(*map(_cell, row))
    console.print(table)
    for sentence in study.says:
        console.print(f"- {escape(sentence)}")
    if written:
        console.print(f"written to {escape(', '.join(map(str, written)))}", soft_wrap=True)


def _write(study: Study, folder: Path) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "study.json").write_text(json.dumps(study.as_dict(), indent=1, allow_nan=False) + "\n")
        (folder / "study.csv").write_text(study.as_csv())
        written = [folder / "study.json", folder / "study.csv"]
        if study.curves:
            from calib_serve.report.curves import draw_curves

            figure = draw_curves(
                study.curves,
                title=study.title,
                x_label=study.x_label,
                y_label=study.y_label,
                log_x=study.log_x,
            )
            figure.savefig(folder / "study.svg", metadata={"Date": None})
            written.append(folder / "study.svg")
    except OSError as error:
        raise InputError(f"cannot write the study to {folder}: {error}; choose another folder") from error
    return written


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
