"""The locks of packages, read."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.utils import canonicalize_name

LOCKS = {path.stem: path.read_text() for path in (Path(__file__).parents[2] / "lock").glob("*.txt")}
"""The text of each file directly in lock/, by its name."""


def locked(text: str) -> list[tuple[str, str, list[str]]]:
    """Name, version and hashes of each requirement; whatever is no pin with hashes and no comment fails."""
    bare = re.sub(r"^\s*#.*\n?", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found = []
    for line in bare.splitlines():
        pin = re.fullmatch(
            r"([a-z0-9.-]+)==(\S+)(?: ; [^\\]+?)?((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", line
        )
        assert pin, line
        found.append((canonicalize_name(pin[1]), pin[2], pin[3].split()))
    return found
