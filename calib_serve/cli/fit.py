"""``calib-serve fit``: calibration data in, an artifact out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calib_serve.cli import options, parse, pictures
from calib_serve.cli.fitted import as_told, next_commands, show_fit
from calib_serve.cli.from_archive import fitted_on_archive
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact
    from calib_serve.pictures import Preprocessing

__all__ = ["run"]

_AUTO, _OUTPUT = "Choosing by cross-validation (auto)", "Output methods"
_TABLE = "Logits in a database"
_CLAMPING, _MASKED, _MODEL = "Neural Clamping", "New heads", "The model"
_TAKES = {
    "--logits": {"labels", "outputs", "engine", "password_file", "columns", "class_names", "sample_weight"}
    | {"groups", "ignore_label"},
    "--model": {"data", "train_split", "weights", "input_shape", "last_linear", "device", "batch_size"}
    | {"mixed_precision", "checkpoints", "outputs"},
    "--from": {"data", "seam", "output", "outputs", "batch_size", "probe_timeout"},
}
"""What to fit on, and the options that go with it."""
_OF_FILE = ("outputs", "columns", "class_names", "sample_weight", "groups", "ignore_label")


def _option(name: str, help: str, panel: str, parser: Any = None, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, rich_help_panel=panel, parser=parser, metavar=metavar)


def run(
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder the artifact is written to.")],
    method: Annotated[
        str, typer.Option("--method", help="A method's name, or auto to choose by cross-validation.")
    ] = "auto",
    logits: Annotated[
        Path | None,
        typer.Option(
            "--logits",
            help="Scores and labels: npz, csv, jsonl, parquet, ...; a folder or pattern of parquet; or "
            "a table of --engine.",
        ),
    ] = None,
    labels: options.Labels = None,
    columns: options.Columns = None,
    class_names: options.ClassNames = None,
    sample_weight: options.SampleWeight = None,
    groups: options.Groups = None,
    ignore_label: options.IgnoreLabel = None,
    engine: Annotated[
        str | None,
        _option("--engine", "A database with the table of logits, such as postgres://user@host/db.", _TABLE),
    ] = None,
    password_file: Annotated[
        Path | None,
        _option("--password-file", "Its password; or set CALIB_SERVE_ENGINE_PASSWORD.", _TABLE),
    ] = None,
    model: options.Model = None,
    data: options.Data = None,
    source: options.Source = None,
    probe_timeout: options.ProbeTimeout = None,
    seam: options.Seam = None,
    output: options.Output = None,
    outputs: options.Outputs = None,
    split: options.Split = None,
    eval_split: Annotated[
        str | None,
        typer.Option("--eval-split", help="A split to measure before and after on; default: held-out folds."),
    ] = None,
    prior: Annotated[
        Any,
        typer.Option(
            "--prior",
            parser=parse.shares,
            metavar="SHARES",
            help="Class shares of what will be served: 0.7,0.3, or cat=0.7,dog=0.3, or a file of these.",
        ),
    ] = None,
    seed: options.Seed = 0,
    force: options.Force = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show candidates, certificates and all metrics.")
    ] = False,
    as_json: options.AsJson = False,
    candidates: Annotated[
        Any, _option("--candidates", "Methods to try.", _AUTO, parse.names, "NAMES")
    ] = None,
    keep_predictions: Annotated[
        bool | None,
        typer.Option(
            "--keep-predictions", help="None that may change a predicted class.", rich_help_panel=_AUTO
        ),
    ] = None,
    criterion: Annotated[
        Literal["nll", "brier", "ece"] | None, _option("--criterion", "What the best has least of.", _AUTO)
    ] = None,
    folds: Annotated[int | None, _option("--folds", "Folds to choose on.", _AUTO)] = None,
    tolerance: Annotated[
        float | None,
        _option("--tolerance", "How far accuracy and refinement may fall, as a fraction.", _AUTO),
    ] = None,
    level: Annotated[float | None, _option("--level", "The intervals' level.", _AUTO)] = None,
    ridge: Annotated[
        float | None, _option("--ridge", "Vector, matrix: pull to a temperature.", _OUTPUT)
    ] = None,
    lam: Annotated[float | None, _option("--lam", "ODIR: penalty off the diagonal.", _OUTPUT)] = None,
    mu: Annotated[float | None, _option("--mu", "ODIR: penalty of the bias.", _OUTPUT)] = None,
    strength: Annotated[
        float | None, _option("--strength", "Structured, tuned-head: the penalty.", _OUTPUT)
    ] = None,
    bins: Annotated[int | None, _option("--bins", "Histograms, temperature-ece: bins.", _OUTPUT)] = None,
    of: Annotated[
        Literal["top", "each"] | None, _option("--of", "Histograms: the top class, or each.", _OUTPUT)
    ] = None,
    smoothing: Annotated[
        float | None, _option("--smoothing", "Histograms: pretended samples a bin.", _OUTPUT)
    ] = None,
    grid: Annotated[
        Literal["fine", "medium", "coarse"] | None,
        _option("--grid", "temperature-ece and NC's efficient form: the grid of T.", _OUTPUT),
    ] = None,
    gamma: Annotated[
        Any,
        _option("--gamma", "Of the focal loss: candidates, or paper.", _CLAMPING, parse.gammas, "NUMBERS"),
    ] = None,
    penalty: Annotated[
        Any, _option("--penalty", "Of delta: tenth, or numbers.", _CLAMPING, parse.penalties, "NUMBERS")
    ] = None,
    resolution: Annotated[
        Any,
        _option("--resolution", "Of delta: auto, full, numbers.", _CLAMPING, parse.resolutions, "NUMBERS"),
    ] = None,
    judge: Annotated[
        Literal["folds", "calibration-ece"] | None, _option("--judge", "What chooses among these.", _CLAMPING)
    ] = None,
    start: Annotated[
        Literal["zero", "data", "random"] | None, _option("--start", "Where delta starts.", _CLAMPING)
    ] = None,
    norm_power: Annotated[
        int | None,
        typer.Option("--norm-power", min=1, max=2, help="Of delta's norm.", rich_help_panel=_CLAMPING),
    ] = None,
    normalisation: Annotated[
        Any,
        _option(
            "--normalisation",
            "Delta acts behind it: .485/.456/.406,.229/.224/.225",
            _CLAMPING,
            parse.channels,
            "MEAN,STD",
        ),
    ] = None,
    clip: Annotated[
        Any, _option("--clip", "Keep shifted inputs within.", _CLAMPING, parse.pair, "LOW,HIGH")
    ] = None,
    input_range: Annotated[
        Any, _option("--input-range", "What the inputs lie in.", _CLAMPING, parse.pair, "LOW,HIGH")
    ] = None,
    schedule: Annotated[
        Literal["ours", "paper", "toolkit"] | None,
        _option("--schedule", "Quasi-Newton, or SGD as printed or as the toolkit's.", _CLAMPING),
    ] = None,
    search: Annotated[
        Literal["ece", "nll"] | None, _option("--search", "Efficient form: what T is best for.", _CLAMPING)
    ] = None,
    train_split: Annotated[str | None, _option("--train-split", "The split to train on.", _MASKED)] = None,
    reading: Annotated[
        Literal["expected", "paper", "no-mask"] | None,
        _option("--reading", "Weights times q, as printed, or the same head without masks.", _MASKED),
    ] = None,
    held_share: Annotated[
        float | None, _option("--held-share", "Held out to steer q, without --train-split.", _MASKED)
    ] = None,
    then: Annotated[
        str | None, _option("--then", "Masked, tuned head: the output method fitted behind it.", _MASKED)
    ] = None,
    transforms: pictures.Transforms = None,
    mean: pictures.Mean = None,
    std: pictures.Std = None,
    image_size: pictures.ImageSize = None,
    resize_shorter: pictures.ResizeShorter = None,
    crop: pictures.Crop = None,
    interpolation: pictures.Interpolation = None,
    weights: options.Weights = None,
    input_shape: options.InputShape = None,
    last_linear: options.LastLinear = None,
    device: Annotated[
        str | None, _option("--device", "cpu, cuda, cuda:1; default: a GPU if any.", _MODEL)
    ] = None,
    batch_size: Annotated[int | None, _option("--batch-size", "Inputs at once.", _MODEL)] = None,
    mixed_precision: Annotated[
        bool | None, _option("--mixed-precision", "Logits and features in bfloat16.", _MODEL)
    ] = None,
    checkpoints: Annotated[
        Path | None, _option("--checkpoints", "A folder that a killed fit resumes from.", _MODEL)
    ] = None,
) -> None:
    """Fit a calibration, say what it changed, and write it as an artifact."""
    on = {"--logits": logits, "--model": model, "--from": source}
    what = [name for name, value in on.items() if value is not None]
    if len(what) != 1:
        raise InputError(
            "say what to fit on, one of: --logits FILE, --model MODEL with --data DATA, or --from ARCHIVE "
            "with --data DATA"
        )
    if out.exists() and not force:
        raise InputError(f"{out} exists; give --force to replace it, or another --out")
    of_method = _given(
        candidates=candidates, keep_predictions=keep_predictions, criterion=criterion, folds=folds,
        tolerance=tolerance, level=level, ridge=ridge, lam=lam, mu=mu, strength=strength, bins=bins, of=of,
        smoothing=smoothing, grid=grid, gamma=gamma, penalty=penalty, resolution=resolution, judge=judge,
        start=start, norm_power=norm_power, normalisation=normalisation, clip=clip, input_range=input_range,
        schedule=schedule, search=search, reading=reading, held_share=held_share, then=then,
    )  # fmt: skip
    of_source = _given(
        labels=labels, columns=columns, class_names=class_names, sample_weight=sample_weight, groups=groups,
        ignore_label=ignore_label, engine=engine, password_file=password_file, data=data,
        train_split=train_split, weights=weights, input_shape=input_shape, last_linear=last_linear,
        device=device, batch_size=batch_size, mixed_precision=mixed_precision, checkpoints=checkpoints,
        seam=seam, output=output, outputs=outputs, probe_timeout=probe_timeout,
    )  # fmt: skip
    prepared = pictures.preprocessing(
        transforms=transforms, mean=mean, std=std, image_size=image_size, resize_shorter=resize_shorter,
        crop=crop, interpolation=interpolation,
    )  # fmt: skip
    _refuse_others(what[0], of_source)
    if prepared is not None and model is None:
        raise InputError("--transforms, --mean and their like are for a fit on --model and pictures")
    how = {"method": method, "seed": seed, "quiet": as_json, "prior": prior, **of_method}
    if logits is not None:
        artifact = _on_scores(logits, split, eval_split, **how, **of_source)
    elif data is None:
        raise InputError(f"{what[0]} needs --data: the inputs to calibrate it on, and their labels")
    elif source is not None:
        artifact = fitted_on_archive(source, split, eval_split, **how, **of_source)
    else:
        artifact = _on_model(str(model), (split, eval_split), prepared, **how, **of_source)
    artifact.save(out)
    if as_json:
        typer.echo(as_told(artifact, out))
        return
    commands = next_commands(
        artifact, out, split=split, held=eval_split, logits=logits, model=model, weights=weights, data=data,
        outputs=outputs, engine=engine,
    )  # fmt: skip
    show_fit(artifact, out, commands, verbose=verbose)


def _refuse_others(what: str, given: dict[str, Any]) -> None:
    """An option that goes with something else to fit on must not pass in silence."""
    if extra := [name for name in given if name not in _TAKES[what]]:
        goes = [other for other, takes in _TAKES.items() if extra[0] in takes]
        named = ", ".join(f"--{name.replace('_', '-')}" for name in extra)
        raise InputError(f"{named}: for a fit on {' or '.join(goes)}, not on {what}")


def _given(**values: Any) -> dict[str, Any]:
    """What was given on the command line; the library's own defaults stand for the rest."""
    return {name: value for name, value in values.items() if value is not None}


def _on_scores(
    path: Path,
    split: str | None,
    eval_split: str | None,
    *,
    quiet: bool,
    labels: str | None = None,
    **given: Any,
) -> Artifact:
    from calib_serve.cli.progress import stages

    of_file = {name: given.pop(name) for name in (*_OF_FILE, "engine", "password_file") if name in given}

    # What reads and fits takes seconds to import, too.
    with stages(quiet=quiet) as progress:
        from calib_serve.scores import Scores
        from calib_serve.workflows.fit_scores import calibrate

        fitted = Scores.read(path, split=split, labels=labels, **of_file)
        # Read before the fit: a split that does not exist should not cost one.
        test = None
        if eval_split is not None:
            test = Scores.read(path, split=eval_split, expected=fitted.outputs, **of_file)
        return calibrate(fitted, test=test, progress=progress, **given)


def _on_model(
    model: str,
    splits: tuple[str | None, str | None],
    prepared: Preprocessing | None,
    *,
    quiet: bool,
    data: str,
    train_split: str | None = None,
    **how: Any,
) -> Artifact:
    from calib_serve.cli.progress import stages

    # What reads and fits takes seconds to import, too: torch above all.
    with stages(quiet=quiet) as progress:
        from calib_serve.model.load import model_data
        from calib_serve.workflows.fit_model import calibrate_model

        asked = [splits[0], *(split for split in (splits[1], train_split) if split is not None)]
        given, *others = read = model_data(model, data, asked, pictures=prepared)
        test = None if splits[1] is None else others[0]
        train = None if train_split is None else others[-1]
        artifact = calibrate_model(
            model,
            given.inputs,
            given.labels,
            class_names=given.class_names,
            pictures=given.pictures,
            test=None if test is None else (test.inputs, test.labels),
            train=None if train is None else (train.inputs, train.labels),
            progress=progress,
            **how,
        )
    _end_other_ranks()
    remarks = [*artifact.fit.get("remarks", ()), *(remark for part in read for remark in part.remarks)]
    return replace(artifact, fit={**artifact.fit, "remarks": remarks}) if remarks else artifact


def _end_other_ranks() -> None:
    """End every process but torchrun's first: all hold the same artifact, and one writes it."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    import torch.distributed as dist

    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank != 0:
        raise typer.Exit(0)
