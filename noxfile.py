"""The versions that are supported, each proved by the tests that need them: `make versions`.

The ground and `watch` run on every Python; ONNX beside them on 3.11, with the oldest direct dependencies
that pyproject.toml allows. The newest releases of everything, torch among them, run all tests that start no
server, and what breaks is named.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import nox
import tomllib

GROUND = (
    *(f"artifact/test_{name}.py" for name in ("artifact", "contract", "kept_artifacts", "steps")),
    *("core/test_bins.py", "metrics", "receipts/test_receipts.py"),
)
WATCH = ("ledger", "monitor/drift", "monitor/test_watch_server.py", "web/test_app.py")
ONNX = (
    "fuse/test_onnx_files.py",
    "fuse/test_onnx_graphs.py",
    "fuse/test_onnx_passes.py",
    "fuse/test_onnx_refusals.py",
    "fuse/test_sessions.py",
)
TESTING = ("pytest", "pytest-xdist", "hypothesis", "httpx", "scikit-learn", "psutil", "psycopg[binary]")
PROJECT = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text())["project"]

nox.options.sessions = ["ground", "oldest", "newest"]
nox.options.reuse_existing_virtualenvs = True


def tests(*, onnx: bool) -> list[str]:
    """The test files of what these versions must carry."""
    return [f"tests/{name}" for name in (*GROUND, *WATCH, *(ONNX if onnx else ()))]


def lower_bounds(*extras: str) -> list[str]:
    """`numpy==1.26` for `numpy>=1.26`, of the base and these extras; markers are kept."""
    wanted = [*PROJECT["dependencies"], *(r for e in extras for r in PROJECT["optional-dependencies"][e])]
    return [re.sub(r"^([\w.\[\]-]+)>=", r"\1==", requirement) for requirement in wanted]


def pip_settings(session: nox.Session) -> list[str]:
    """Where pip's own files and environment look for releases, which uv does not read."""
    names = {"find-links": "--find-links", "extra-index-url": "--index", "index-url": "--default-index"}
    names["constraint"] = "--constraint"
    told = session.run("python", "-m", "pip", "config", "list", silent=True) or ""
    found = re.findall(r"^[\w:]+\.([\w-]+)='(.*)'$", str(told), re.MULTILINE)
    return [f"{names[name]}={one}" for name, value in found if name in names for one in value.split()]


def check(session: nox.Session, *more: str, onnx: bool = False) -> None:
    """Run them against the installed wheel."""
    options = ("-q", "-n", "logical", "--dist", "loadfile", "-p", "no:cacheprovider")
    session.run("pytest", *options, *more, *tests(onnx=onnx), *session.posargs)


@nox.session(python=["3.10", "3.12", "3.13", "3.14"])
def ground(session: nox.Session) -> None:
    """The numpy ground, receipts and watch on the other Pythons."""
    pinned = "constraints-3.10.txt" if session.python == "3.10" else "constraints.txt"
    session.install("-c", pinned, ".[watch]", *TESTING)
    check(session)


@nox.session(python="3.11")
def oldest(session: nox.Session) -> None:
    """The oldest numpy, onnx, onnxruntime, prometheus-client and others that pyproject.toml allows."""
    session.install(".[watch,onnx]", *lower_bounds("watch", "onnx"), *TESTING)
    # What is old meets indirect dependencies that are new, and these deprecate what it uses.
    check(session, "-W", "ignore::DeprecationWarning", onnx=True)


@nox.session(python="3.11")
def newest(session: nox.Session) -> None:
    """The newest release of everything that there is today, found and not pinned; see scripts/newest.py."""
    uv = str(Path(os.environ.get("VENV", ".venv"), "uv", "bin", "uv").absolute())
    python = str(Path(session.virtualenv.bin, "python"))
    asked = ("--upgrade", "--no-config", "--index-strategy=unsafe-best-match", *pip_settings(session))
    session.run(uv, "pip", "install", "--python", python, *asked, ".[dev]", *TESTING, external=True)
    session.run("python", "scripts/newest.py", python, uv)
    options = ("-q", "-n", "logical", "--dist", "loadfile", "-p", "no:cacheprovider", "-p", "newest")
    asked = ("-m", "unit or store", *(session.posargs or ("tests",)))
    session.run("pytest", *options, *asked, env={"PYTHONPATH": "scripts", "OMP_NUM_THREADS": "1"})


@nox.session(default=False)
def audit(session: nox.Session) -> None:
    """Known vulnerabilities of every pinned package; fails where the advisories cannot be asked."""
    session.install("pip-audit")
    options = ("--strict", "--no-deps", "--disable-pip")
    session.run("pip-audit", *options, "-r", "constraints.txt", *session.posargs)
    # Of the image of Triton, which has an older numpy.
    session.run("pip-audit", *options, "--require-hashes", "-r", "lock/triton.txt", *session.posargs)
