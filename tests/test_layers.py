"""Who may import whom; and what the package costs before it does anything."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import calib_serve

ROOT = Path(calib_serve.__file__).parent
HEAVY = ("torch", "onnx", "onnxruntime", "matplotlib", "scipy", "sklearn", "fastapi", "ts")

FIRST_HEAVY = ("numpy", "pydantic", "safetensors", "yaml")
"""What the ground brings; still too much for ``--help``."""

GROUND = (
    "errors",
    "options",
    "distributions",
    "signals",
    "forks",
    "logs",
    "arrays",
    "files",
    "addresses",
    "names",
    "words",
    "bins",
    "nonces",
    "oip",
    "receipts",
    "engines",
    "scores",
    "metrics",
    "verdicts",
    "pictures",
    "artifact",
    "data",
)
"""Each stands on those before it alone: numpy, scipy and the standard library, safetensors and yaml."""

MAY_USE: dict[str, tuple[str, ...]] = {
    **{room: GROUND[:i] for i, room in enumerate(GROUND)},
    "model": GROUND,
    "fit": (*GROUND, "model"),
    "seam": GROUND,
    "pages": GROUND,
    "fuse": (*GROUND, "seam"),
    "watch": (*GROUND, "pages"),
    "reporter": (*GROUND, "watch"),
    "asgi": (*GROUND, "watch"),
    "collect": (*GROUND, "watch"),
    "gateway": (*GROUND, "watch", "reporter"),
    "mlflow": (*GROUND, "watch", "fuse", "reporter"),
    "report": (*GROUND, "pages"),
    "monitoring": GROUND,
    "study": (*GROUND, "model", "fit", "report"),
    "audit": (*GROUND, "watch"),
    "serve": (*GROUND, "seam", "fit", "watch", "reporter", "fuse", "refitting"),
    "archives": (*GROUND, "seam", "fit", "fuse"),
    "contracts": (*GROUND, "watch"),
    "refitting": (*GROUND, "fit"),
    "promotion": (*GROUND, "fuse", "watch", "serve"),
    "sklearn": (*GROUND, "fit", "fuse"),
    "demo": (*GROUND, "model", "fit", "fuse", "watch", "report", "reporter", "serve", "refitting"),
    "doctor": (*GROUND, "serve"),
    "quickstart": (*GROUND, "monitoring"),
    "app": (
        *(*GROUND, "model", "fit", "fuse", "watch", "report", "study", "doctor", "quickstart", "archives"),
        *("contracts", "refitting", "audit", "reporter", "collect", "gateway", "serve"),
        *("monitoring", "promotion"),
    ),
}
"""Who stands on whom. A room may use itself, too."""


def room(path: Path) -> str:
    """The part of the house a file belongs to: ``fit`` for fit/output/linear.py, ``bins`` for bins.py."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
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


@cache
def modules_used(path: Path) -> set[tuple[str, ...]]:
    """The modules of this package that a file imports, as parts below ``calib_serve``."""
    found = set()
    for name in imports(path):
        parts = name.split(".")[1:] if name.startswith("calib_serve.") else []
        while parts and not (
            ROOT.joinpath(*parts).is_dir() or ROOT.joinpath(*parts).with_suffix(".py").is_file()
        ):
            parts.pop()
        if parts:
            found.add(tuple(parts))
    return found


def libraries(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


FILES = sorted(ROOT.rglob("*.py"))
ROOMS = [path for path in FILES if room(path) not in ("__init__", "__main__")]


def test_a_room_stands_only_on_what_lies_below_and_takes_it_from_the_folder_that_holds_it() -> None:
    wrong = []
    for path in ROOMS:
        own, used = room(path), modules_used(path)
        assert own in MAY_USE, (
            f"{own} has no place in the house: give it one here and in docs/architecture.md"
        )
        above = {parts[0] for parts in used} - {*MAY_USE[own], own}
        wrong += [f"{path.relative_to(ROOT)} imports {one}, which stands above" for one in above]
        inner = [parts for parts in used if parts[0] != own]
        deep = {".".join(p) for p in inner if len(p) > 2 or p[-1].startswith("_")}
        deep -= {"seam._form"}
        wrong += [f"{path.relative_to(ROOT)} imports {one}, an inner file" for one in deep]
    assert not wrong


def test_heavy_libraries_stay_in_their_rooms() -> None:
    homes = {
        "ts": {"serve", "seam"},
        "matplotlib": {"report", "demo"},
        **{engine: {"audit", "engines"} for engine in ("ibis", "duckdb", "pyspark")},
    }
    ground = {"calib_serve", "numpy", "scipy", "safetensors", "yaml", *sys.stdlib_module_names}
    optional = {"PIL", "pyarrow", "pandas", "ibis", "pyspark"}
    for path in FILES:
        own, used = room(path), libraries(path)
        assert own not in GROUND or used <= ground | optional, f"{path} imports {used - ground - optional}"
        assert not {library for library in used if own not in homes.get(library, {own})}, path
        assert own != "watch" or not used & {"torch", "onnx", "onnxruntime"}, path
        if own not in ("demo", "reporter") and path.name not in ("exporter.py", "app.py"):
            assert "prometheus_client" not in used, path


def loaded_by(code: str) -> set[str]:
    """The modules beyond the standard library that ``code`` loads in a fresh interpreter."""
    program = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*set(sys.modules) - before)"
    told = subprocess.check_output([sys.executable, "-c", program], text=True)
    return {name for name in told.split() if name.split(".")[0] not in sys.stdlib_module_names}


@pytest.mark.server
def test_importing_the_package_brings_nothing_but_itself() -> None:
    assert loaded_by("import calib_serve") == {"calib_serve"}


@pytest.mark.server
def test_a_reporter_brings_what_it_counts_and_sends_with_and_neither_a_watch_nor_an_artifact() -> None:
    loaded = loaded_by("from calib_serve import Reporter")
    heavy = {*HEAVY, *FIRST_HEAVY, "sqlalchemy", "httpcore", "prometheus_client"} - {"numpy"}
    assert not {name.split(".")[0] for name in loaded} & heavy
    own = sorted(name for name in loaded if name.split(".")[0] == "calib_serve")
    above = ("artifact", "scores", "metrics", "ledger", "watch.service", "watch.intake", "watch.http")
    assert not [name for name in own if any(part in f"{name}." for part in (f".{one}." for one in above))]
    assert len(own) <= 27, own  # each costs a worker of a server some milliseconds


@pytest.mark.server
def test_the_help_of_the_command_line_brings_no_room_but_its_own_and_nothing_heavy() -> None:
    code = (
        "import io, contextlib\nsys.argv = ['calib-serve', '--help']\n"
        "from calib_serve.app import main\n"
        "try:\n    with contextlib.redirect_stdout(io.StringIO()) as out: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'quickstart' in out.getvalue()"
    )
    loaded = loaded_by(code)
    assert {name.split(".")[1] for name in loaded if name.startswith("calib_serve.")} == {"app"}
    assert not {name.split(".")[0] for name in loaded} & {*HEAVY, *FIRST_HEAVY}


def test_type_checkers_see_each_public_name_where_it_is_imported_from() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    (hidden,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in hidden.body for alias in node.names}
    assert seen == {name: f"calib_serve.{room}" for name, room in calib_serve._ROOM.items()}
    assert {*seen, "__version__"} == set(calib_serve.__all__)


def test_the_public_names_are_sorted_and_there() -> None:
    assert sorted(calib_serve.__all__) == calib_serve.__all__
    for name in calib_serve.__all__:
        assert hasattr(calib_serve, name)


def test_no_public_name_is_a_room() -> None:
    # Whatever imports a room sets its name in the package, and would put the module in the function's place.
    assert not {room.name for room in pkgutil.iter_modules(calib_serve.__path__)} & set(calib_serve.__all__)
