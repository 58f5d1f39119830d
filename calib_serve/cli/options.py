"""Options that several commands have: one name and one meaning over all of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calib_serve.cli import parse

if TYPE_CHECKING:
    from calib_serve.scores import Scores

__all__ = ["AsJson", "Data", "FitSplit", "Force", "InputShape", "Labels", "LastLinear", "Logits", "Methods"]
__all__ += [
    "ClassNames",
    "ClassTolerance",
    "Columns",
    "Groups",
    "IgnoreLabel",
    "Kind",
    "Model",
    "Output",
    "Outputs",
    "Replicates",
    "RequestsAtOnce",
    "SampleWeight",
    "Seam",
    "Seed",
    "Source",
    "Split",
    "TestSplit",
    "Tolerance",
    "Weights",
    "read_scores",
    "tell",
]

_ARCHIVE = "An archive that is served already"

Logits = Annotated[
    Path,
    typer.Option("--logits", help="Scores, and labels: npz, npy, csv, jsonl, parquet, safetensors, ..."),
]
Labels = Annotated[
    str | None, typer.Option("--labels", help="The labels: a column or array of the file, or an npy file.")
]
Split = Annotated[str | None, typer.Option("--split", help="Which split of the file, such as cal or test.")]
FitSplit = Annotated[str, typer.Option("--fit-split", help="The split to fit on.")]
TestSplit = Annotated[str, typer.Option("--test-split", help="The split to measure on.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="The deployed model: a file, a folder of Hugging Face's, or module:factory with --weights.",
    ),
]
Data = Annotated[str | None, typer.Option("--data", help="Inputs and labels for --model or --from.")]
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
Source = Annotated[
    Path | None,
    typer.Option("--from", metavar="ARCHIVE", help="Its own handler is asked.", rich_help_panel=_ARCHIVE),
]
ProbeTimeout = Annotated[
    float | None,
    typer.Option(
        "--probe-timeout",
        min=0.1,
        help="Seconds that its handler may take to answer, by default 60.",
        rich_help_panel=_ARCHIVE,
    ),
]
Seam = Annotated[
    str | None,
    typer.Option(
        help="Where the class scores pass in its handler, such as model; default: as found.",
        rich_help_panel=_ARCHIVE,
    ),
]
Output = Annotated[
    str | None,
    typer.Option(help="Where they lie in what passes there, such as logits or 0.", rich_help_panel=_ARCHIVE),
]
Kind = Literal[
    "logits", "log_probs", "probabilities", "logit", "probability", "label_logits", "label_probabilities"
]
"""As ``calib_serve.scores.Outputs``, which would bring numpy."""
Outputs = Annotated[
    Kind | None, typer.Option(help="What the scores are, where neither their name nor their numbers say.")
]
_SCORES = "The file of scores"

Columns = Annotated[
    Any,
    typer.Option(
        "--columns",
        parser=parse.names,
        metavar="NAMES",
        help="The columns of the classes, names or patterns such as p_*; others are left out.",
        rich_help_panel=_SCORES,
    ),
]
ClassNames = Annotated[
    Any,
    typer.Option(
        "--class-names",
        parser=parse.names,
        metavar="NAMES",
        help="What the classes are called, in order, where the file does not say.",
        rich_help_panel=_SCORES,
    ),
]
Groups = Annotated[
    str | None,
    typer.Option(
        "--groups",
        help="Which samples belong together, such as one patient's: a column, or an npy file.",
        rich_help_panel=_SCORES,
    ),
]
SampleWeight = Annotated[
    str | None,
    typer.Option(
        "--sample-weight",
        help="The weight of each sample: a column, or an npy file.",
        rich_help_panel=_SCORES,
    ),
]
IgnoreLabel = Annotated[
    Any,
    typer.Option(
        "--ignore-label",
        parser=parse.names,
        metavar="LABELS",
        help="Labels that stand for none, such as 255 or NA: their samples are left out.",
        rich_help_panel=_SCORES,
    ),
]
RequestsAtOnce = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, help="Requests at once.", rich_help_panel=_ARCHIVE),
]
Methods = Annotated[
    Any, typer.Option("--methods", parser=parse.names, metavar="NAMES", help="Names, commas between.")
]
Replicates = Annotated[
    int, typer.Option("--replicates", min=0, help="Resamples and draws; 0 for no such intervals.")
]
Tolerance = Annotated[
    float, typer.Option("--tolerance", help="The mean gap that users can live with, as a fraction.")
]
ClassTolerance = Annotated[
    float | None,
    typer.Option("--class-tolerance", help="That of a class or label alone; 1.5 times as much if not given."),
]
Seed = Annotated[int, typer.Option("--seed", help="The seed of everything that is drawn.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an artifact that is there.")]


def read_scores(path: Path, **how: Any) -> Scores:
    """The scores of a file, as ``Scores.read`` takes them; what was guessed is told on stderr."""
    from calib_serve.scores import Scores

    how["labels"] = None if how.get("labels") is None else str(how["labels"])
    found = Scores.read(path, **{name: value for name, value in how.items() if value is not None})
    tell(found.remarks)
    return found


def tell(remarks: Iterable[str]) -> None:
    """What to know of the data, on stderr."""
    for remark in remarks:
        typer.echo(f"calib-serve: {remark}", err=True)
