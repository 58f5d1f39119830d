"""Writes a project into a folder, beside what is there, over nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calib_serve.errors import InputError
from calib_serve.files import write_whole
from calib_serve.quickstart.kinds import KINDS

__all__ = ["Written", "write_project"]


@dataclass(frozen=True)
class Written:
    """The files that were ``made``, and those that were ``kept``, as somebody has changed or made them."""

    made: tuple[str, ...]
    kept: tuple[str, ...]


def write_project(folder: Path, kind: str, *, force: bool = False) -> Written:
    """Write the files of a ``kind``, see ``KINDS``.

    InputError for a folder that is not empty, unless ``force``; no file that is there is changed in any case.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder")
    try:
        if folder.is_dir() and not force and any(folder.iterdir()):
            raise InputError(
                f"{folder} is not empty; name another folder, or add --force (force=True), which writes "
                "beside what is there and changes no file"
            )
        made, kept = [], []
        for name, text in KINDS[kind].files().items():
            path = folder / name
            if path.is_symlink() or path.exists():
                kept.append(name)
            else:
                write_whole(path, text)
                made.append(name)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error}") from error
    return Written(tuple(made), tuple(kept))
