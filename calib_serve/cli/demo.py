"""``calib-serve demo``: the whole way on scikit-learn's digits, from a classifier to a dashboard query."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["run"]

_WIDTH = 116  # columns that the demo's table needs; a pipe claims 80


def run(
    *,
    out: Annotated[Path, typer.Option("--out", help="Where everything is written.")] = Path("demo-out"),
    model_store: Annotated[
        Path, typer.Option("--model-store", help="Where the archives are written.")
    ] = Path("model_store"),
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server up, and say how to try it.")] = False,
    seed: Annotated[int, typer.Option(help="The seed of everything that is drawn.")] = 0,
) -> None:
    """Show the whole way on real data: fit, fuse, serve, label, watch, report."""
    from rich.console import Console

    from calib_serve.demo.story import Story, tell
    from calib_serve.signals import interruptible

    console = Console(highlight=False)
    console = Console(highlight=False, width=max(console.width, _WIDTH))
    try:
        with interruptible():
            tell(Story(console, out), model_store, keep=keep, seed=seed)
    except KeyboardInterrupt:
        console.print("\nstopped, and with it all that was started")
        raise typer.Exit(130) from None
