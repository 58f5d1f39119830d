"""Ports that servers are to listen on: free, or taken, and by whom."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from calib_serve.doctor.extras import chosen
from calib_serve.doctor.finding import Asked, Finding, note, ok, wrong
from calib_serve.doctor.world import World
from calib_serve.serve.properties import Ports, is_free, read_properties

__all__ = ["ports"]

_LISTENS = "0A"
_OURS = ("calib-serve", "calib_serve", "org.pytorch.serve", "torchserve")


def ports(asked: Asked, world: World) -> Iterator[Finding]:
    """Those of TorchServe and of the watch, where the host is for them."""
    extras = chosen(asked, world)
    wanted: dict[int, str] = {}
    if "torchserve" in extras or asked.config is not None:
        found = Ports() if asked.config is None else Ports.of(read_properties(asked.config))
        wanted |= {port: f"TorchServe's {name}" for name, port in asdict(found).items()}
    if "watch" in extras:
        wanted[asked.port] = "calib-serve watch"
    free = []
    for port, whose in wanted.items():
        if is_free(port):
            free.append(port)
            continue
        by = _holder(port, world)
        if by is not None and any(name in by for name in _OURS):
            yield note(f"port {port}", f"for {whose}, it is taken by {by}", "nothing, if that is the one")
        else:
            yield wrong(
                f"port {port}",
                f"for {whose}, it is taken{f' by {by}' if by else ' (by whom, its owner or root can see)'}",
                "end that program, or choose another port: calib-serve watch --port, calib-serve serve "
                "--free-ports or --set",
            )
    if free:
        yield ok("ports", f"free on this host: {', '.join(map(str, free))}")


def _holder(port: int, world: World) -> str | None:
    """The process that listens on a port, as Linux tells it to the same user and to root."""
    inodes = set()
    for name in ("proc/net/tcp", "proc/net/tcp6"):
        for line in (world.text(name) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for process in (world.root / "proc").glob("[0-9]*"):
        with suppress(OSError):  # another user's, or one that has ended
            if any(_target(link) in inodes for link in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                return f"process {process.name}: {_short(command.strip())}"
    return None


def _target(link: Path) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115  a socket's name is no path
    except OSError:
        return ""


def _short(command: str) -> str:
    """A command line that can be shown; the class that Java runs stands far behind."""
    if len(command) <= 100:
        return command
    main = next((name for name in _OURS if name in command), "")
    return f"{command[:100]}... {main}".rstrip()
