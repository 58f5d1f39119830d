"""Promotion: exchange the version of a model on a running TorchServe by labels, and go back.

Each version has a queue and workers of its own. So the new one is ready before it becomes the default, and
the old one stays: what it took it answers, and it can be made the default again at once. Labels of both are
taken from before the first prediction of the new one.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from calib_serve.core.errors import CalibServeError, ConflictError, InputError, ServerError
from calib_serve.core.files import lock, read_whole, sha256, write_atomically, write_whole
from calib_serve.ledger import Ledger
from calib_serve.monitor import shadow_states
from calib_serve.receipts import LEDGER, MODELS, Version, host_setting, shadow_tag
from calib_serve.torchserve.archive._packing import labelled_models, served_artifact
from calib_serve.torchserve.management import Management
from calib_serve.torchserve.properties import read_properties


def evidence_of(ledger: Ledger, served: Version, fingerprint: str) -> tuple[bool, str]:
    """Whether labels show that an artifact in the shadow of a version is better, and what they say of it.

    Args:
        ledger: Where both were counted.
        served: (model, version) that was served.
        fingerprint: Of the artifact.

    Raises:
        LedgerError: Where the ledger cannot be read.
    """
    tag = shadow_tag(fingerprint).hex()  # receipts name a shadow by it, as they have no room for more
    state = next((one for one in shadow_states(ledger, served) if one.tag == tag), None)
    if state is None:
        return False, f"No label says anything of shadow {tag} of {served[1]}: serve it as a shadow first."
    return state.verdict == "better", state.says()


@dataclass(frozen=True)
class Running:
    """A version on the server: its archive in the store, and how many workers it has, and are ready."""

    version: str
    archive: str
    workers: int
    ready: int


@dataclass(frozen=True)
class Exchange:
    """An exchange that was made at ``time``, in seconds since 1970: ``version`` is served since."""

    time: float
    model: str
    version: str
    archive: str
    before: str
    archive_before: str


@dataclass(frozen=True)
class Host:
    """A running TorchServe.

    Args:
        folder: Where it runs.
        store: Its model store.
    """

    folder: Path
    store: Path

    @classmethod
    def of(cls, folder: str | Path) -> Host:
        """Read where the store of the server in ``folder`` is; ServerError where nothing runs there."""
        folder = Path(folder)
        store = read_properties(folder / "config.properties").get("model_store")
        if not store:
            raise ServerError(f"{folder}/config.properties names no model_store; give the server's folder")
        return cls(folder, Path(store))

    @property
    def api(self) -> Management:
        """The management API, with the tokens of this moment: they change when the server restarts."""
        return Management.of(self.folder)

    @property
    def ledger(self) -> str:
        """The address of the ledger that counts the server's labels."""
        return host_setting(self.folder, LEDGER) or str(self.folder / "ledger.sqlite")

    @property
    def models_file(self) -> Path:
        """The file that lists the versions whose labels are taken."""
        return Path(host_setting(self.folder, MODELS) or self.folder / "models.json")

    @property
    def _exchanges_file(self) -> Path:
        return self.folder / "promotions.json"

    def versions(self, model: str) -> dict[str, Running]:
        """The registered versions by name; ServerError where the server does not say."""
        return {one.version: one for one in map(_running, self._asked(model, "all"))}

    def default(self, model: str) -> Running:
        """The version that answers requests which name none."""
        return _running(self._asked(model, None)[0])

    def _asked(self, model: str, version: str | None) -> list[dict[str, object]]:
        api = self.api
        try:
            return api.versions(model, version)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            what = "its token is not taken" if status in (400, 401, 403) else f"it has no model {model}"
            raise ServerError(f"{api.url} answers {status}: {what}") from error
        except (httpx.HTTPError, ValueError) as error:
            raise ServerError(
                f"{api.url} does not answer ({error}); is the server of {self.folder} running?"
            ) from error

    def put_into_store(self, archive: Path) -> str:
        """Copy the archive into the store where it is not there; returns its name."""
        target = self.store / archive.name
        try:
            if not target.exists():
                with write_atomically(target) as partial:
                    shutil.copyfile(archive, partial)
            # By content: an earlier try may have copied it already.
            elif not target.samefile(archive) and sha256(target) != sha256(archive):
                raise ConflictError(f"{target} is another archive of that name; give the new one another")
        except OSError as error:
            raise ServerError(f"{archive} cannot be put into {self.store}: {error}") from error
        return archive.name

    def take_labels_of(self, archive: Path) -> None:
        """Add the archive's version to the list of models; feedback workers read it again at once."""
        path = self.models_file
        try:
            with lock(path):
                known = {(m["name"], m["version"]): m for m in json.loads(read_whole(path))}
                known |= {(m["name"], m["version"]): m for m in labelled_models([archive])}
                write_whole(path, json.dumps(list(known.values()), ensure_ascii=False))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServerError(
                f"the list of models whose labels are taken cannot be changed: {error!r}; {path} is that of a"
                f" server which calib-serve serve started; name another one by {MODELS}"
            ) from error

    def exchanges(self) -> list[Exchange]:
        """Read the exchanges made on this server, oldest first; InputError where the file is no list."""
        path = self._exchanges_file
        try:
            return [Exchange(**one) for one in json.loads(read_whole(path))] if path.exists() else []
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path} cannot be read: {error!r}; promote an archive by its name") from error

    def before(self, model: str) -> Exchange:
        """The exchange that led to the served version; InputError where there is none."""
        served = self.default(model).version
        made = [one for one in self.exchanges() if (one.model, one.version) == (model, served)]
        if not made:
            raise InputError(
                f"{self._exchanges_file} has no promotion to {model} {served}; promote its archive instead"
            )
        return made[-1]

    def keep(self, exchange: Exchange) -> None:
        """Write an exchange to disk, so that it can be undone."""
        try:
            kept = [asdict(one) for one in [*self.exchanges(), exchange]]
            write_whole(self._exchanges_file, json.dumps(kept, ensure_ascii=False, indent=1) + "\n")
        except (OSError, InputError) as error:
            raise InputError(
                f"{exchange.model} {exchange.version} is served, but --back will not know it: {error}"
            ) from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Let this process alone exchange versions on this server while inside; others wait."""
        with lock(self._exchanges_file):
            yield


def swap(host: Host, archive: str | Path) -> tuple[str, str, str]:
    """Make the archive's version the default; return (model's name, version, the former default).

    Every step may be done again, so a swap that did not end is begun anew. The version before stays with its
    workers.

    Args:
        host: The server.
        archive: File of the new version.

    Raises:
        ServerError: Where a step fails: then the version before is still the default.
        ConflictError: Where that version is there with another archive.
    """
    _, model, version = served_artifact(archive)
    before, name = host.default(model), host.put_into_store(Path(archive))
    if before.version == version and before.archive == name:
        return model, version, version
    try:
        # Before it is ready: its first prediction may be labelled at once.
        host.take_labels_of(Path(archive))
        _make_ready(host, model, version, name, before)
        host.api.set_default(model, version)
        if host.default(model).version != version:
            raise ServerError(f"TorchServe goes on with {before.version}")
    # Nothing is undone: what was done may be done again, and the version before goes on.
    except (CalibServeError, httpx.HTTPError) as error:
        why = f"{model} {version} is not promoted: {error}; {_still(host, model, before.version)}"
        raise (type(error) if isinstance(error, InputError) else ServerError)(why) from error
    host.keep(Exchange(time.time(), model, version, name, before.version, before.archive))
    return model, version, before.version


def _make_ready(host: Host, model: str, version: str, archive: str, like: Running) -> None:
    """Register the version, or use an earlier attempt's, and wait for all workers."""
    there = host.versions(model).get(version)
    if there is None:
        try:
            host.api.register(archive, max(like.workers, 1))
        except (ServerError, httpx.HTTPError):
            # TorchServe would try for ever. It is not served, and the first error tells why.
            with suppress(ServerError, httpx.HTTPError):
                if version in host.versions(model):
                    host.api.unregister(model, version)
            raise
    elif there.archive != archive:
        raise ConflictError(
            f"version {version} is registered already, with {there.archive}; receipts tell versions apart, so"
            " name a new one"
        )
    # An earlier try that broke off may have left it without workers.
    elif there.ready < there.workers or not there.workers:
        host.api.set_workers(model, version, max(like.workers, 1))
    end = time.monotonic() + 60
    while not ((now := host.versions(model).get(version)) and 0 < now.workers == now.ready):
        if time.monotonic() > end:
            raise ServerError(f"the workers of {version} are not ready after 60 s")
        time.sleep(0.1)


def _still(host: Host, model: str, before: str) -> str:
    """Name the default version after a failure."""
    try:
        now = host.default(model).version
    except ServerError as error:
        return f"it is not known what is served: {error}"
    return f"{now} is still served" if now == before else f"{now} is served"


def _running(described: Mapping[str, Any]) -> Running:
    try:
        workers = described["workers"]
        ready = sum(one["status"] == "READY" for one in workers)
        number = max(len(workers), int(described["minWorkers"]))
        return Running(str(described["modelVersion"]), str(described["modelUrl"]), number, ready)
    except (KeyError, TypeError, ValueError) as error:
        raise ServerError(f"the server's description of a model cannot be read: {error!r}") from error
