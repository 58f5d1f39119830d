"""A process with little memory, in which readers meet hostile files.

    python tests/attacks/cage.py run READER FILE        what becomes of it
    python tests/attacks/cage.py keep READER FILE NAME  put it into the corpus

``Cage`` keeps one such process at work: an input that crashes it, hangs it or makes it swell is told as
such, and the next one meets a fresh process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

__all__ = ["CORPUS", "Cage", "Fate"]

CORPUS = Path(__file__).parent / "corpus"  # attacks on formats of others; ours are made
MEMORY = 512 << 20  # bytes beyond what the program has when it starts
_SUPPORT = Path(__file__).parents[1] / "support"


@dataclass(frozen=True)
class Fate:
    """``kind``: "fine", "refused" (by an error of ours) or "defect"; ``told``: the error."""

    kind: str
    told: str = ""
    grown: int = 0  # bytes that were needed at the most


class Cage:
    """Runs readers in the caged process; a context manager."""

    def __init__(self, *, patience: float = 120.0) -> None:
        self._patience = patience  # seconds of the clock, after which it hangs
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="attacks-"))

    def __enter__(self) -> Cage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def files(self, reader: str) -> dict[str, Path]:
        """The attacks for a reader by their names: those that are kept, and those that are made."""
        made = self._folder / "made"
        if not made.exists():
            done = self.run("made.make", made)
            assert done.kind == "fine", done.told
        folders = [*CORPUS.iterdir(), *made.iterdir()]
        mine = [one for one in folders if reader in one.name.split("+")]
        return {path.name: path for folder in mine for path in sorted(folder.iterdir())}

    def feed(self, reader: str, content: bytes, ending: str = "") -> Fate:
        """What becomes of a file of this content; ``ending``: of its name, with the dot."""
        path = self._folder / f"input{ending}"
        path.write_bytes(content)
        return self.run(reader, path)

    def run(self, reader: str, path: Path) -> Fate:
        """What becomes of a file."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{reader}\t{path}\n".encode())
        process.stdin.flush()
        if not select.select([process.stdout], [], [], self._patience)[0]:
            self._end()
            return Fate("defect", f"it hung for {self._patience:.0f} s")
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self._end()
            return Fate("defect", f"the process ended with {code}")
        fate = Fate(**json.loads(line))
        if fate.grown > MEMORY:
            return Fate("defect", f"it took {fate.grown >> 20} MiB", fate.grown)
        return fate

    def _start(self) -> subprocess.Popen[bytes]:
        paths = [str(_SUPPORT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        # What a caged process leaves goes with the cage.
        environment = {**os.environ, **threads, "TMPDIR": str(self._folder), "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the cage did not open"
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]


def serve() -> None:
    """The caged side: a line in, reader and path; a line out, what became of it."""
    import openers  # noqa: F401 - what it imports is no cost of an input
    from readers import warm_up

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    warm_up()
    limit = _memory("VmSize") + 2 * MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        reader, path = line.rstrip("\n").split("\t")
        print(json.dumps(_meet(reader, Path(path)).__dict__), file=answers, flush=True)


def _meet(reader: str, path: Path) -> Fate:
    from calib_serve.core.errors import CalibServeError

    read = _reader(reader)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    try:
        read(path)
        kind, told = "fine", ""
    except CalibServeError as error:
        kind, told = "refused", f"{type(error).__name__}: {error}"[:300]
    except BaseException as error:  # whatever else it is
        where = "".join(traceback.format_exception(error)[-6:])
        kind, told = "defect", f"{type(error).__name__}: {where}"[-3000:]
    return Fate(kind, told, max(0, _memory("VmHWM") - before))


def _reader(name: str) -> Callable[[Path], object]:
    """A name among the readers, ``open NAME`` among the openers, or ``module.name``."""
    from openers import OPENERS, READERS

    if name.startswith("open "):
        return OPENERS[name.removeprefix("open ")][1]
    module, dot, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function) if dot else READERS[name]


def _memory(what: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{what}:")[2].split()[0]) << 10


def main(arguments: list[str]) -> None:
    """The command line, as the module's docstring shows it."""
    match arguments:
        case ["serve"]:
            serve()
        case ["run", reader, file]:
            with Cage() as cage:
                print(cage.run(reader, Path(file).resolve()))
        case ["keep", reader, file, name]:
            (CORPUS / reader).mkdir(parents=True, exist_ok=True)
            print(shutil.copy(file, CORPUS / reader / f"{name}{Path(file).suffix}"))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
