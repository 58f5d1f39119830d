"""Workflows, lists of files and the constraints for users agree with the project."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from locks import LOCKS, locked
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
MUTANTS = ROOT / "scripts" / "mutants"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (GITHUB / "workflows").glob("*.yml")}


def steps() -> list[dict[str, Any]]:
    return [step for flow in WORKFLOWS.values() for job in flow["jobs"].values() for step in job["steps"]]


def test_actions_are_pinned_by_commit_and_may_do_no_more_than_they_must() -> None:
    for path in (GITHUB / "workflows").glob("*.yml"):
        for action in re.findall(r"uses: (.+)", path.read_text()):
            if action.startswith("./"):
                assert (ROOT / action / "action.yml").is_file()
                continue
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    publishing = WORKFLOWS["release"]["jobs"]["pypi"]
    assert publishing["permissions"] == {"id-token": "write"}
    assert not [step for step in steps() if "secrets." in str(step)]


def pins(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.split("==")[0]: line.split("==")[1].split(" ")[0] for line in lines}


def test_constraints_for_users_are_of_the_versions_that_are_tested_and_leave_out_none() -> None:
    text = (ROOT / "calib_serve" / "constraints.txt").read_text()
    for python, tested in (("<", "constraints-3.10.txt"), (">=", "constraints.txt")):
        other = {"<": ">=", ">=": "<"}[python]
        ours = pins("\n".join(line for line in text.splitlines() if f"version {other} " not in line))
        assert ours.items() <= pins((ROOT / tested).read_text()).items()
        if python == ">=":
            brought = {package for package, _, _ in locked(LOCKS["all"])} | {"torch", "onnxruntime-gpu"}
            assert brought <= {canonicalize_name(name) for name in ours}


def test_the_files_that_are_mutated_and_their_tests_are_there() -> None:
    named = set(yaml.safe_load((MUTANTS / "equivalent.yaml").read_text()))
    for target in yaml.safe_load((MUTANTS / "targets.yaml").read_text())["targets"].values():
        named |= {*target["modules"], *target.get("except", ())}
        named |= {
            test.split("::")[0] for test in target["tests"] if test.startswith(("calib_serve/", "tests/"))
        }
    assert not [name for name in sorted(named) if not any(ROOT.glob(name))]


def test_equivalent_mutants_are_mutants_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    from mutants.operators import mutants_of

    for file, reasons in yaml.safe_load((MUTANTS / "equivalent.yaml").read_text()).items():
        there = {mutant.key for mutant in mutants_of(ast.parse((ROOT / file).read_text()), file)}
        assert set(reasons) <= there, file


def test_the_tests_of_other_versions_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    noxfile = pytest.importorskip("noxfile", reason="nox, or tomllib of Python 3.11")
    assert not [name for name in noxfile.tests(onnx=True) if not (ROOT / name).exists()]


@pytest.mark.server
def test_a_failure_with_the_newest_packages_is_named_by_who_meets_it(tmp_path: Path) -> None:
    (tmp_path / "calib_serve").mkdir()
    (tmp_path / "calib_serve" / "__init__.py").write_text("import warnings\ndef f(): warnings.warn('old')\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "install.md").write_text(
        "| `tests/test_it.py::test_known` | a word | 2999-01-01 |\n"
        "| `tests/test_it.py::test_over` | a word | 2000-01-01 |\n"
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(
        "import warnings, calib_serve\n"
        "def test_ours(): calib_serve.f()\n"
        "def test_result(): assert 1 == 2\n"
        "def test_own(): warnings.warn('mine')\n"
        "def test_known(): warnings.warn('mine')\n"
        "def test_over(): warnings.warn('mine')\n"
    )
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(ROOT / "scripts" / "newest.py", tmp_path / "scripts")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "newest", "-p", "no:cacheprovider", "-W", "error"]
    env = {**os.environ, "PYTHONPATH": f"{Path(script).parent}:{tmp_path}"}

    def said(*names: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [*command, *names], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith(("user", "test "))]
        return done.returncode, lines

    code, lines = said("tests")
    assert code == 1
    assert [(line.split()[0], line.rpartition("_")[2]) for line in lines] == [
        ("user", "ours"),
        ("user", "result"),
        ("test", "own"),
        ("test", "over"),
        ("test", "known"),
    ]
    assert said("tests/test_it.py::test_known") == (0, [lines[-1]])
