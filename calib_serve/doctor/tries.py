"""Imports the modules of the chosen extras in a process of their own, and reads what became of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calib_serve.distributions import RUNTIMES
from calib_serve.doctor.world import World

__all__ = ["PACKAGES", "Tried", "tried"]

_SECONDS = 120
_ORT = ("onnx", "onnxruntime")
_OF: dict[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "onnx": _ORT,
    "gpu": _ORT,
    "sklearn": ("sklearn", *_ORT),
    "torchserve": ("torch", "ts"),
    "watch": ("pydantic", "uvicorn"),
    "gateway": ("pydantic", "uvicorn", "aiohttp", "grpc"),
    "audit": ("duckdb",),
    "kafka": ("confluent_kafka",),
    "files": ("pyarrow",),
    "hugging-face": ("torch",),
}
"""Modules with compiled parts, or that others hide: where these import, the extra works.

None of them writes a file when it is imported, as matplotlib and mlflow do.
"""

PACKAGES = {
    "sklearn": "scikit-learn",
    "ts": "torchserve",
    "grpc": "grpcio",
    "confluent_kafka": "confluent-kafka",
}
"""Where a module's package has another name."""


@dataclass(frozen=True)
class Tried:
    """What became of each module: facts, with "error" where it does not import; and what was printed."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    stderr: str = ""


def tried(extras: Sequence[str], world: World) -> Tried:
    """Numpy and the modules of the ``extras``, those whose packages are installed."""
    found = world.installed

    def is_there(module: str) -> bool:
        return any(
            one in found for one in (RUNTIMES if module == "onnxruntime" else (PACKAGES.get(module, module),))
        )

    wanted = dict.fromkeys(("numpy", *(name for extra in extras for name in _OF.get(extra, ()))))
    return _run(world, [name for name in wanted if is_there(name)])


def _run(world: World, modules: list[str]) -> Tried:
    program = str(Path(__file__).with_name("trial.py"))
    try:
        done = subprocess.run(
            [world.executable, "-I", "-B", program, json.dumps(world.packages), *modules],
            check=False,
            capture_output=True,
            timeout=_SECONDS,
            env=dict(world.environment),
            stdin=subprocess.DEVNULL,
        )
        out, stderr, ended = done.stdout, done.stderr, f"the process ended with code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        out, stderr = error.stdout or b"", error.stderr or b""
        ended = f"it had not done so after {_SECONDS} seconds"
    facts: dict[str, dict[str, Any]] = {}
    for line in out.decode("utf-8", "replace").splitlines():
        said = json.loads(line)
        if "begins" in said:
            facts[said["begins"]] = {"error": ended}  # unless it says more
        else:
            facts[said.pop("module")] = said
    if not facts and modules:
        facts = {name: {"error": ended} for name in modules}
    return Tried(facts, stderr.decode("utf-8", "replace"))
