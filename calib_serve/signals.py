"""Stopping what runs until it is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["interruptible"]


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, SIGINT and SIGTERM raise KeyboardInterrupt, even where the command was started with ``&``.

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
