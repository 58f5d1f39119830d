"""Versions of models on their way into a Triton repository: a server never sees half of one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from calib_serve.core.errors import FuseError
from calib_serve.core.files import read_whole
from calib_serve.fuse.triton._pbtxt import Block, fields, text

CONFIG = "config.pbtxt"

SHARED = ("backend", "platform", "max_batch_size", "input", "output", "parameters", "ensemble_scheduling")
"""The fields of a config that all versions of a model must agree in."""


@contextmanager
def staging_folder(root: Path) -> Iterator[Path]:
    """Make an empty folder beside the repository ``root``, for one process at a time; removed afterwards."""
    place, lock = (root.parent / f".{root.name}.{what}" for what in ("staging", "lock"))
    with ExitStack() as held:
        with writing(root):
            root.parent.mkdir(parents=True, exist_ok=True)
            # It stays: who removes a lock may remove one that another process has just taken.
            file = held.enter_context(lock.open("a"))
            with suppress(ImportError):
                import fcntl  # noqa: PLC0415 - not on every platform

                fcntl.flock(file, fcntl.LOCK_EX)
            shutil.rmtree(place, ignore_errors=True)  # left by a process that was killed
            place.mkdir()
            held.callback(shutil.rmtree, place, ignore_errors=True)
            if root.exists() and root.stat().st_dev != place.stat().st_dev:
                raise FuseError(
                    f"{root} is a file system of its own, and Triton would take an unfinished pack in it for "
                    f"a model; make the repository a folder in it: --out {root / 'models'} (repository=)"
                )
        yield place


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Turn an OSError into the FuseError that ``root`` cannot be written."""
    try:
        yield
    except OSError as error:
        raise FuseError(f"cannot write {root}: {error}") from error


@dataclass(frozen=True)
class Pack:
    """A ``version`` of the model ``name`` on its way into ``root``, prepared in ``place``.

    ``models``: its folders, the one that clients call last; each stands on those before it alone.
    """

    place: Path
    root: Path
    name: str
    version: int
    models: tuple[str, ...]

    def folder(self, model: str) -> Path:
        """Make the folder that the version of one of its models is written to."""
        path = self.place / model / str(self.version)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def configure(self, model: str, config: Block) -> None:
        """Write the settings of one model, marked with their origin."""
        (self.place / model / CONFIG).write_text(f"{self._mark}\n{text(config)}", encoding="utf-8")

    def check(self) -> None:
        """Raise FuseError if the version is served, or a foreign folder of the same name exists."""
        first, path = self.models[0], self.root / self.models[0] / str(self.version)
        if self._begun and path.exists():
            raise FuseError(f"{path} exists; a served version must not change: choose another --version")
        for model in self.models:
            path = self.root / model
            if path.exists() and not self._begun and not self._is_ours(path):
                raise FuseError(f"{path} is there, and no part of {self.name!r}; choose another --name")
        if self._begun and not (self.root / first / CONFIG).is_file():
            raise FuseError(
                f"{self.root / self.name} is there without {first}, so it was packed otherwise; "
                "choose another --name, or the same options"
            )

    def publish(self) -> list[str]:
        """Move the version in; return the settings kept. FuseError where a served version would change."""
        if not self._begun:
            # Folder by folder; the one that clients call is the last.
            self.root.mkdir(parents=True, exist_ok=True)
            for model in self.models:
                if (self.root / model).exists():  # of a pack that was stopped
                    (self.root / model).rename(self.place / f"{model}.old")
                # Atomic within one file system: hence the staging folder beside the repository.
                (self.place / model).rename(self.root / model)
            return []
        kept = [one for model in self.models for one in self._compare(model)]
        # The graph last, as the steps behind it take the version from it.
        for model in reversed(self.models):
            new = self.root / model / str(self.version)
            if not new.exists():
                (self.place / model / str(self.version)).rename(new)
        return kept

    @property
    def _mark(self) -> str:
        return f"# calib-serve fuse triton: {json.dumps(self.name)}"

    @property
    def _begun(self) -> bool:
        """Whether the model is served: the folder that clients call is moved in last."""
        return (self.root / self.name / CONFIG).is_file()

    def _is_ours(self, path: Path) -> bool:
        config = path / CONFIG
        return config.is_file() and _written(config).startswith(f"{self._mark}\n")

    def _compare(self, model: str) -> Iterator[str]:
        """Yield differences between served and new settings; the served settings are kept."""
        path = self.root / model / CONFIG
        if not path.is_file():
            raise FuseError(f"{path} is missing; choose another --name")
        old, new = (fields(_written(p)) for p in (path, self.place / model / CONFIG))
        # Triton reads one config for all versions: a new one must not change what is served.
        differing = _differing(old, new, SHARED)
        for file in sorted(
            p.name for p in (self.place / model).iterdir() if p.is_file() and p.name != CONFIG
        ):
            one, other = self.root / model / file, self.place / model / file
            if not one.is_file() or one.read_bytes() != other.read_bytes():
                differing.append(file)
        if differing:
            raise FuseError(
                f"{path.parent} is served with another {', '.join(differing)}, which its versions share; "
                "choose another --name, or the same options"
            )
        for field in _differing(old, new, [f for f in new if f not in SHARED]):
            yield f"{model}/{CONFIG} kept, with its own {field}: it holds for all versions"


def _written(path: Path) -> str:
    try:
        return read_whole(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise FuseError(f"cannot read the settings {path}: {error}") from error


def _differing(
    one: Mapping[str, list[str]], other: Mapping[str, list[str]], names: Sequence[str]
) -> list[str]:
    return [name for name in names if one.get(name) != other.get(name)]
