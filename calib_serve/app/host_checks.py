"""Checks of a host for this package's needs; they change nothing, and ask no network."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import stat
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from calib_serve.core.errors import CalibServeError, InputError, ServerError
from calib_serve.core.files import GROUP_READS, LEAST_ROOM
from calib_serve.core.options.doctor import DoctorOptions
from calib_serve.core.packages import RUNTIMES
from calib_serve.torchserve import find_java

Level = Literal["ok", "note", "wrong"]  # note: works, and should be known; wrong: something will fail
Packages = Mapping[str, Distribution]  # by canonical name

_MOUNTS = Path("/proc/self/mountinfo")
_GPUS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidia0"), Path("/dev/dxg"))
_OWN = "calib-serve"
_OF_DEVELOPERS = {"all", "dev", "docs"}
_COMPILED = {
    **{name: name for name in ("numpy", "scipy", "torch", "torchvision", "pyarrow", "duckdb", "pydantic")},
    **{"scikit-learn": "sklearn", "onnx": "onnx", "grpcio": "grpc", "confluent-kafka": "confluent_kafka"},
    **dict.fromkeys(RUNTIMES, "onnxruntime"),
}
"""Packages with compiled parts that may not load, and the module of each. Importing them writes no file."""

_NETWORK = re.compile(
    r"(nfs|cifs|smb|9p|afs|ceph|glusterfs|lustre|gpfs|beegfs|ocfs2|virtiofs)"
    r"|fuse\.(sshfs|s3fs|gcsfuse|rclone|blobfuse|goofys|mount-s3|glusterfs|ceph|juicefs)"
)


@dataclass(frozen=True)
class Finding:
    """One line of the report: its subject ``about``, the finding ``what``, and the advice ``do``, if any."""

    level: Level
    about: str
    what: str
    do: str = ""


def examine(asked: DoctorOptions, packages: Packages | None = None) -> list[Finding]:
    """Run every check on the installed ``packages``; raise InputError for an extra that does not exist."""
    found = installed() if packages is None else packages
    known = _known_extras(found)
    if unknown := sorted(set(asked.for_) - set(known)) if known else []:
        raise InputError(f"there is no extra {', '.join(unknown)}; there are {', '.join(known)}")
    return [finding for check in _CHECKS for finding in _guarded(check, asked, found)]


def installed() -> dict[str, Distribution]:
    """Find each package by its canonical name; of two installations the imported one."""
    found: dict[str, Distribution] = {}
    for one in distributions():
        name = one.metadata["Name"] if one.metadata is not None else None
        if name:  # a folder of metadata that is left of a broken installation has none
            found.setdefault(canonicalize_name(name), one)
    return found


def _known_extras(packages: Packages) -> list[str]:
    """List the extras for users, as our own metadata names them; none without metadata."""
    named = packages[_OWN].metadata.get_all("Provides-Extra") if _OWN in packages else None
    return sorted({str(name) for name in named or ()} - _OF_DEVELOPERS)


def missing(extra: str, packages: Packages) -> list[str]:
    """List the packages of an extra that are not installed."""
    return sorted({one.name for one in _of_extra(extra, packages)} - set(packages))


def _guarded(
    check: Callable[[DoctorOptions, Packages], Iterator[Finding]], asked: DoctorOptions, packages: Packages
) -> Iterator[Finding]:
    try:
        yield from check(asked, packages)
    except Exception as error:  # a host may be odd in any way, and the other checks still say what they see
        level: Level = "wrong" if isinstance(error, CalibServeError) else "note"
        yield Finding(level, check.__name__.strip("_"), f"could not be looked at: {_line(error)}")


def _chosen(asked: DoctorOptions, packages: Packages) -> tuple[str, ...]:
    """Choose the named extras, else those that are installed whole."""
    return asked.for_ or tuple(x for x in _known_extras(packages) if not missing(x, packages))


def _requirements(package: Distribution, extra: str = "") -> Iterator[Requirement]:
    """Read a package's requirements on this Python, by canonical names; invalid lines are skipped."""
    for line in package.requires or ():
        with contextlib.suppress(InvalidRequirement):
            one = Requirement(line)
            one.name = canonicalize_name(one.name)
            if one.marker is None or one.marker.evaluate({"extra": extra}):
                yield one


def _of_extra(extra: str, packages: Packages) -> list[Requirement]:
    """Read the further requirements of an extra of ours."""
    own = [packages[_OWN]] if _OWN in packages else []
    return [one for package in own for one in _requirements(package, extra) if "extra" in str(one.marker)]


def _wanted(asked: DoctorOptions, packages: Packages) -> set[str]:
    """Name the packages of the chosen extras that are installed."""
    chosen = _chosen(asked, packages)
    return {one.name for extra in chosen for one in _of_extra(extra, packages)} & set(packages)


def _extras(asked: DoctorOptions, packages: Packages) -> Iterator[Finding]:
    """Check Python, calib-serve's own requirements, then each extra."""
    if (own := packages.get(_OWN)) is None:
        told = "its metadata is not among the packages of this Python"
        yield Finding("wrong", "calib-serve", told, f"pip install {_OWN}")
        return
    number, wanted = ".".join(map(str, sys.version_info[:3])), own.metadata["Requires-Python"]
    if SpecifierSet(wanted or "").contains(number):
        yield Finding("ok", "python", number)
    else:
        yield Finding("wrong", "python", f"{number}, wanted is {wanted}", "make a newer environment")
    yield _complete("", list(_requirements(own)), packages, asked=True)
    for extra in asked.for_ or _known_extras(packages):
        yield _complete(extra, _of_extra(extra, packages), packages, asked=bool(asked.for_))


def _complete(extra: str, wanted: list[Requirement], packages: Packages, *, asked: bool) -> Finding:
    about = f"extra {extra}" if extra else _OWN
    do = f"pip install '{_OWN}[{extra}]'" if extra else f"pip install {_OWN}"
    lacks = sorted({one.name for one in wanted if one.name not in packages})
    have = {one.name: packages[one.name].version for one in wanted if one.name in packages}
    outside = [
        f"{one.name} is {have[one.name]}, wanted is {one.specifier}"
        for one in wanted
        if one.name in have and not one.specifier.contains(have[one.name], prereleases=True)
    ]
    told = [*outside, *([f"lacks {', '.join(lacks)}"] if lacks else [])]
    if (told and asked) or (outside and not lacks):
        return Finding("wrong", about, "; ".join(told), do)
    if lacks:  # nobody asked for it: half of an extra may be there for another one
        return Finding("note", about, told[-1], f"if you want it: {do}")
    return Finding("ok", about, ", ".join(f"{name} {number}" for name, number in have.items()))


def _imports(asked: DoctorOptions, packages: Packages) -> Iterator[Finding]:
    """Import the compiled modules of the chosen extras, and torchvision where it is installed."""
    wanted = _wanted(asked, packages)
    for name in sorted({"numpy", *wanted, *(["torchvision"] if "torch" in wanted else [])} & set(_COMPILED)):
        try:
            _module(_COMPILED[name])
        except Exception as error:  # a broken library raises what it likes
            told = f"it is installed and does not import: {_line(error)}"
            do = f"mend what the message names, else pip install --force-reinstall --no-deps {name}"
            if name == "torchvision":  # no extra asks for it
                yield Finding("note", "import torchvision", told, "take it from the index of this torch")
            else:
                yield Finding("wrong", f"import {_COMPILED[name]}", told, do)


def _module(name: str) -> Any:
    """Import a library; its prints and warnings go to stderr, or nowhere."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


def _gpus(asked: DoctorOptions, packages: Packages) -> Iterator[Finding]:
    """Check that torch, onnxruntime and the GPU match."""
    gpu = any(path.exists() for path in _GPUS)
    with contextlib.suppress(Exception):  # which is said by _imports
        if "torch" in _wanted(asked, packages):
            yield _torch(_module("torch"), gpu=gpu)
    found = {name: packages[name].version for name in RUNTIMES if name in packages}
    if len(found) > 1:
        told = f"{' and '.join(found)} are both installed, and overwrite each other's files"
        do = f"keep one: pip uninstall -y {' '.join(found)}, then pip install '{_OWN}[onnx]', or [gpu]"
        yield Finding("wrong", "onnxruntime", told, do)
    elif "onnxruntime-gpu" in found:
        if "CUDAExecutionProvider" not in (offered := _module("onnxruntime").get_available_providers()):
            do = "pip install --force-reinstall --no-deps onnxruntime-gpu"
            yield Finding("wrong", "onnxruntime", f"the files of onnxruntime-gpu offer {offered} alone", do)
    elif found and gpu:
        do = f"to use it: pip uninstall -y {' '.join(found)}, then pip install '{_OWN}[gpu]'"
        yield Finding("note", "onnxruntime", f"{' '.join(found)} runs on the CPU, and there is a GPU", do)


def _torch(torch: Any, *, gpu: bool) -> Finding:
    version, built = str(torch.__version__), torch.version.cuda
    if not built:
        do = "to use it, install the torch for its CUDA, from pytorch.org" if gpu else ""
        told = f"{version} runs on the CPU, and this host shows {'a' if gpu else 'no'} GPU"
        return Finding("note" if gpu else "ok", "torch", told, do)
    if torch.cuda.is_available():
        return Finding("ok", "torch", f"{version} uses {torch.cuda.device_count()} GPU")
    if gpu:
        why = "it finds none"
        try:
            torch.cuda.init()
        except Exception as error:  # the driver's own words
            why = _line(error)
        do = f"install a driver that CUDA {built} works with, or a torch for this driver's, from pytorch.org"
        return Finding("wrong", "torch", f"{version} does not use the GPU: {why}", do)
    cpu = f"torch=={version.partition('+')[0]} --index-url https://download.pytorch.org/whl/cpu"
    do = f"where no GPU will ever be: pip install --force-reinstall {cpu}"
    return Finding("note", "torch", f"{version} is for CUDA, some gigabytes, and there is no GPU", do)


def _torchserve(asked: DoctorOptions, packages: Packages) -> Iterator[Finding]:
    """Check Java, and the packages that TorchServe's own handlers import without declaring them."""
    if "torchserve" not in _chosen(asked, packages):
        return
    try:
        yield Finding("ok", "java", str(find_java()))
    except ServerError as error:
        what, _, do = str(error).partition("; ")
        yield Finding("wrong", "java", what, do)
    if lacks := [name for name in ("captum", "torchvision") if name not in packages]:
        told = f"its image and text handlers, such as image_classifier, import {' and '.join(lacks)}"
        yield Finding("note", "torchserve", told, f"to serve by them: pip install {' '.join(lacks)}")


def _model_store(asked: DoctorOptions, packages: Packages) -> Iterator[Finding]:
    if (path := asked.store) is None:
        return
    if not path.is_dir():
        yield Finding("wrong", "model store", f"{path} is no folder", "calib-serve pack -o makes one")
    elif open_to := _others_write(path):
        told = f"{path} may be written by {open_to}: an archive is code, and who writes one there runs it"
        yield Finding("wrong", "model store", told, f"chmod go-w {quote(str(path))}")
    else:
        yield _allowed("model store", path, os.R_OK | os.X_OK)


def _folder(asked: DoctorOptions, packages: Packages) -> Iterator[Finding]:
    """Check the folder of ``calib-serve serve``, TorchServe's tokens in it, and the keyring."""
    keyring = asked.keyring
    if (path := asked.folder) is not None and not path.is_dir():
        yield Finding("note", "folder", f"{path} is no folder", "nothing: calib-serve serve makes it")
    elif path is not None:
        yield _private("folder", path, os.W_OK | os.X_OK)
        yield from _room("folder", path)
        if (path / "key_file.json").exists():
            yield _secret("key file", path / "key_file.json")
        if keyring is None and (path / "keyring.json").exists():
            keyring = path / "keyring.json"
    if keyring is not None and keyring.exists():
        yield _secret("keyring", keyring)
    elif keyring is not None:
        do = f"calib-serve keys new {quote(str(keyring))}"
        yield Finding("wrong", "keyring", f"{keyring} is not there", do)


def _ledger(asked: DoctorOptions, packages: Packages) -> Iterator[Finding]:
    """Check the ledger where it is a file; a database is not asked."""
    where = asked.ledger or str((asked.folder and asked.folder / "ledger.sqlite") or "")
    path = Path(where)
    parent = path.absolute().parent
    if not where:
        return
    if "://" in where:
        yield Finding("note", "ledger", "no database is asked here", "calib-serve ledger check asks it")
        return
    if not parent.is_dir():
        yield Finding("note", "ledger", f"{parent} is not there", "nothing: it is made with the ledger")
        return
    point, kind = _mount(path)
    if _NETWORK.match(kind):
        told = f"{path} lies on {point}, a {kind} of the network, where SQLite's locks do not hold"
        yield Finding("wrong", "ledger", told, "put it on a disk of this host, or count in a database")
        return
    if path.exists():
        yield _private("ledger", path, os.R_OK | os.W_OK)
    yield _allowed("ledger's folder", parent, os.W_OK | os.X_OK)  # SQLite keeps a journal beside it
    yield from _room("ledger's folder", parent)


def _secret(about: str, path: Path) -> Finding:
    parent = path.absolute().parent
    if replaced := _others_write(parent):
        told = f"{path} lies in a folder that may be written by {replaced}, who can put another in its place"
        return Finding("wrong", about, told, f"chmod go-w {quote(str(parent))}")
    return _private(about, path, os.R_OK, 0o740 if os.environ.get(GROUP_READS) == "1" else 0o700)


def _private(about: str, path: Path, needed: int, mode: int = 0o700) -> Finding:
    """Check that only the owner may use a file or folder, beyond the rights in ``mode``."""
    has = stat.S_IMODE(path.stat().st_mode)
    if has & ~mode:
        told = f"{path} has mode {has:o}: others may use what is in it"
        return Finding("wrong", about, told, f"chmod {700 if path.is_dir() else 600} {quote(str(path))}")
    return _allowed(about, path, needed)


def _allowed(about: str, path: Path, needed: int) -> Finding:
    if os.access(path, needed):
        return Finding("ok", about, str(path))
    return Finding("wrong", about, f"{path} may not be used by this user", "run the program as its owner")


def _mount(path: Path) -> tuple[str, str]:
    """Find the mount point of a path, which need not exist, and the kind of its file system, if known."""
    real, best = os.path.realpath(path), ("", "")
    with contextlib.suppress(OSError):
        for line in _MOUNTS.read_text("utf-8", "replace").splitlines():
            before, _, after = line.partition(" - ")
            point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), before.split()[4])
            # Of two at one place the later one lies over the earlier.
            if (point in ("/", real) or real.startswith(point + "/")) and len(point) >= len(best[0]):
                best = (point, after.split()[0])
    return best


def _room(about: str, path: Path) -> Iterator[Finding]:
    free, least = shutil.disk_usage(path).free >> 20, LEAST_ROOM >> 20
    if free < least:
        yield Finding("wrong", about, f"{free} MiB are free at {path}", f"free up {least} MiB at least")


def _others_write(path: Path) -> str | None:
    """Name who may write into a folder beside its owner; None for a sticky folder, which protects files."""
    mode = path.stat().st_mode
    if mode & stat.S_ISVTX:
        return None
    return "anybody" if mode & 0o002 else "its group" if mode & 0o020 else None


_CHECKS = (_extras, _imports, _gpus, _torchserve, _model_store, _folder, _ledger)
