"""Workflows, forms, hooks, the citation, pages of versions and releases agree with the project."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tomllib
import yaml
from click.testing import CliRunner, Result
from locks import LOCKS, locked
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import calib_serve
from calib_serve.cli import app

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (GITHUB / "workflows").glob("*.yml")}
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
VERSION = calib_serve.__version__
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def script(name: str) -> ModuleType:
    """A file of scripts/, or the one of the root, imported."""
    path = next(one for one in (ROOT / "scripts" / f"{name}.py", ROOT / f"{name}.py") if one.is_file())
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- workflows, forms and hooks --------------------------------------------------------------------


def steps() -> list[dict[str, Any]]:
    return [step for flow in WORKFLOWS.values() for job in flow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", sorted((GITHUB / "workflows").glob("*.yml"))),
        ("vendor.github-actions", sorted((GITHUB / "actions").glob("*/action.yml"))),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        ("vendor.dependabot", [GITHUB / "dependabot.yml"]),
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_a_file_is_valid_by_its_published_schema(schema: str, files: list[Path], tmp_path: Path) -> None:
    if importlib.util.find_spec("check_jsonschema") is None:
        assert os.environ.get("CI") != "true", "check-jsonschema is not installed, and CI must not skip"
        pytest.skip("check-jsonschema is not installed: make setup")
    broken = tmp_path / files[0].name
    broken.write_text("nonsense: [1]\n")
    from check_jsonschema import main

    def check(*paths: Path) -> Result:
        return CliRunner().invoke(main, ["--builtin-schema", schema, *map(str, paths)])

    done = check(*files)
    assert done.exit_code == 0, done.output
    assert check(broken).exit_code == 1


def test_every_target_and_program_that_a_workflow_calls_is_there() -> None:
    matrix = WORKFLOWS["nightly"]["jobs"]["nightly"]["strategy"]["matrix"]["target"]
    said = "\n".join(step.get("run", "") for step in steps())
    targets = {*matrix, *re.findall(r"\bmake ([a-z-]+)", said)}
    assert {"check", "test", "versions", "dist", "release", "nightly", "bench-quick", "audit"} <= targets
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert targets <= known
    assert known & {"nightly", "bench-quick", "mutants", "coverage", "audit"} == set(matrix)
    assert ".ci/run" in said
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_continuous_integration_runs_every_python_that_is_promised() -> None:
    noxfile = (ROOT / "noxfile.py").read_text()
    (ground,) = re.findall(r"@nox.session\(python=(\[.+\])\)\ndef ground", noxfile)
    others = set(re.findall(r"\d\.\d+", ground))
    promised = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)}
    assert promised == others | {"3.11"}  # which the locks are for
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert {f"3.{minor}" for minor in range(14) if f"3.{minor}" in allowed} == promised
    job = WORKFLOWS["ci"]["jobs"]["versions"]
    on_311 = re.findall(r'@nox.session\(python="3.11"\)\ndef (\w+)', noxfile)
    assert set(job["strategy"]["matrix"]["session"]) == {*on_311, *(f"ground-{one}" for one in others)}
    (python,) = (
        step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", "")
    )
    assert set(python.split()) == promised
    assert python.split()[-1] == "3.11"


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


def test_forms_ask_for_what_the_doctor_prints_and_there_is_one() -> None:
    named = {form.stem: form.read_text() for form in FORMS}
    assert set(named) == {"bug", "feature", "question"}
    assert all("`calib-serve doctor`" in named[one] for one in ("bug", "question"))
    assert "doctor" in {command.name for command in app.registered_commands}


def test_hooks_are_of_tools_that_make_installs_and_fetch_nothing() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    developing = {canonicalize_name(package) for package, _, _ in locked(LOCKS["dev"])}
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        place, _, tool = hook["entry"].split()[0].rpartition("/")
        assert place == ".venv/bin"
        assert tool in developing


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


def test_a_version_is_held_to_the_python_that_it_was_tested_on() -> None:
    merged = script("user_constraints").merged({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "1", "d": "4"})
    assert merged == [
        "a==1",
        'b==2 ; python_version >= "3.11"',
        'b==1 ; python_version < "3.11"',
        'c==3 ; python_version >= "3.11"',
        'd==4 ; python_version < "3.11"',
    ]


def test_the_page_of_installing_weighs_every_extra() -> None:
    rows = re.findall(r"^\| (\S+) \| [\d,]+ \| \d+ \|$", (ROOT / "docs/how-to/install.md").read_text(), re.M)
    extras = {f"`{name}`" for name in PROJECT["optional-dependencies"] if name not in ("docs", "dev")}
    assert set(rows) == {"(none)"} | extras


def test_links_of_the_readme_are_led_to_the_tag_and_others_are_left() -> None:
    text = '[![a](./p.svg)](d.md#x) ![b](q.png) [c](https://e.org) [d](#e) <img src="r.png"> [f](LICENSE)'
    at = "https://host/us/it"
    assert script("hatch_build").absolute(text, at, "v1") == (
        f"[![a]({at}/raw/v1/p.svg)]({at}/blob/v1/d.md#x) ![b]({at}/raw/v1/q.png) [c](https://e.org) [d](#e) "
        f'<img src="{at}/raw/v1/r.png"> [f]({at}/blob/v1/LICENSE)'
    )


def test_the_page_of_support_names_the_versions_that_are_tested() -> None:
    page = (ROOT / "docs" / "support.md").read_text()
    (torch,) = {version.split("+")[0] for package, version, _ in locked(LOCKS["torch"])}
    (lowest,) = [
        one.partition(">=")[2]
        for one in PROJECT["optional-dependencies"]["torch"]
        if one.startswith("torch>")
    ]
    assert f"| torch | {torch.rpartition('.')[0]} | everything; {lowest} is the lowest" in page
    (torchserve,) = [
        one for one in PROJECT["optional-dependencies"]["torchserve"] if one.startswith("torchserve")
    ]
    assert f"| TorchServe | {torchserve.partition('==')[2]}, its last |" in page
    images = (ROOT / "deploy" / "compose.yaml").read_text() + (
        ROOT / "deploy" / "triton" / "Dockerfile"
    ).read_text()
    for image, said in (("prometheus:v", "2.55.1"), ("grafana:", "11.6.0"), ("tritonserver:", "24.08")):
        assert f"{image}{said}" in images
        assert said in page
    for tool, said in (("triton", "nvidia-pytriton 0.7.0"), ("kserve", "0.21.0")):
        assert said.rpartition(" ")[2] in (ROOT / "lock" / "tools" / f"{tool}.txt").read_text()
        assert said in page


# --- releases --------------------------------------------------------------------------------------


def test_the_citation_is_of_this_version_and_tells_where_each_paper_is() -> None:
    assert CITATION["version"] == calib_serve.__version__
    papers = CITATION["references"]
    assert len(papers) == 5
    assert all(paper["url"].startswith("https://") for paper in papers)
    assert all(re.fullmatch(r"10\.\d{4,}/\S+", paper["doi"]) for paper in papers if "doi" in paper)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of one commit that could be released."""
    for name in (
        "CITATION.cff",
        "pyproject.toml",
        "calib_serve/__init__.py",
        "scripts/release.sh",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "scripts" / "release_notes.py", tmp_path / "scripts")
    replace(tmp_path / "pyproject.toml", r"https://example\.org/\S+?\"", 'https://host/us/it"')
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION}, 2026-01-02\n\n- New.\n")
    replace(tmp_path / "CITATION.cff", r"(?m)^repository-code: .+", "repository-code: https://host/us/it")
    replace(tmp_path / "CITATION.cff", r"(?m)^(# )?date-released.+", "date-released: 2026-01-02")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    return tmp_path


def replace(path: Path, pattern: str, by: str) -> None:
    text, changed = re.subn(pattern, by, path.read_text(), count=1)
    assert changed == 1, pattern
    path.write_text(text)


def git(folder: Path, *words: str) -> None:
    who = (
        "-c",
        "user.name=n",
        "-c",
        "user.email=e@host",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "tag.gpgsign=false",
    )
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def checked(folder: Path) -> tuple[int, str]:
    """What ``scripts/release.sh --check`` says."""
    done = subprocess.run(
        [folder / "scripts" / "release.sh", "--check"],
        env=os.environ | {"VENV": sys.prefix},
        check=False,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_clean_commit_whose_files_agree_can_be_released_also_by_its_own_tag(checkout: Path) -> None:
    assert checked(checkout) == (0, f"{calib_serve.__version__} can be released\n")
    git(checkout, "tag", f"v{calib_serve.__version__}")
    assert checked(checkout)[0] == 0


def test_a_commit_beside_the_tag_and_changes_that_are_not_committed_are_refused(checkout: Path) -> None:
    git(checkout, "tag", f"v{calib_serve.__version__}")
    (checkout / "new").touch()
    code, said = checked(checkout)
    assert (code, "commit or stash first" in said) == (1, True)
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "two")
    code, said = checked(checkout)
    assert (code, "the tag of another commit" in said) == (1, True)


@pytest.mark.parametrize(
    ("file", "pattern", "by", "told"),
    [
        ("CHANGELOG.md", r"(?m)^## .+, 2026-01-02$", f"## {VERSION}, unreleased", "CHANGELOG.md begins with"),
        (
            "CHANGELOG.md",
            r"\Z",
            f"\n## {VERSION}, 2025-01-01\n",
            f"has two sections of {VERSION}: make them one",
        ),
        ("CHANGELOG.md", r"2026-01-02", "2026-01-03", "date-released 2026-01-02: make it 2026-01-03"),
        ("CITATION.cff", r"(?m)^version: .+$", "version: 9.9.9", "CITATION.cff has version 9.9.9"),
        ("CITATION.cff", r"(?m)^date-released.+$", "", "CITATION.cff has date-released None"),
        ("CITATION.cff", r"us/it", "us/other", "make it https://host/us/it"),
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


def test_the_notes_of_a_release_are_the_newest_section_alone(checkout: Path) -> None:
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text(
        "# Changelog\n\nHead.\n\n## 0.2.0, 2026-01-02\n\n- New.\n\n## 0.1.0, 2025-01-02\n\n- Old.\n"
    )
    assert script("release_notes").newest_section(checkout) == ("0.2.0, 2026-01-02", "- New.\n")
