"""``calib-serve schema``: what the scores of a file are, written down once for every other command."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from calib_serve.app._command import OfData, OfOutput, Replacing, command, refuse_existing
from calib_serve.app._show import console
from calib_serve.core.errors import InputError
from calib_serve.core.options.data import SplitData

app = command(
    "schema",
    "calib-serve schema scores.csv --outputs percent -o scores.yaml\n"
    "calib-serve evaluate scores.csv --schema scores.yaml",
    details="DATA are scores. What is said of them here, and what their names say, goes into a file that "
    "--schema of other commands takes. Data that are not as it says are refused.",
)


@dataclass(frozen=True, kw_only=True)
class _Written(Replacing):
    """Options of the output: the schema's place."""

    out: Annotated[Path, Parameter(name=("-o", "--out"))]
    """The YAML file to write."""


@app.default
def _schema(
    data: str,
    *,
    source: Annotated[SplitData, OfData] = SplitData(),
    output: Annotated[_Written, OfOutput],
) -> None:
    """Read scores, say what was read, and write it down."""
    from calib_serve.scores import OF_ANSWERS, Scores

    if not output.force:
        refuse_existing(output.out, unless="give --force to replace it")
    found = Scores.read(data, split=source.split, **source.of_file)
    schema = found.schema
    if (source.outputs or "").startswith(OF_ANSWERS):  # whose words name the classes
        beside = ("outputs", "labels", "groups", "sample_weight")
        named = {name: getattr(source, name) for name in beside}
        schema = replace(schema, class_names=(), **named)
    try:
        schema.save(output.out)
    except OSError as error:
        raise InputError(f"cannot write {output.out}: {error}") from error
    for sentence in (found.reading, f"written to {output.out}"):
        console().print(sentence)
