"""The server that versions are promoted on: its API, store and list of models; one promoter at a time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from calib_serve.errors import ConflictError, ServerError
from calib_serve.files import alone, sha256, write_whole, written_whole
from calib_serve.fuse.mar_options import LEDGER, MODELS, from_environment
from calib_serve.fuse.torchserve import labelled_models
from calib_serve.serve.management import Management
from calib_serve.serve.properties import read_properties
from calib_serve.serve.scaling import management_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Host", "Running"]


@dataclass(frozen=True)
class Running:
    """A version on the server: its archive in the store, and how many workers it has, and has ready."""

    version: str
    archive: str
    workers: int
    ready: int


@dataclass(frozen=True)
class Host:
    """The TorchServe that runs in ``folder``."""

    folder: Path
    store: Path

    @classmethod
    def of(cls, folder: str | Path) -> Host:
        """ServerError where nothing runs there."""
        folder = Path(folder)
        store = read_properties(folder / "config.properties").get("model_store")
        if not store:
            raise ServerError(f"{folder}/config.properties names no model_store; give the server's folder")
        return cls(folder, Path(store))

    @property
    def api(self) -> Management:
        """With the tokens of this moment: they change when the server restarts."""
        return management_of(self.folder)

    @property
    def ledger(self) -> str:
        """Where its labels are counted."""
        return from_environment(LEDGER) or str(self.folder / "ledger.sqlite")

    @property
    def models_file(self) -> Path:
        """The list of the versions whose labels are taken."""
        return Path(from_environment(MODELS) or self.folder / "models.json")

    def versions(self, model: str) -> dict[str, Running]:
        """Those that are registered. ServerError where the server does not say."""
        found = [_running(one) for one in self._asked(model, "all")]
        return {one.version: one for one in found}

    def default(self, model: str) -> Running:
        """The version that answers requests which name none."""
        return _running(self._asked(model, None)[0])

    def _asked(self, model: str, version: str | None) -> list[dict[str, object]]:
        api = self.api
        try:
            return api.versions(model, version)
        except httpx.HTTPStatusError as error:
            told = error.response.status_code
            what = "its token is not taken" if told in (400, 401, 403) else f"it has no model {model}"
            raise ServerError(f"{api.url} answers {told}: {what}") from error
        except (httpx.HTTPError, ValueError) as error:
            raise ServerError(
                f"{api.url} does not answer ({error}); is the server of {self.folder} running?"
            ) from error

    def stored(self, archive: Path) -> str:
        """The archive's name in the store, copied there where it is not."""
        target = self.store / archive.name
        try:
            if target.exists():
                if not target.samefile(archive) and sha256(target) != sha256(archive):
                    raise ConflictError(f"{target} is another archive of that name; give the new one another")
            else:
                with written_whole(target) as partial:
                    shutil.copyfile(archive, partial)
        except OSError as error:
            raise ServerError(f"{archive} cannot be put into {self.store}: {error}") from error
        return archive.name

    def listed(self, archive: Path) -> None:
        """Let labels of the archive's version be taken; feedback workers read the list again at once."""
        path = self.models_file
        try:
            with alone(path):
                known = {(m["name"], m["version"]): m for m in json.loads(path.read_text("utf-8"))}
                known |= {(m["name"], m["version"]): m for m in labelled_models([archive])}
                write_whole(path, json.dumps(list(known.values()), ensure_ascii=False))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServerError(
                f"the list of models whose labels are taken cannot be changed: {error!r}; {path} is that of a"
                f" server which calib-serve serve started; name another one by {MODELS}"
            ) from error

    @contextmanager
    def sole(self, model: str) -> Iterator[None]:
        """Inside, this process alone promotes versions of ``model``; ConflictError where another does."""
        if fcntl is None:
            raise ServerError("versions are promoted on POSIX systems alone")
        file = os.open(self.folder / f".promoter-{model}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(file, 20, 0).decode("ascii", "replace") or "unknown"
                raise ConflictError(
                    f"process {holder} promotes versions of {model} here; wait for it, or end it"
                ) from None
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(file)


def _running(told: dict[str, object]) -> Running:
    try:
        workers = told["workers"]
        assert isinstance(workers, list)
        ready = sum(one["status"] == "READY" for one in workers)
        number = max(len(workers), int(str(told["minWorkers"])))
        return Running(str(told["modelVersion"]), str(told["modelUrl"]), number, ready)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise ServerError(f"the server says nothing that can be understood of a model: {error!r}") from error
