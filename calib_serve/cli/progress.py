"""A progress bar on stderr, so that what a command prints stays clean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["steps"]


@contextmanager
def steps(total: int, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Gives a function to call with the name of each of ``total`` steps as it begins."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as progress:
        task = progress.add_task("", total=total)
        begun = 0

        def advance(name: str) -> None:
            nonlocal begun
            progress.update(task, description=name, completed=begun)
            begun += 1

        yield advance
