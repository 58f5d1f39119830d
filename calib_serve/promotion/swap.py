"""Another version of a model on a running TorchServe, without a lost request or label.

Each version has a queue and workers of its own. So the new one is ready before it becomes the default, and
the old one stays: what it took it answers, and it can be made the default again at once. Labels of both are
taken from before the first prediction of the new one, see ``Host.listed``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from calib_serve.errors import CalibServeError, ConflictError, InputError, ServerError
from calib_serve.fuse.torchserve import served_artifact
from calib_serve.promotion.host import Host, Running
from calib_serve.promotion.log import PromotionLog, Step
from calib_serve.serve.scaling import scale

__all__ = ["swap"]

_PATIENCE = 60.0  # seconds in which a version that was there already must have its workers


def swap(
    host: Host,
    archive: str | Path,
    log: PromotionLog,
    *,
    retire: bool = False,
    clock: Callable[[], float] = time.time,
) -> tuple[str, str]:
    """Make the archive's version the default one; (model's name, the version that was so before).

    Every step may be done again, so a swap that did not end is begun anew. The version before stays with its
    workers; with ``retire`` it goes once nothing is under way to it. ServerError where a step fails: then the
    version before is still the default. ConflictError where that version is there with another archive.
    """
    artifact, model, version = served_artifact(archive)
    before, name = host.default(model), host.stored(Path(archive))
    if before.version == version and before.archive == name:
        _tell_late(log, model, version, clock())
        return model, version

    def note(step: str, reason: str, of: str = version) -> None:
        facts = {
            "archive": name,
            "fingerprint": artifact.fingerprint,
            "before": before.version,
            "archive_before": before.archive,
        }
        log.add(Step(clock(), step, model, of, reason, facts))

    try:
        host.listed(Path(archive))
        note("listed", f"Labels of {version} are taken; {before.version} is served.")
        _ready(host, model, version, name, before)
        note("registered", f"{version} has ready workers; {before.version} is still served.")
        host.api.set_default(model, version)
        if host.default(model).version != version:
            raise ServerError(f"TorchServe goes on with {before.version}")
    except (CalibServeError, httpx.HTTPError) as error:
        why = f"{model} {version} is not promoted: {error}; {_still(host, model, before.version)}"
        with contextlib.suppress(InputError):  # the log itself may be what failed
            note("failed", why)
        if isinstance(error, InputError):
            raise type(error)(why) from error
        raise ServerError(why) from error
    try:
        note("default", f"{version} is served instead of {before.version}.")
    except InputError as error:
        raise InputError(f"{model} {version} is served, and this is not in the log: {error}") from error
    if retire:
        _retire(host, model, before.version)
        note("retired", f"{before.version} is gone, after its last answer.", before.version)
    return model, before.version


def _tell_late(log: PromotionLog, model: str, version: str, time: float) -> None:
    """Write that ``version`` is served, where a swap to it ended before it could."""
    mine = [one for one in log.steps(model) if one.version == version]
    if mine and mine[-1].step == "registered":
        why = f"{version} is served instead of {mine[-1].facts['before']}; its swap was cut short."
        log.add(Step(time, "default", model, version, why, mine[-1].facts))


def _ready(host: Host, model: str, version: str, archive: str, like: Running) -> None:
    """Register, or use what an earlier try left."""
    there = host.versions(model).get(version)
    if there is None:
        try:
            host.api.register(archive, max(like.workers, 1))
        except (ServerError, httpx.HTTPError):
            _forget(host, model, version)
            raise
    elif there.archive != archive:
        raise ConflictError(
            f"version {version} is registered already, with {there.archive}; receipts tell versions apart, so"
            " name a new one"
        )
    elif there.ready < there.workers or not there.workers:
        host.api.set_workers(model, version, max(like.workers, 1))
    end = time.monotonic() + _PATIENCE
    while not _is_ready(host.versions(model).get(version)):
        if time.monotonic() > end:
            raise ServerError(f"the workers of {version} are not ready after {_PATIENCE:.0f} s")
        time.sleep(0.1)


def _is_ready(found: Running | None) -> bool:
    return found is not None and 0 < found.workers == found.ready


def _forget(host: Host, model: str, version: str) -> None:
    """A version that did not start, which TorchServe would try for ever."""
    try:
        if version in host.versions(model):
            host.api.unregister(model, version)
    except (ServerError, httpx.HTTPError):
        return  # it is not served; the first error tells why


def _still(host: Host, model: str, before: str) -> str:
    """Which version is the default after a failure."""
    try:
        now = host.default(model).version
    except ServerError as error:
        return f"it is not known what is served: {error}"
    return f"{now} is still served" if now == before else f"{now} is served"


def _retire(host: Host, model: str, version: str) -> None:
    scale(host.api, model, 0, version=version)
    host.api.unregister(model, version)
