"""What ``calib-serve fit`` ends with: the verdict, what changed, and the commands that come next."""

from __future__ import annotations

import json
import shlex
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact

__all__ = ["as_told", "next_commands", "show_fit"]

_LABELS = ("labels", "y")
_FUSED = {".onnx": "onnx", ".pt2": "torch"}  # TorchScript and weights share .pt


def as_told(artifact: Artifact, out: Path) -> str:
    """All of it as JSON."""
    from calib_serve.cli.inspect import facts
    from calib_serve.fit.measure import verdict

    told = {"artifact": str(out), "verdict": verdict(artifact).as_dict(), **facts(artifact)}
    return json.dumps(told)


def show_fit(artifact: Artifact, out: Path, then: Sequence[str], *, verbose: bool) -> None:
    """What it brings and the verdict first, where it was written, and the commands that come next.

    ``verbose``: every fact, candidate and metric as well.
    """
    from rich.console import Console

    from calib_serve.cli.inspect import tables
    from calib_serve.cli.verdict import show_verdict
    from calib_serve.fit.measure import verdict

    console = Console(highlight=False, markup=False)
    found = verdict(artifact)
    show_verdict(console, found, every=verbose)
    for remark in (*(() if verbose else found.reasons), *artifact.fit.get("remarks", ())):
        console.print(f"note: {remark}", soft_wrap=True)
    if verbose:
        for table in tables(artifact):
            console.print(table)
    console.print(f"{_fitted(artifact)}; written to {out}", soft_wrap=True)
    for i, command in enumerate(then):
        console.print(f"{'      ' if i else 'next: '}{command}", soft_wrap=True)


def next_commands(
    artifact: Artifact,
    out: Path,
    *,
    split: str | None,
    held: str | None,
    logits: Path | None = None,
    model: str | Path | None = None,
    weights: Path | None = None,
    data: str | None = None,
    outputs: str | None = None,
    engine: str | None = None,
) -> list[str]:
    """What can be run as it stands after a fit on ``split``: a report, a fused model, all facts.

    A report is of samples that nothing was fitted to: the split ``held``, or another one of the file.
    """
    found = []
    source = logits or data
    held = held or (None if source is None else _other_split(Path(source), split))
    if held is not None and engine is None and (logits is not None or model is not None):
        of = ["--logits", logits] if logits else ["--model", model, *_option("--weights", weights)]
        of += [*([] if logits else ["--data", data]), "--split", held, *_option("--outputs", outputs)]
        found.append(_line("report", *of, "--artifact", out, "-o", f"{out.name}.html"))
    ending = "" if model is None else Path(model).suffix
    if ending in _FUSED and artifact.steps:
        found.append(_line("fuse", _FUSED[ending], model, out, "-o", f"calibrated{ending}"))
    return [*found, _line("inspect", out)]


def _fitted(artifact: Artifact) -> str:
    """The method, and on what it was fitted."""
    samples = artifact.data.get("samples")
    on = artifact.data.get("measured_on", "")
    measured = f", measured on {on}" if artifact.after else ""
    return f"{artifact.method} fitted" + (f" on {samples:,} samples" if samples else "") + measured


def _option(name: str, value: object) -> list[object]:
    return [] if value is None else [name, value]


def _line(*words: object) -> str:
    return shlex.join(["calib-serve", *map(str, words)])


def _other_split(path: Path, split: str | None) -> str | None:
    """Of an npz file's splits the one that is called test, or the only one beside ``split``."""
    if split is None or not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
    ends = tuple(f"_{name}" for name in _LABELS)
    others = sorted({name.rpartition("_")[0] for name in names if name.endswith(ends)} - {split, "train"})
    if "test" in others:
        return "test"
    return others[0] if len(others) == 1 else None
