"""How far long work is, on stderr: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress", "stages"]

_SECONDS = 5.0
_FIRST = 2.0  # seconds until the first line: nobody should wonder whether anything happens

_Show = Callable[[str, int, "int | None"], None]


@contextmanager
def progress(
    name: str, *, quiet: bool = False, seconds: float = _SECONDS
) -> Iterator[Callable[[int, int], None]]:
    """Yields a function to call with (done, total); ``seconds``: between two lines."""
    with stages(name, quiet=quiet, seconds=seconds) as show:
        yield lambda done, total: show(name, done, total)


@contextmanager
def stages(name: str = "starting", *, quiet: bool = False, seconds: float = _SECONDS) -> Iterator[_Show]:
    """Yields a function to call with (what is being done, how much is done, how much there is)."""
    if quiet or os.environ.get("RANK", "0") != "0":  # of the processes of torchrun the first one tells
        yield lambda name, done, total: None
    elif sys.stderr.isatty():
        with _bar(name) as show:
            yield show
    else:
        with _lines(name, seconds) as show:
            yield show


@contextmanager
def _bar(name: str) -> Iterator[_Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)


@contextmanager
def _lines(name: str, seconds: float) -> Iterator[_Show]:
    began, ended = time.monotonic(), threading.Event()
    stands: tuple[str, int, int | None] = (name, 0, None)

    def show(name: str, done: int, total: int | None) -> None:
        nonlocal stands
        stands = (name, done, total)

    def tell() -> None:
        wait = min(seconds, _FIRST)
        while not ended.wait(wait):
            wait = seconds
            name, done, total = stands
            share = "" if total is None else f"{done}/{total} done, "
            sys.stderr.write(f"{name}: {share}{time.monotonic() - began:.0f} s\n")
            sys.stderr.flush()

    # A thread, as one step may take minutes in which nobody calls.
    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield show
    finally:
        ended.set()
        teller.join()
