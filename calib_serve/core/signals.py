"""Signals: stop a running program, and tell it to read its files again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["interruptible", "on_hangup"]


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt inside, even where a shell started it with ``&``.

    A shell starts what runs in the background, as nohup does, with SIGINT ignored. Outside of the main
    thread, which no signal reaches, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def on_hangup(act: Callable[[], object]) -> Callable[[], None]:
    """Let SIGHUP call ``act`` from now on, instead of ending the process; return a function that undoes it.

    ``act`` runs between two instructions of the main thread: it should only set what is looked at later.
    Outside of the main thread, and where the system has no such signal, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
        return lambda: None
    before = signal.signal(signal.SIGHUP, lambda _number, _frame: act())

    def undo() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL if before is None else before)

    return undo
