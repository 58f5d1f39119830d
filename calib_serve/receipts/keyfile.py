"""The file of a keyring: JSON that its owner alone may use.

{"format": 1, "active": ID, "keys": {ID: base64},
"times": {ID: {"added": 1.7e9, "promoted": ..., "demoted": ...}}}
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calib_serve.errors import KeyringError, of_a_newer
from calib_serve.files import read_private, write_whole

__all__ = ["read_keyring_file", "write_keyring_file"]

_FORMAT = 1
_TIMES = ("added", "promoted", "demoted")
_LATEST = 253_402_300_800.0  # the year 10000, beyond which no calendar goes

Times = Mapping[str, Mapping[str, "float | None"]]


def read_keyring_file(path: Path) -> tuple[str, dict[str, bytes], Times]:
    """The active key's id, the keys and their times; KeyringError where it is no keyring or not private."""
    try:
        text = read_private(path).decode()
    except FileNotFoundError as error:
        raise KeyringError(
            f"cannot read the keyring {path}: {error}; make one with: calib-serve keys new {path}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise KeyringError(f"cannot read the keyring {path}: {error}") from error
    try:
        content = json.loads(text)
        kept = content["format"]
        if isinstance(kept, int) and kept > _FORMAT:
            raise KeyringError(f"{path} is a keyring {of_a_newer(kept, reads=_FORMAT)}")
        keys = {str(k): base64.b64decode(v, validate=True) for k, v in content["keys"].items()}
        active = str(content["active"])
        times = {str(k): _times(known) for k, known in content.get("times", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise KeyringError(
            f'{path} is not a keyring; expected {{"format": {_FORMAT}, "active": ID, "keys": {{ID: base64}}}}'
        ) from error
    if kept != _FORMAT:
        raise KeyringError(f"{path} is a keyring of format {kept!r}; this program reads {_FORMAT}")
    return active, keys, times


def _times(known: Mapping[str, Any]) -> dict[str, float | None]:
    found = {name: None if known.get(name) is None else float(known[name]) for name in _TIMES}
    if not all(0 <= time < _LATEST for time in found.values() if time is not None):
        raise ValueError("a time is none of this era")
    return found


def write_keyring_file(path: Path, active: str, keys: Mapping[str, bytes], times: Times) -> None:
    """Write it atomically, with mode 600 from the first byte on; KeyringError where that fails."""
    content = {
        "format": _FORMAT,
        "active": active,
        "keys": {key_id: base64.b64encode(key).decode() for key_id, key in keys.items()},
        "times": {key_id: dict(known) for key_id, known in times.items()},
    }
    try:
        write_whole(path, json.dumps(content, indent=2), mode=0o600)
    except OSError as error:
        raise KeyringError(f"cannot write the keyring {path}: {error}") from error
