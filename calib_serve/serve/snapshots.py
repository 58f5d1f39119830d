"""TorchServe's snapshots: which models it serves, and with how many workers, as files in ``logs/config``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from calib_serve.errors import ServerError
from calib_serve.serve.properties import read_properties

__all__ = ["Snapshot", "last_snapshot"]

_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")


@dataclass(frozen=True)
class Snapshot:
    """``text``: the property model_snapshot of ``file``; ``models``: the archive of each version, by name."""

    file: Path
    text: str
    models: Mapping[str, Mapping[str, str]]

    @property
    def archives(self) -> set[str]:
        """The archives that it names."""
        return {archive for versions in self.models.values() for archive in versions.values()}


def last_snapshot(folder: Path, store: Path) -> Snapshot | None:
    """The newest snapshot in ``folder``, or None; ServerError where ``store`` lacks an archive of it."""
    files = sorted(folder.glob("*.cfg"))  # their names begin with the time
    if not files:
        return None
    text = read_properties(files[-1]).get("model_snapshot", "")
    try:
        models = {
            name: {version: str(facts["marName"]) for version, facts in versions.items()}
            for name, versions in json.loads(_ESCAPED.sub(_unescaped, text))["models"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServerError(f"{files[-1]} holds no snapshot of TorchServe; move it away") from error
    found = Snapshot(files[-1], text, models)
    if missing := sorted(archive for archive in found.archives if not (store / archive).is_file()):
        raise ServerError(
            f"the snapshot {files[-1]} names {', '.join(missing)}, which {store} does not hold; put it back,"
            f" or move {folder} away to start without a snapshot"
        )
    return found


def _unescaped(match: re.Match[str]) -> str:
    given = match[1]
    if len(given) > 1:
        return chr(int(given[1:], 16))
    return {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}.get(given, given)
