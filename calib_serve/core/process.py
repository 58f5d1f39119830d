"""The process: objects that act around its forks, and the signals that stop it or let it read files again."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Not a WeakSet, whose iteration is in Python: a thread may add to it while another forks.
_LIVE: dict[int, weakref.ref[Any]] = {}


def around_forks(one: object) -> None:
    """Call the hooks ``before_fork``, ``after_in_parent`` and ``after_in_child`` that an object has.

    It is held weakly: hooks of ``os.register_at_fork`` stay as long as the process, so there is one for all.
    """
    key = id(one)
    _LIVE[key] = weakref.ref(one, lambda _: _LIVE.pop(key, None))


def _call(name: str) -> None:
    for held in list(_LIVE.values()):
        if (act := getattr(held(), name, None)) is not None:
            act()


if hasattr(os, "register_at_fork"):  # not on every platform
    os.register_at_fork(
        before=lambda: _call("before_fork"),
        after_in_parent=lambda: _call("after_in_parent"),
        after_in_child=lambda: _call("after_in_child"),
    )


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
