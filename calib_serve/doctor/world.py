"""The host that is looked at, as one value: tests give another one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.utils import canonicalize_name

__all__ = ["World"]


@dataclass(frozen=True)
class World:
    """``packages``: the folders that Python imports from; ``root``: below which ``proc`` and ``dev`` lie.

    ``user``: the effective user's number, None where the system has none.
    """

    environment: Mapping[str, str]
    packages: tuple[str, ...]
    python: tuple[int, ...]
    executable: str
    user: int | None
    root: Path = Path("/")

    @classmethod
    def here(cls) -> World:
        """The running process and its host."""
        return cls(
            environment=dict(os.environ),
            packages=tuple(sys.path),
            python=tuple(sys.version_info[:3]),
            executable=sys.executable,
            user=os.geteuid() if hasattr(os, "geteuid") else None,
        )

    @cached_property
    def installed(self) -> dict[str, Distribution]:
        """Each package by its canonical name; of two in different folders the one that is imported."""
        found: dict[str, Distribution] = {}
        for one in distributions(path=list(self.packages)):
            name = one.metadata["Name"] if one.metadata is not None else None
            if name:  # a folder of metadata that is left of a broken installation has none
                found.setdefault(canonicalize_name(name), one)
        return found

    def text(self, name: str) -> str | None:
        """What the file ``name`` below the root says, such as "proc/self/mountinfo"; None where it is not."""
        try:
            return (self.root / name).read_text("utf-8", "replace")
        except OSError:
            return None
