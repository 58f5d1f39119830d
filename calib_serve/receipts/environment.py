"""Settings of the host, which no archive may carry: set by ``calib-serve serve``, read by workers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from calib_serve.core.errors import ServerError
from calib_serve.core.files import read_whole

KEYRING, LEDGER, LABEL_BUDGET = "CALIB_SERVE_KEYRING", "CALIB_SERVE_LEDGER", "CALIB_SERVE_LABEL_BUDGET"
SAMPLES, SAMPLE_RATE = "CALIB_SERVE_SAMPLES", "CALIB_SERVE_SAMPLE_RATE"
MODELS = "CALIB_SERVE_MODELS"
SOURCE = "CALIB_SERVE_SOURCE"
CORRECTORS = "CALIB_SERVE_CORRECTORS"
SOURCE_HEADER = "CALIB_SERVE_SOURCE_HEADER"
_FILE = "environment.json"


def from_environment(name: str) -> str | None:
    """Read a host's own setting; None where it is not set or empty."""
    return os.environ.get(name) or None


def placed(of: str | Path) -> str:
    """An address unchanged, a path made absolute: each worker runs in a folder of its own model."""
    path = str(of).removeprefix("sqlite:///")
    return path if "://" in path else str(Path(path).resolve())


def write_host_settings(folder: Path, settings: Mapping[str, str]) -> None:
    """Write the settings of a server's workers, for programs that ask later.

    Args:
        folder: Folder of the server.
        settings: Environment variables; those of Calib Serve are written.
    """
    told = {name: value for name, value in settings.items() if name.startswith("CALIB_SERVE_")}
    (folder / _FILE).write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n", "utf-8")


def host_setting(folder: Path, name: str) -> str | None:
    """A setting of a server: as given to its workers, else from the environment; None where neither says it.

    Args:
        folder: Folder of the server.
        name: Name of the environment variable.

    Raises:
        ServerError: Where the two differ, or the file cannot be read.
    """
    path, here = folder / _FILE, from_environment(name)
    try:
        there = json.loads(read_whole(path))[name]
    except (FileNotFoundError, KeyError):  # a server that calib-serve serve did not start
        there = None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ServerError(f"{path} cannot be read: {error!r}; start the server again") from error
    if here and there and there not in (here, placed(here)):
        # The variable's value is not repeated: it is unchecked, and may hold a password.
        raise ServerError(f"{name} is {there} for the server of {folder}, and another here: unset it here")
    return here if there is None else str(there)
