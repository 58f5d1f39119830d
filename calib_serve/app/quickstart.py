"""``calib-serve quickstart``: a folder with a small project that runs as it stands."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from calib_serve.app._command import Flat, Replacing, command
from calib_serve.app._show import console, note

app = command(
    "quickstart",
    "calib-serve quickstart my-project\ncalib-serve quickstart my-project --kind triton",
    details="The project calibrates, serves and watches a model; put your model and data into it.",
)


@dataclass(frozen=True, kw_only=True)
class _Options(Replacing):
    """Options of ``calib-serve quickstart``."""

    kind: Literal["fastapi", "torchserve", "triton"] = "fastapi"
    """What serves the model."""


@app.default
def _quickstart(
    folder: Annotated[Path, Parameter(help="Where to write; made if it is missing.")],
    *,
    options: Annotated[_Options, Flat] = _Options(),
) -> None:
    """Write a small project."""
    from calib_serve.app.host_checks import installed, missing
    from calib_serve.app.projects import KINDS, first_commands, write_project

    # Said first, and not refused: a project may be written on another host than it runs on.
    extras, packages = KINDS[options.kind].extras, installed()
    if lacks := sorted({name for extra in extras for name in missing(extra, packages)}):
        note(
            [f"to run it, {', '.join(lacks)} are missing here: pip install 'calib-serve[{','.join(extras)}]'"]
        )
    written = write_project(folder, options.kind, force=options.force)
    console().print(f"written to {folder}: {', '.join(written) or 'nothing'}")
    console().print("next, as README.md there says:")
    for line in (f"cd {shlex.quote(str(folder))}", *first_commands(options.kind)):
        console().print(f"  {line}")
