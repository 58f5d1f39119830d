"""The program that breaks code on purpose: what it changes, what tests see of it, and what none sees."""

from __future__ import annotations

import ast
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
HERE = SCRIPTS / "mutants"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def told(source: str) -> list[str]:
    from mutants.operators import mutants_of

    return [one.key for one in mutants_of(ast.parse(source), "x.py")]


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("a < b", ["a < b -> a <= b", "a < b -> a > b"]),
        ("a - b", ["a - b -> a + b"]),
        ("a and b", ["a and b -> a or b", "a and b -> b", "a and b -> a"]),
        ("x = -a", ["-a -> a"]),
        ("x = not a", ["not a -> a"]),
        ("x = 1, 2.5, True, 'kind'", [
            "(1, 2.5, True, 'kind') -> (2.5, 1, True, 'kind')",
            "(1, 2.5, True, 'kind') -> (1, True, 2.5, 'kind')",
            "(1, 2.5, True, 'kind') -> (1, 2.5, 'kind', True)", "1 -> 0", "2.5 -> 5.0", "True -> False",
            "'kind' -> 'XXkind'",
        ]),
        ("f(a, b, key=c)", [
            "f(a, b, key=c) -> pass", "f(a, b, key=c) -> f(b, a, key=c)", "f(a, b, key=c) -> f(a, b)",
        ]),
        ("x = a if b else c", ["a if b else c -> c if b else a"]),
        ("x = e.node('Sub', [a, b])", [
            "e.node('Sub', [a, b]) -> e.node([a, b], 'Sub')", "'Sub' -> 'XXSub'", "[a, b] -> [b, a]",
        ]),
        ("x = e.node('Add', [a, b])", ["e.node('Add', [a, b]) -> e.node([a, b], 'Add')", "'Add' -> 'XXAdd'"]),
        ("x = e.number(2.5, 'scale')", ["e.number(2.5, 'scale') -> e.number('scale', 2.5)", "2.5 -> 5.0"]),
        ("x = max(a, b)", ["max(a, b) -> min(a, b)"]),
        ("self.x = a", ["self.x = a -> pass"]),
        ("x += a", ["x += a -> x -= a", "x += a -> pass"]),
        ("raise KeyError('a sentence', 7)", ["raise KeyError('a sentence', 7) -> pass"]),
        ("raise Refused('code', 'words')", ["raise Refused('code', 'words') -> pass", "'code' -> 'XXcode'"]),
        ("x = [a for a in b if a]", ["if a -> no condition"]),
        ("if a: b", ["if a -> if not a"]),
        ("f'says {a}'", ["{a} -> '0'"]),
        ("for a in b:\n  continue", ["continue -> break"]),
        (
            "'''A docstring.'''\n__all__ = ['b']\nlog.info('c', 1)\nx: Literal['d'] = zip(a, strict=True)",
            [],
        ),
    ],
)  # fmt: skip
def test_each_small_mistake_is_made_and_nothing_that_no_test_is_asked_to_see(
    source: str, changes: list[str]
) -> None:
    found = [key.removeprefix("module: ") for key in told(source)]
    assert [one for one in found if not one.endswith(" -> pass")] == [
        one for one in changes if not one.endswith(" -> pass")
    ]
    assert {one for one in changes if one.endswith(" -> pass")} <= {*found}


def test_a_tree_is_as_it_was_after_a_mutant() -> None:
    from mutants.operators import applied, mutants_of

    source = "def f(a, b=2):\n    x = [c for c in a if c > b]\n    x[0] = -1\n    return x, sum(x, start=b)\n"
    tree = ast.parse(source)
    before = ast.dump(tree)
    for mutant in mutants_of(tree, "x.py"):
        with applied(mutant):
            assert ast.dump(tree) != before
            compile(tree, "x.py", "exec")
        assert ast.dump(tree) == before


TOY = '''
LIMIT = 10

def kept(n, *, most=LIMIT):
    """How many are kept.

    >>> kept(3)
    3
    """
    return n if n < most else most

def counted(n):
    i = 0
    while i < n:
        i += 1
    return i

class Box:
    @property
    def size(self):
        return 2 + 2

def nobody():
    return 1
'''
TESTS = """
from toy import kept, counted, Box
import pytest

@pytest.fixture(scope="module")
def box():
    return Box()

def test_no_more_than_ten():
    assert kept(11) == 10

def test_all_are_counted():
    assert counted(3) == 3

def test_a_box_has_four(box):
    assert box.size == 4
"""


@pytest.mark.server
@pytest.mark.nightly
def test_mutants_are_killed_by_tests_that_run_them_and_survivors_are_told(tmp_path: Path) -> None:
    from mutants.operators import mutants_of

    root, work = tmp_path / "root", tmp_path / "work"
    root.mkdir()
    work.mkdir()
    (root / "toy.py").write_text(TOY)
    (root / "test_toy.py").write_text(TESTS)
    (root / "pytest.ini").write_text("[pytest]\naddopts = --doctest-modules\nmarkers = server: none here\n")
    keys = [one.key for one in mutants_of(ast.parse(TOY), "toy.py")]
    results = work / "results.jsonl"
    results.touch()
    spec = {
        "root": str(root), "work": str(work), "results": str(results), "tests": ["toy.py", "test_toy.py"],
        "preload": ["numpy"], "mutants": [("toy.py", key) for key in keys], "least": 1.0,
    }  # fmt: skip
    (work / "spec.json").write_text(json.dumps(spec))
    done = subprocess.run(
        [sys.executable, "-m", "mutants.worker", str(work / "spec.json")],
        cwd=root, env=os.environ | {"PYTHONPATH": f"{SCRIPTS}{os.pathsep}{root}"}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = {one["key"]: one for one in map(json.loads, results.read_text().splitlines())}
    assert {*found} == {*keys}
    outcome = {key: one["outcome"] for key, one in found.items()}
    assert {key for key, one in outcome.items() if one == "survived"} == {
        "kept: n < most -> n <= most", "counted: 0 -> 1", "nobody: return 1 -> return None", "nobody: 1 -> 0",
    }  # fmt: skip
    assert found["module: 10 -> 11"]["how"] == "imported"
    assert found["counted: i += 1 -> pass"]["by"] == "time limit"
    assert found["Box.size: 2 + 2 -> 2 - 2"]["by"] == "test_toy.py::test_a_box_has_four"
    assert found["nobody: 1 -> 0"]["by"] == "no test runs it"
    assert (root / "toy.py").read_text() == TOY  # a mutant is only ever in memory


def test_every_equivalent_mutant_is_one_and_has_its_reason() -> None:
    from mutants.operators import mutants_of

    for file, reasons in yaml.safe_load((HERE / "equivalent.yaml").read_text()).items():
        keys = {one.key for one in mutants_of(ast.parse((ROOT / file).read_text()), file)}
        assert {*reasons} <= keys, f"no such mutants of {file}: {sorted({*reasons} - keys)}"
        assert all(len(reason) > 20 for reason in reasons.values())


def test_targets_are_of_modules_and_tests_that_there_are() -> None:
    for name, target in yaml.safe_load((HERE / "targets.yaml").read_text())["targets"].items():
        for pattern in [*target["modules"], *target.get("except", [])]:
            assert list(ROOT.glob(pattern)), f"{name}: {pattern} matches nothing"
        for path in itertools.takewhile(lambda word: not word.startswith("-"), target["tests"]):
            assert list(ROOT.glob(path)), f"{name}: there is no {path}"
