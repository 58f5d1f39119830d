"""``calib-serve study``: the experiments of the papers, on your own data."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib_serve.cli import options, parse
from calib_serve.cli.progress import progress
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.data import Dataset
    from calib_serve.study import Fit
    from calib_serve.study.result import Samples, Study

__all__ = ["group"]

_MODEL = "Methods that need the model"

Logits = Annotated[
    Path | None,
    typer.Option("--logits", help="Scores, and labels: npz, csv, parquet, ..."),
]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="The deployed model; once for each training.", rich_help_panel=_MODEL),
]
TrainSplit = Annotated[
    str | None,
    typer.Option("--train-split", help="The split that masked heads train on.", rich_help_panel=_MODEL),
]


def samples_and_fit(
    logits: Path | None,
    model: str | None,
    data: str | None,
    splits: Sequence[str],
    *,
    weights: Path | None,
    train_split: str | None,
    seed: int,
    outputs: Any = None,
) -> tuple[list[tuple[Any, Any]], Fit | None]:
    """The splits of a file of scores, with no fit of their own, or of the inputs of a model, with its fit."""
    if (logits is None) == (model is None):
        raise InputError("say what to study, one of: --logits FILE, or --model MODEL with --data DATA")
    if logits is None:
        found, fit = on_model(
            str(model), data, splits, weights=weights, train_split=train_split, seed=seed, plain=False
        )
        return [(part.inputs, part.labels) for part in found], fit
    extra = {"--data": data, "--weights": weights, "--train-split": train_split}
    if given := [name for name, value in extra.items() if value is not None]:
        raise InputError(f"{', '.join(given)}: for a study on --model, not on --logits")
    return [_read(logits, split, outputs) for split in splits], None


def on_model(
    model: str,
    data: str | None,
    splits: Sequence[str],
    *,
    weights: Path | None,
    train_split: str | None,
    seed: int,
    plain: bool,
) -> tuple[list[Dataset], Fit]:
    """Splits of a model's inputs, and every method on it; ``plain``: pictures in [0, 1], not normalised."""
    if data is None:
        raise InputError("--model needs --data: its inputs, and their labels")
    from calib_serve.model import load_model, weights_remarks
    from calib_serve.model.load import model_data
    from calib_serve.pictures import Preprocessing
    from calib_serve.fit.on_model import FitOnModel

    pictures = plain and Path(data, "labels.csv").is_file()
    how: Any = Preprocessing(mean=(0.0,), std=(1.0,)) if pictures else None
    asked = [*splits, *([] if train_split is None else [train_split])]
    parts = model_data(model, data, asked, pictures=how)
    options.tell([remark for part in parts for remark in part.remarks])
    train = None if train_split is None else parts.pop()
    classifier = load_model(model, weights=weights, input_shape=parts[0].inputs.shape[1:])
    options.tell(weights_remarks(model, weights))
    trained_on = None if train is None else (train.inputs, train.labels)
    return parts, FitOnModel(classifier, train=trained_on, seed=seed)


group = typer.Typer(help="Experiments on your own data: how much, how stable, how far.", no_args_is_help=True)

Out = Annotated[
    Path | None,
    typer.Option("-o", "--out", metavar="DIR", help="Write study.json, study.csv and study.svg here."),
]


def _list(option: str, parser: Any, help: str) -> Any:
    return typer.Option(option, parser=parser, metavar="LIST", help=f"{help}, commas between.")


@group.command("size")
def size(
    *,
    logits: Logits = None,
    outputs: options.Outputs = None,
    model: options.Model = None,
    data: options.Data = None,
    weights: options.Weights = None,
    train_split: TrainSplit = None,
    fit_split: options.FitSplit = "cal",
    test_split: options.TestSplit = "test",
    methods: options.Methods = "temperature",
    sizes: Annotated[Any, _list("--sizes", parse.whole, "Sample counts")] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Random parts of each size.")] = 10,
    metric: Annotated[str, typer.Option("--metric", help="ece or nll.")] = "ece",
    seed: options.Seed = 0,
    out: Out = None,
    as_json: options.AsJson = False,
) -> None:
    """How many labelled samples does a calibration need? (Wang 2021, fig. 3)."""
    from calib_serve.study import validation_size

    (cal, test), fit = samples_and_fit(
        logits,
        model,
        data,
        (fit_split, test_split),
        weights=weights,
        train_split=train_split,
        seed=seed,
        outputs=outputs,
    )
    with progress("sizes", quiet=as_json) as told:
        study = validation_size(
            cal,
            test,
            methods=methods,
            sizes=sizes or [],
            repeats=repeats,
            metric=metric,
            fit=fit,
            seed=seed,
            progress=told,
        )
    _show(study, out, as_json)


@group.command("optimum")
def optimum(
    logits: options.Logits,
    *,
    outputs: options.Outputs = None,
    fit_split: options.FitSplit = "cal",
    test_split: options.TestSplit = "test",
    bins: Annotated[int, typer.Option("--bins", min=1)] = 15,
    out: Out = None,
    as_json: options.AsJson = False,
) -> None:
    """How much better could any temperature do? (Wang 2021, section 5.1)."""
    from calib_serve.study import optimal_temperature

    cal, test = (_read(logits, split, outputs) for split in (fit_split, test_split))
    _show(optimal_temperature(cal, test, bins=bins), out, as_json)


@group.command("stability")
def stability(
    *,
    logits: Annotated[
        list[Path] | None, typer.Option("--logits", help="Logits and labels; once for each trained model.")
    ] = None,
    outputs: options.Outputs = None,
    model: Models = None,
    data: options.Data = None,
    train_split: TrainSplit = None,
    splits: Annotated[Any, _list("--splits", parse.names, "Splits to pool")] = "cal,test",
    methods: options.Methods = "none,temperature",
    folds: Annotated[int, typer.Option("--folds", min=2)] = 5,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Shuffles of each model's samples.")] = 1,
    metric: Annotated[str, typer.Option("--metric", help="What the best is chosen by.")] = "ece",
    seed: options.Seed = 0,
    out: Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Do the numbers hold over folds, seeds and trainings? Mean, standard deviation, Welch's test."""
    from calib_serve.study import stability as run_stability

    if logits and model:
        raise InputError("say what to study, one of: --logits FILE, or --model MODEL with --data DATA")
    parts = [
        samples_and_fit(
            path, name, data, splits, weights=None, train_split=train_split, seed=seed, outputs=outputs
        )
        for path, name in [(path, None) for path in logits or ()] + [(None, name) for name in model or ()]
    ]
    if not parts:
        raise InputError("say what to study, one of: --logits FILE, or --model MODEL with --data DATA")
    fits = [fit for _, fit in parts if fit is not None]
    with progress("stability", quiet=as_json) as told:
        study = run_stability(
            [_pooled(found) for found, _ in parts],
            fit=fits or None,
            methods=methods,
            folds=folds,
            repeats=repeats,
            metric=metric,
            seed=seed,
            progress=told,
        )
    _show(study, out, as_json)


@group.command("bins")
def bins(
    *,
    logits: Logits = None,
    outputs: options.Outputs = None,
    model: options.Model = None,
    data: options.Data = None,
    weights: options.Weights = None,
    train_split: TrainSplit = None,
    fit_split: options.FitSplit = "cal",
    test_split: options.TestSplit = "test",
    methods: options.Methods = "none,temperature",
    counts: Annotated[Any, _list("--counts", parse.whole, "Bin counts")] = "10,15,20",
    seed: options.Seed = 0,
    out: Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Does the ranking of methods depend on the bins? (Neural Clamping, appendix D)."""
    from calib_serve.study import bin_effect

    (cal, test), fit = samples_and_fit(
        logits,
        model,
        data,
        (fit_split, test_split),
        weights=weights,
        train_split=train_split,
        seed=seed,
        outputs=outputs,
    )
    study = bin_effect(cal, test, methods=methods, counts=counts, fit=fit, seed=seed)
    _show(study, out, as_json)


@group.command("ablation")
def ablation(
    *,
    logits: Logits = None,
    outputs: options.Outputs = None,
    model: options.Model = None,
    data: options.Data = None,
    weights: options.Weights = None,
    train_split: TrainSplit = None,
    fit_split: options.FitSplit = "cal",
    test_split: options.TestSplit = "test",
    methods: options.Methods = "structured-average",
    seed: options.Seed = 0,
    out: Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Which part of a calibration does what: shift, head and temperature, each alone and together."""
    from calib_serve.study import ablation as run_ablation

    (cal, test), fit = samples_and_fit(
        logits,
        model,
        data,
        (fit_split, test_split),
        weights=weights,
        train_split=train_split,
        seed=seed,
        outputs=outputs,
    )
    with progress("ablation", quiet=as_json) as told:
        study = run_ablation(cal, test, methods=methods, fit=fit, seed=seed, progress=told)
    _show(study, out, as_json)


@group.command("shift")
def shift(
    *,
    model: Annotated[str, typer.Option("--model", help="The deployed model.")],
    weights: options.Weights = None,
    data: Annotated[str, typer.Option("--data", help="Images and labels; uint8, or floats in [0, 1].")],
    train_split: TrainSplit = None,
    fit_split: options.FitSplit = "cal",
    test_split: options.TestSplit = "test",
    methods: options.Methods = "none,temperature",
    corruptions: Annotated[
        Any, _list("--corruptions", parse.names, "Of jpeg, noise, blur, brightness")
    ] = "jpeg,noise,blur,brightness",
    severities: Annotated[Any, _list("--severities", parse.whole, "1 (slight) to 5 (heavy)")] = "1,3,5",
    seed: options.Seed = 0,
    out: Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Which calibrations keep up when images are corrupted? (Singh 2021, section 5)."""
    from calib_serve.study import shift as run_shift

    # Pictures are corrupted in [0, 1].
    (cal, test), fit = on_model(
        model, data, (fit_split, test_split), weights=weights, train_split=train_split, seed=seed, plain=True
    )
    with progress("shift", quiet=as_json) as told:
        study = run_shift(
            fit,
            (cal.inputs, cal.labels),
            (test.inputs, test.labels),
            methods=methods,
            corruptions=corruptions,
            severities=severities,
            seed=seed,
            progress=told,
        )
    _show(study, out, as_json)


def _read(path: Path, split: str, outputs: Any) -> tuple[Any, Any]:
    found = options.read_scores(path, split=split or None, outputs=outputs)
    return found.logits, found.labelled()


def _pooled(parts: list[tuple[Any, Any]]) -> Samples:
    import numpy as np

    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _show(study: Study, out: Path | None, as_json: bool) -> None:
    written = study.save(out) if out else []
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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
