"""Who may import whom, by which door; and what the package costs before it does anything."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import calib_serve
from calib_serve.core.faces import modules_of

ROOT = Path(calib_serve.__file__).parent
HEAVY = ("torch", "onnx", "onnxruntime", "matplotlib", "scipy", "sklearn", "fastapi", "ts")

FIRST_HEAVY = ("numpy", "pydantic", "safetensors", "yaml")
"""What the ground brings; still too much for ``--help``."""

STANDS_ON: dict[str, tuple[str, ...]] = {
    "core": (),
    "scores": ("core",),
    "metrics": ("core", "scores"),
    "artifact": ("core", "scores", "metrics"),
    "receipts": ("core", "artifact"),
    "models": ("core", "scores", "artifact"),
    "fit": ("core", "scores", "metrics", "artifact", "models"),
    "fuse": ("core", "scores", "artifact", "receipts", "models"),
    "ledger": ("core", "receipts"),
    "monitor": ("core", "metrics", "artifact", "receipts", "ledger"),
    "report": ("core", "scores", "metrics", "artifact"),
    "web": ("core", "metrics", "receipts", "monitor", "report"),
    "torchserve": (
        *("core", "scores", "artifact", "receipts", "models", "fit", "fuse", "ledger", "monitor"),
    ),
    "gateway": ("core", "scores", "artifact", "receipts", "monitor", "web"),
    "integrations": ("core", "scores", "metrics", "artifact", "receipts", "fit", "fuse", "monitor"),
    "papers": ("core", "scores", "metrics", "fit", "report"),
    "app": (
        *("core", "scores", "metrics", "artifact", "receipts", "models", "fit", "fuse", "ledger", "monitor"),
        *("report", "web", "torchserve", "gateway", "integrations", "papers"),
    ),
}
"""The rooms from the ground up, and those that each imports; a room imports itself by its inner modules."""

GROUND = ("core", "scores", "metrics", "artifact")
"""Numpy, scipy and the standard library, safetensors and yaml."""

ROOMS = tuple(STANDS_ON)
FACED = tuple(room for room in ROOMS if room not in ("core", "integrations", "app"))
"""Rooms whose names others take from the package. Core's modules are its face, and integrations' packages."""


def room(path: Path) -> str:
    """The room of a file: ``fit`` for fit/output/linear.py."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def froms(path: Path) -> set[tuple[str, str]]:
    """Every module and name that a file imports, anywhere in it; the name is empty for ``import module``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import; one way to import"
            found |= {(str(node.module), alias.name) for alias in node.names}
    return found


def ours(path: Path) -> set[tuple[tuple[str, ...], str]]:
    """The imports of this package: the module's parts below ``calib_serve``, and the name."""
    parts = {(tuple(module.split(".")), name) for module, name in froms(path)}
    return {(module[1:], name) for module, name in parts if module[0] == "calib_serve" and module[1:]}


def libraries(path: Path) -> set[str]:
    return {module.split(".")[0] for module, _ in froms(path)}


FILES = sorted(ROOT.rglob("*.py"))
INNER = [path for path in FILES if path.parent != ROOT]


def test_there_are_seventeen_rooms_and_no_file_between_them() -> None:
    assert sorted({room(path) for path in INNER} - {"_shipped"}) == sorted(ROOMS)
    assert {path.name for path in FILES if path.parent == ROOT} == {"__init__.py", "__main__.py"}


def test_rooms_are_listed_from_the_ground_up() -> None:
    for n, (name, others) in enumerate(STANDS_ON.items()):
        assert set(others) <= set(ROOMS[:n]), name


def test_the_architecture_page_has_these_rooms_and_arrows() -> None:
    page = (ROOT.parent / "docs" / "architecture.md").read_text()
    table: dict[str, tuple[str, ...]] = {}
    for name, others in re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", page, re.MULTILINE):
        table[name] = tuple(table) if others == "every other" else tuple(re.findall(r"`(\w+)`", others))
    assert list(table.items()) == list(STANDS_ON.items())


def test_each_room_imports_exactly_the_rooms_that_it_stands_on() -> None:
    found = {name: set[str]() for name in ROOMS}
    for path in INNER:
        found[room(path)] |= {module[0] for module, _ in ours(path)} - {room(path)}
    assert found == {name: set(others) for name, others in STANDS_ON.items()}


def test_a_room_takes_names_of_another_from_its_face() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {'.'.join(module)}, an inner module"
        for path in INNER
        for module, _ in ours(path)
        if module[0] != room(path) and module[0] in FACED and len(module) > 1
    ]
    assert not wrong


@pytest.mark.parametrize("name", FACED)
def test_a_face_names_what_its_modules_define_and_hides_no_module(name: str) -> None:
    for one, home in modules_of(ROOT / name / "__init__.pyi").items():
        path = ROOT.joinpath(*home.split(".")[1:])
        path = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        assert home.split(".")[1] in (name, *STANDS_ON[name]), one
        assert one in {word for node in ast.parse(path.read_text()).body for word in _bound(node)}, one
        # Whatever imports a module sets its name in the package, and would put it in the name's place.
        assert not (ROOT / name / f"{one}.py").exists(), one
        assert not (ROOT / name / one).is_dir(), one


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement binds."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return {node.name}
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def test_no_files_import_one_another_in_a_circle() -> None:
    homes = {name: modules_of(ROOT / name / "__init__.pyi") for name in FACED}
    arrows: dict[Path, set[Path]] = {}
    for path in INNER:
        arrows[path] = set()
        for module, name in ours(path):
            parts = module
            while len(parts) == 1 and name in homes.get(parts[0], {}):
                parts = tuple(homes[parts[0]][name].split(".")[1:])
            for target in (ROOT.joinpath(*parts, f"{name}.py"), ROOT.joinpath(*parts).with_suffix(".py")):
                if target.is_file() and target != path:
                    arrows[path].add(target)
    while leaves := [path for path, others in arrows.items() if not others & arrows.keys()]:
        for path in leaves:
            del arrows[path]
    assert not arrows


def test_heavy_libraries_stay_in_their_rooms() -> None:
    homes = {
        "ts": {"torchserve"},
        "matplotlib": {"report", "app"},
        **{engine: {"integrations", "scores"} for engine in ("ibis", "duckdb", "pyspark")},
        "sqlalchemy": {"ledger", "monitor"},
        "prometheus_client": {"web", "receipts", "gateway", "integrations", "app"},
    }
    ground = {"calib_serve", "numpy", "scipy", "safetensors", "yaml", *sys.stdlib_module_names}
    # Where a value of theirs is handed in; typing_extensions is for type checkers alone.
    optional = {"PIL", "pyarrow", "pandas", "ibis", "pyspark", "torch", "typing_extensions"}
    for path in INNER:
        own, used = room(path), libraries(path)
        assert own not in GROUND or used <= ground | optional, f"{path} imports {used - ground - optional}"
        assert not {library for library in used if own not in homes.get(library, {own})}, path
        assert own not in ("ledger", "monitor", "web") or not used & {"torch", "onnx", "onnxruntime"}, path


def loaded_by(code: str) -> set[str]:
    """The modules beyond the standard library that ``code`` loads in a fresh interpreter."""
    program = f"import sys\nbefore = set(sys.modules)\n{code}\nprint(*set(sys.modules) - before)"
    told = subprocess.check_output([sys.executable, "-c", program], text=True)
    return {name for name in told.split() if name.split(".")[0] not in sys.stdlib_module_names}


@pytest.mark.server
def test_importing_the_package_brings_nothing_but_itself() -> None:
    assert loaded_by("import calib_serve") == {"calib_serve", "calib_serve.core", "calib_serve.core.faces"}


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
    rooms = {name.split(".")[1] for name in loaded if name.startswith("calib_serve.")}
    assert rooms == {"app", "core"}
    assert not {name.split(".")[0] for name in loaded} & {*HEAVY, *FIRST_HEAVY}


@pytest.mark.server
def test_a_reporter_brings_neither_a_ledger_nor_metrics() -> None:
    loaded = loaded_by("from calib_serve import Reporter")
    heavy = {*HEAVY, *FIRST_HEAVY, "sqlalchemy", "httpcore", "prometheus_client"} - {"numpy"}
    assert not {name.split(".")[0] for name in loaded} & heavy
    modules = {name for name in loaded if name.startswith("calib_serve")}
    assert {name.split(".")[1] for name in modules if "." in name} == {"core", "receipts"}
    assert len(modules) <= 30, sorted(modules)  # each costs a worker of a server some milliseconds


@pytest.mark.server
def test_columns_of_arrow_become_arrays_without_pandas(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"p0": 0.25, "p1": 0.75, "label": 1}, {"p0": 0.5, "p1": 0.5, "label": 0}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "scores.parquet", row_group_size=1)
    read = f"from calib_serve import Scores\ns = Scores.read({str(tmp_path / 'scores.parquet')!r})\n"
    loaded = loaded_by(read + "assert s.probs[:].tolist() == [[0.25, 0.75], [0.5, 0.5]]\n")
    assert "pyarrow" in loaded
    assert "pandas" not in loaded  # its import takes longer than a million rows do


def test_the_public_names_are_sorted_and_there() -> None:
    assert sorted(calib_serve.__all__) == calib_serve.__all__
    assert {*modules_of(ROOT / "__init__.pyi"), "__version__"} == set(calib_serve.__all__)
    for name in calib_serve.__all__:
        assert hasattr(calib_serve, name)


def test_no_public_name_is_a_room() -> None:
    assert not set(ROOMS) & set(calib_serve.__all__)
