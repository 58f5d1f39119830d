"""Workflows, forms, hooks, the citation, pages of versions and releases agree with the project."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from locks import LOCKS, locked
from packaging.utils import canonicalize_name

import calib_serve

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (GITHUB / "workflows").glob("*.yml")}
VERSION = calib_serve.__version__


def script(name: str) -> ModuleType:
    """A file of scripts/, or the one of the root, imported."""
    path = next(one for one in (ROOT / "scripts" / f"{name}.py", ROOT / f"{name}.py") if one.is_file())
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- workflows --------------------------------------------------------------------


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


# --- what users install ----------------------------------------------------------------------------


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


# --- releases --------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What could be released."""
    for name in ("CITATION.cff", "pyproject.toml", "calib_serve/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    replace(tmp_path / "pyproject.toml", r"https://example\.org/\S+?\"", 'https://host/us/it"')
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION}, 2026-01-02\n\n- New.\n")
    replace(tmp_path / "CITATION.cff", r"(?m)^repository-code: .+", "repository-code: https://host/us/it")
    replace(tmp_path / "CITATION.cff", r"(?m)^(# )?date-released.+", "date-released: 2026-01-02")
    return tmp_path


def replace(path: Path, pattern: str, by: str) -> None:
    text, changed = re.subn(pattern, by, path.read_text(), count=1)
    assert changed == 1, pattern
    path.write_text(text)


@pytest.mark.parametrize(
    ("file", "pattern", "by", "told"),
    [
        ("CHANGELOG.md", r"(?m)^## .+, 2026-01-02$", f"## {VERSION}, unreleased", "CHANGELOG.md begins with"),
        ("CHANGELOG.md", r"2026-01-02", "2026-01-03", "date-released 2026-01-02: make it 2026-01-03"),
        ("CITATION.cff", r"(?m)^version: .+$", "version: 9.9.9", "CITATION.cff has version 9.9.9"),
        ("pyproject.toml", r"https://host/us/it", "https://example.org/it", "write where the project lives"),
        ("calib_serve/__init__.py", r"(?m)^__version__ = .+$", '__version__ = "9.9.9"', "make it 9.9.9"),
    ],
)
def test_each_disagreement_is_told_with_what_to_do(
    checkout: Path, file: str, pattern: str, by: str, told: str
) -> None:
    disagreements = script("release_notes").disagreements
    assert disagreements(checkout) == []
    replace(checkout / file, pattern, by)
    assert told in "\n".join(disagreements(checkout))
