"""Who may import whom; and what the package costs before it does anything."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import calib_serve

ROOT = Path(calib_serve.__file__).parent
GROUND = {"errors", "bins", "metrics", "steps", "tensors", "npz", "manifest", "artifact", "receipts"}
HEAVY = ("torch", "onnx", "onnxruntime", "matplotlib", "scipy", "sklearn", "fastapi", "ts")


def room(path: Path) -> str:
    """The part of the house a file belongs to: ``fit`` for fit/scaling.py, ``bins`` for bins.py."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Every module a file imports, anywhere in it, by its full name."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import; one way to import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms_used(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("calib_serve.")}


def libraries(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


FILES = sorted(ROOT.rglob("*.py"))
MAY_USE = {
    **dict.fromkeys(GROUND, GROUND),
    "model": GROUND | {"model"},
    "data": GROUND | {"model"},
    "logits_file": GROUND,
    "fit": GROUND | {"fit", "model", "data"},
    "fuse": GROUND | {"fuse"},
    "watch": GROUND | {"watch"},
    "report": GROUND | {"report"},
    "serve": GROUND | {"serve", "watch", "fuse"},
}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_stands_only_on_what_lies_below(path: Path) -> None:
    own = room(path)
    if own in ("cli", "demo", "study", "__init__", "__main__"):
        return
    assert own in MAY_USE, f"{own} has no place in the house: give it one here and in docs/architecture.md"
    used = {name for name in rooms_used(path) if (ROOT / name).exists() or (ROOT / f"{name}.py").exists()}
    assert used <= MAY_USE[own], f"{path.name} imports {used - MAY_USE[own]}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_heavy_libraries_stay_in_their_rooms(path: Path) -> None:
    own, used = room(path), libraries(path)
    if own in GROUND:
        outside = used - set(sys.stdlib_module_names) - {"calib_serve", "numpy", "safetensors", "yaml"}
        assert not outside, f"the ground stands on numpy alone, {path.name} imports {outside}"
    if own == "watch":
        assert not used & {"torch", "onnx", "onnxruntime"}
    if own not in ("report", "cli", "demo"):
        assert "matplotlib" not in used
    if own != "demo" and path.name not in ("exporter.py", "app.py"):
        assert "prometheus_client" not in used
    if own != "serve":
        assert "ts" not in used


def run(code: str) -> list:
    """The JSON list that ``code`` prints in a fresh interpreter."""
    return json.loads(subprocess.check_output([sys.executable, "-c", code], text=True))


def test_importing_the_package_is_quick_and_brings_nothing_heavy() -> None:
    # Processor seconds: what it costs, whatever else the machine is doing.
    code = (
        "import sys, time, json; t = time.process_time(); import calib_serve;"
        f"print(json.dumps([time.process_time() - t, [m for m in {HEAVY!r} if m in sys.modules]]))"
    )
    seconds, heavy = min(run(code) for _ in range(3))
    assert heavy == []
    assert seconds < 0.2


def test_the_help_of_the_command_line_is_quick_and_brings_nothing_heavy() -> None:
    code = (
        "import sys, time, json, io, contextlib\nsys.argv = ['calib-serve', '--help']\n"
        "from calib_serve.cli import main\n"
        "try:\n    with contextlib.redirect_stdout(io.StringIO()) as out: main()\n"
        "except SystemExit as end: code = end.code\n"
        "assert 'demo' in out.getvalue()\n"
        f"print(json.dumps([time.process_time(), code or 0, [m for m in {HEAVY!r} if m in sys.modules]]))"
    )
    seconds, exit_code, heavy = min(run(code) for _ in range(3))
    assert exit_code == 0
    assert heavy == []
    assert seconds < 0.5


def test_the_public_names_are_sorted_and_there() -> None:
    assert sorted(calib_serve.__all__) == calib_serve.__all__
    for name in calib_serve.__all__:
        assert hasattr(calib_serve, name)
    assert calib_serve.__all__ == [
        "Artifact",
        "Bins",
        "CalibServeError",
        "Head",
        "InputShift",
        "Keyring",
        "Label",
        "LogitMap",
        "Mixture",
        "ProbTable",
        "Receipt",
        "__version__",
    ]
