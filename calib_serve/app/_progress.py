"""Progress of a command, on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_FIRST = 2.0  # seconds: what is over before needs no progress
_Show = Callable[[str, int, "int | None"], None]


@contextmanager
def stages(name: str = "starting", *, quiet: bool = False) -> Iterator[_Show]:
    """Yield a callback of progress, (name, done, total), which shows it on stderr."""
    if quiet:
        yield lambda name, done, total: None
        return
    stands: tuple[str, int, int | None] = (name, 0, None)
    over = threading.Event()

    def show(name: str, done: int, total: int | None) -> None:
        nonlocal stands
        stands = (name, done, total)

    # A thread, as one step may take minutes in which nobody calls.
    follow = _bar if sys.stderr.isatty() else _log_lines
    shower = threading.Thread(target=lambda: follow(lambda: stands, over), name="progress", daemon=True)
    shower.start()
    try:
        yield show
    finally:
        over.set()
        shower.join()


def _log_lines(stands: Callable[[], tuple[str, int, int | None]], over: threading.Event) -> None:
    began, wait = time.monotonic(), _FIRST
    while not over.wait(wait):
        wait = 5.0
        name, done, total = stands()
        share = "" if total is None else f"{done}/{total} done, "
        sys.stderr.write(f"{name}: {share}{time.monotonic() - began:.0f} s\n")
        sys.stderr.flush()


def _bar(stands: Callable[[], tuple[str, int, int | None]], over: threading.Event) -> None:
    if over.wait(_FIRST):
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: Any = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        name, *_ = stands()
        task = bar.add_task(name, total=None)
        while not over.wait(0.1):
            now, done, total = stands()
            if now != name:  # another part of the work has a pace of its own
                name = now
                bar.reset(task, description=name, total=total)
            bar.update(task, completed=done, total=total)
