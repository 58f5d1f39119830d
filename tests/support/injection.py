"""Faults for real: work done in a process that the kernel kills, starves, or leaves without room.

Nothing is mocked. A fault is a limit of the operating system (``setrlimit``), a small file system of
the process's own (``mount`` in its own namespace), the loss of root's powers (``capset``), or a
SIGKILL before one chosen file operation (counted by Python's audit events).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calib_serve.core.errors import CalibServeError

CONTEXT = multiprocessing.get_context("forkserver")
# Children are forked from a process that has these already, as a process that serves has: each takes some ten
# milliseconds. There is one such process for all tests, so this is the only list.
CONTEXT.set_forkserver_preload(
    [
        *(
            "_pytest.assertion.rewrite",
            "hypothesis.extra.numpy",
            "hypothesis.stateful",
            "httpx",
            "pytest",
            "onnx",
            "onnxruntime",
        ),
        *(
            "calib_serve.fit.clamping.fit",
            "calib_serve.fit.masked",
            "calib_serve.torchserve.archive._repacking",
        ),
        *("calib_serve.fuse.onnx._fuse", "calib_serve.models", "calib_serve.web.app"),
        *("calib_serve.ledger", "calib_serve.monitor.watch"),
    ]
)
_WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
_NEW_NAMESPACE, _NEW_USER, _PRIVATE = 0x00020000, 0x10000000, 0x4000 | 0x40000


@dataclass(frozen=True)
class Fault:
    """What happens to the process that works; nothing unless asked for.

    ``kill_before``: SIGKILL before its n-th operation that changes a folder or opens a file to write.
    ``kill_at_byte``: the kernel ends it when a file grows beyond so many bytes. ``no_room_after``: that
    write fails instead. ``disk``: (folder, bytes), a file system of its own, so small. ``memory``: bytes
    it may take beyond what it has. ``powerless``: root's powers are gone, so that the modes of folders and
    files hold for it too.
    """

    kill_before: int | None = None
    kill_at_byte: int | None = None
    no_room_after: int | None = None
    disk: tuple[Path, int] | None = None
    memory: int | None = None
    powerless: bool = False


@dataclass(frozen=True)
class Ended:
    """By a signal, an error (its type, whether it is of our tree, what it says), or with a result."""

    signal: int = 0
    error: str = ""
    ours: bool = False
    said: str = ""
    result: Any = None

    @property
    def well(self) -> bool:
        """Neither killed nor failed."""
        return not self.signal and not self.error


def under(
    fault: Fault, work: Callable[..., Any], *args: Any, seconds: float = 60.0, may_hang: bool = False
) -> Ended:
    """What became of ``work(*args)`` in a process of its own under ``fault``; both must be importable.

    ``may_hang``: one that does not end is killed, as an operator would; else that fails.
    """
    ours, theirs = CONTEXT.Pipe(duplex=False)
    child = CONTEXT.Process(target=_child, args=(theirs, fault, work, args))
    child.start()
    theirs.close()
    try:
        told = ours.recv() if ours.poll(seconds) else None
    except EOFError:
        told = None
    finally:
        ours.close()
    child.join(5)
    if child.is_alive():
        child.kill()
        child.join()
        assert may_hang, f"{work.__name__} under {fault} hung for {seconds} s"
        return Ended(signal=signal.SIGKILL)
    if told is None:
        if fault.memory is not None and child.exitcode > 0:  # not even enough is left to say so
            return Ended(error="MemoryError")
        assert child.exitcode < 0, f"{work.__name__} under {fault} left with code {child.exitcode}"
        return Ended(signal=-child.exitcode)
    return told


def killed_everywhere(
    work: Callable[..., Any], *args: Any, each: int = 1, most: int = 500
) -> Iterator[tuple[int, Ended]]:
    """``work`` killed before its first file operation, before its second ..., until it ends well."""
    for n in range(1, most, each):
        ended = under(Fault(kill_before=n), work, *args)
        yield n, ended
        if not ended.signal:
            assert ended.well, f"not killed, and yet: {ended}"
            assert n > 1, "nothing was ever written"
            return
    raise AssertionError(f"{work.__name__} did not end within {most} operations")


def bytes_to_try(size: int, count: int) -> Sequence[int]:
    """Some ``count`` places in a file of ``size`` bytes, its ends among them."""
    return sorted({0, 1, size // 2, max(size - 1, 0), *(size * i // count for i in range(count))})


def _child(pipe: Any, fault: Fault, work: Callable[..., Any], args: Sequence[Any]) -> None:
    inject(fault)
    try:
        ended = Ended(result=work(*args))
    except BaseException as error:  # whatever it is, the test wants to know
        name = f"{type(error).__module__}.{type(error).__qualname__}"
        ended = Ended(error=name, ours=isinstance(error, CalibServeError), said=str(error)[:500])
    if fault.kill_before is not None:
        _counted.clear()  # what the process does to end is no part of the work
    try:
        pipe.send(ended)
    except (MemoryError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        pipe.send(replace(ended, result=None))


def inject(fault: Fault) -> None:
    """Put this process under ``fault`` from now on."""
    if fault.disk is not None:
        _mount(*fault.disk)
    if fault.powerless:
        _drop_powers()
    limit = fault.kill_at_byte if fault.no_room_after is None else fault.no_room_after
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        how = signal.SIG_DFL if fault.no_room_after is None else signal.SIG_IGN
        signal.signal(signal.SIGXFSZ, how)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if fault.memory is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + fault.memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    if fault.kill_before is not None:
        _counted.append(fault.kill_before)
        sys.addaudithook(_count)


_counted: list[int] = []


def _count(event: str, args: tuple[Any, ...]) -> None:
    if not _counted or (event not in _WRITES and not (event == "open" and _to_write(args))):
        return
    _counted[0] -= 1
    if _counted[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def _to_write(args: tuple[Any, ...]) -> bool:
    return isinstance(args[2], int) and bool(args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _mount(folder: Path, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    spaces = _NEW_NAMESPACE if user == 0 else _NEW_NAMESPACE | _NEW_USER
    if libc.unshare(spaces):
        raise OSError(ctypes.get_errno(), "a small file system needs a mount namespace of its own")
    if user:  # files there can be of nobody whom the namespace does not know
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    libc.mount(None, b"/", None, _PRIVATE, None)
    if libc.mount(b"none", str(folder).encode(), b"tmpfs", 0, f"size={size}".encode()):
        raise OSError(ctypes.get_errno(), f"cannot mount {folder}")


def _drop_powers() -> None:
    """Give up all capabilities: the modes of folders and files then hold for root as for anybody."""

    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(ctypes.byref(Header(0x20080522, 0)), (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "cannot drop capabilities")
