"""Forks: objects that must act around them, for as long as they live."""

from __future__ import annotations

import os
import weakref
from typing import Any

__all__ = ["around_forks"]

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
