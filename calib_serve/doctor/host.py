"""The host itself: who runs this, what files get, how many can be open, where temporary ones lie."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from calib_serve.doctor.finding import Asked, Finding, note, ok, wrong
from calib_serve.doctor.mounts import mount_of
from calib_serve.doctor.world import World

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["open_files", "rights", "temporary_files", "user"]

_FEWEST = 1024  # open files: connections, archives and libraries of a server with a few workers
_GIB = 1 << 30


def user(asked: Asked, world: World) -> Iterator[Finding]:
    """Not root."""
    if world.user == 0:
        yield note("user", "this is root", "serve as a user who may do no more than that")
    elif world.user is not None:
        yield ok("user", f"number {world.user}, not root")


def rights(asked: Asked, world: World) -> Iterator[Finding]:
    """What new files get, as the system tells it: asking the process would change it for a moment."""
    found = re.search(r"^Umask:\s*([0-7]+)", world.text("proc/self/status") or "", re.MULTILINE)
    if found is None:
        return
    if int(found[1], 8) & 0o002:
        yield ok("umask", found[1])
    else:
        yield note(
            "umask", f"{found[1]}: anybody may change files that are made here", "umask 027 before a start"
        )


def open_files(asked: Asked, world: World) -> Iterator[Finding]:
    """How many a process, and all of them, may have open."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < _FEWEST:
            more = f"ulimit -n {_FEWEST if hard == resource.RLIM_INFINITY else min(hard, _FEWEST)}"
            yield note(
                "open files", f"a process may have {soft} open, servers need more", f"{more} before a start"
            )
        else:
            yield ok(
                "open files",
                f"a process may have {'any number' if soft == resource.RLIM_INFINITY else soft} open",
            )
    said = (world.text("proc/sys/fs/file-nr") or "").split()
    if len(said) == 3 and int(said[0]) > 0.9 * int(said[2]):
        yield wrong(
            "open files",
            f"{said[0]} of the {said[2]} that the whole host may have are open",
            "find who holds them: lsof | wc -l for each program; or raise fs.file-max",
        )


def temporary_files(asked: Asked, world: World) -> Iterator[Finding]:
    """The folder that the environment names, else /tmp; nothing is written there to try it."""
    named = next((name for name in ("TMPDIR", "TEMP", "TMP") if world.environment.get(name)), None)
    folder = Path(world.environment[named]) if named else Path("/tmp")  # noqa: S108  looked at alone
    where = f"{folder}{f', which {named} names,' if named else ''}"
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        yield wrong(
            "temporary files",
            f"{where} is no folder that can be written",
            "make it, or set TMPDIR to another",
        )
        return
    mount = mount_of(folder, world)
    if mount is not None and "ro" in mount.options:
        yield wrong("temporary files", f"{where} is mounted read-only", "set TMPDIR to another folder")
    elif mount is not None and "noexec" in mount.options:
        yield note(
            "temporary files",
            f"{where} lies on {mount.point}, mounted noexec: libraries that Java and torch unpack or compile "
            "there do not load",
            "set TMPDIR to a folder on another mount for these",
        )
    elif shutil.disk_usage(folder).free < _GIB:
        yield note(
            "temporary files",
            f"{where} has {shutil.disk_usage(folder).free / 2**20:.0f} MiB free; archives and fused models "
            "are written there first",
            "free some, or set TMPDIR to a folder with more",
        )
    else:
        yield ok("temporary files", str(folder))
