"""What a study is made on: logits in a file, or a model with its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib_serve.cli import options
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.data import Dataset
    from calib_serve.study import Fit
    from calib_serve.study.result import Samples

__all__ = ["Logits", "Models", "TrainSplit", "on_model", "samples_and_fit"]

_MODEL = "Methods that need the model"

Logits = Annotated[
    Path | None,
    typer.Option("--logits", help="Logits or probs, and labels: npz, npy, csv, parquet or safetensors."),
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
) -> tuple[list[Samples], Fit | None]:
    """The splits of a file of logits, with no fit of their own, or of the inputs of a model, with its fit."""
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
    from calib_serve.data import read_labelled

    read = [read_labelled(logits, split=split or None) for split in splits]
    return [(part.logits, part.labels) for part in read], None


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
    from calib_serve.workflows.on_model import FitOnModel

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
