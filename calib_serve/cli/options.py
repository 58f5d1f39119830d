"""Options that several commands have: one name and one meaning over all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calib_serve.cli import parse

__all__ = ["AsJson", "Data", "FitSplit", "Force", "InputShape", "Labels", "LastLinear", "Logits", "Methods"]
__all__ += ["Model", "Replicates", "Seed", "Split", "TestSplit", "Weights"]

Logits = Annotated[
    Path, typer.Option("--logits", help="Logits or probs, and labels: npz, npy, csv, parquet or safetensors.")
]
Labels = Annotated[Path | None, typer.Option("--labels", help="Labels in an npy file of their own.")]
Split = Annotated[str | None, typer.Option("--split", help="Which split of the file, such as cal or test.")]
FitSplit = Annotated[str, typer.Option("--fit-split", help="The split to fit on.")]
TestSplit = Annotated[str, typer.Option("--test-split", help="The split to measure on.")]
Model = Annotated[
    str | None, typer.Option("--model", help="The deployed model: a file, or module:factory with --weights.")
]
Data = Annotated[str | None, typer.Option("--data", help="Inputs and labels for --model.")]
Weights = Annotated[
    Path | None, typer.Option("--weights", help="The weights of a model that is a factory, module:factory.")
]
InputShape = Annotated[
    Any,  # typer takes what the parser returns only where it does not know the type
    typer.Option(
        "--input-shape",
        parser=parse.whole,
        metavar="SHAPE",
        help="One input's shape, such as 3,224,224; by default the data's.",
    ),
]
LastLinear = Annotated[
    str | None, typer.Option("--last-linear", help="The layer that makes the logits, if not found.")
]
Methods = Annotated[
    Any, typer.Option("--methods", parser=parse.names, metavar="NAMES", help="Names, commas between.")
]
Replicates = Annotated[
    int, typer.Option("--replicates", min=0, help="Bootstrap resamples; 0 for no such intervals.")
]
Seed = Annotated[int, typer.Option("--seed", help="The seed of everything that is drawn.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an artifact that is there.")]
