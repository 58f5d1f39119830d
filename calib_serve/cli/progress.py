"""How far long work is, on stderr: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress", "steps"]

_SECONDS = 5.0

_Show = Callable[[str, int, "int | None"], None]
"""Called with the name of the work, how much is done, and how much there is (None: not known yet)."""


@contextmanager
def progress(
    name: str, *, quiet: bool = False, seconds: float = _SECONDS
) -> Iterator[Callable[[int, int], None]]:
    """Yields a function to call with (done, total); ``seconds``: between two lines."""
    with _shown(name, None, quiet, seconds) as show:
        yield lambda done, total: show(name, done, total)


@contextmanager
def steps(total: int, *, quiet: bool = False, seconds: float = _SECONDS) -> Iterator[Callable[[str], None]]:
    """Yields a function to call with the name of each of ``total`` steps as it begins."""
    begun = 0
    with _shown("", total, quiet, seconds) as show:

        def begin(name: str) -> None:
            nonlocal begun
            show(name, begun, total)
            begun += 1

        yield begin


@contextmanager
def _shown(name: str, total: int | None, quiet: bool, seconds: float) -> Iterator[_Show]:
    if quiet or os.environ.get("RANK", "0") != "0":  # of the processes of torchrun the first one tells
        yield lambda name, done, total: None
    elif sys.stderr.isatty():
        with _bar(name, total) as show:
            yield show
    else:
        with _lines(name, total, seconds) as show:
            yield show


@contextmanager
def _bar(name: str, total: int | None) -> Iterator[_Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)


@contextmanager
def _lines(name: str, total: int | None, seconds: float) -> Iterator[_Show]:
    began, ended, stands = time.monotonic(), threading.Event(), (name, 0, total)

    def show(name: str, done: int, total: int | None) -> None:
        nonlocal stands
        stands = (name, done, total)

    def tell() -> None:
        while not ended.wait(seconds):
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
