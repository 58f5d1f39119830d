"""The projects that ``calib-serve quickstart`` writes do what their README says, installed from the wheel."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks, commands, inline_commands
from live_server import total
from sizes import nightly
from terminal import Terminal, http_ok, http_text
from test_docs import check_ours
from typer.testing import CliRunner

from calib_serve.cli import app
from calib_serve.data import load_data
from calib_serve.errors import InputError
from calib_serve.quickstart import KINDS, write_project

HEADS = {"torch": "train.py", "sklearn": "train.py", "logits": "scores.py"}


def write(folder: Path, *more: str) -> str:
    done = CliRunner().invoke(app, ["quickstart", str(folder), *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def followed(folder: Path, t: Terminal) -> list[str]:
    """Type every command of the README there, on ports of its own; what was typed."""
    for path in folder.glob("*.py"):
        path.write_text(t.here(path.read_text()))
    typed = []
    for block in blocks(folder / "README.md"):
        assert block.language == "console", "a command is shown after its prompt, and nothing else"
        for command in commands(block):
            t.type(command)
            typed.append(command)
    return typed


@pytest.mark.server
@pytest.mark.parametrize(
    "kind", ["logits", *(pytest.param(one, marks=nightly) for one in ("torch", "sklearn"))]
)
def test_a_project_does_what_its_readme_says(kind: str, installed: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path, installed) as t:
        t.type(f"calib-serve quickstart project --kind {kind}")
        shown = [line.strip() for line in t.output.splitlines() if line.startswith("  ")]
        t.type("cd project")
        typed = followed(tmp_path / "project", t)
        assert [*shown[1:]] == [command for command in typed if command in shown], "in that order"
        assert shown[0] == "cd project"
        assert "calibration report" in (tmp_path / "project" / "report.html").read_text()
        metrics = http_text(t.url(9300, "metrics"))
        sent = len((tmp_path / "project" / "labels.csv").read_text().splitlines()) - 1
        assert sent > 800
        assert total(metrics, "calib_predictions_total", model="digits") == sent
        assert total(metrics, "calib_feedback_total", model="digits") == sent
        t.type("calib-serve label labels.csv --url http://127.0.0.1:9300/v1/labels --json")
        assert json.loads(t.output) == {"accepted": 0, "refused": {"duplicate": sent}}
        if kind == "torch":
            assert http_ok(t.url(8082, "metrics"))
        t.type("git init -q && git add --all && git diff --cached --name-only")
        assert sorted(t.output.split()) == sorted(KINDS[kind].files()), "what is made is not committed"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_file_is_sound_and_named_in_the_readme(kind: str, tmp_path: Path) -> None:
    write_project(tmp_path, kind)
    readme = (tmp_path / "README.md").read_text()
    for path in tmp_path.glob("*.py"):
        ast.parse(path.read_text())
        assert f"`{path.name}`" in readme
    told = (tmp_path / HEADS[kind]).read_text()
    assert "REPLACE TH" in told, "what is to be replaced says so"
    lint = [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "--ignore"]
    subprocess.run([*lint, "D,S,T20,PLR,PTH", "."], check=True, cwd=tmp_path)
    form = [sys.executable, "-m", "ruff", "format", "--check", "--config", str(ROOT / "pyproject.toml")]
    subprocess.run([*form, "."], check=True, cwd=tmp_path)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_command_names_options_and_extras_that_there_are(kind: str, tmp_path: Path) -> None:
    write_project(tmp_path, kind)
    for words in inline_commands(tmp_path / "README.md"):
        check_ours(words)
    assert (
        f"pip install 'calib-serve[{','.join(KINDS[kind].extras)}]'" in (tmp_path / "README.md").read_text()
    )
    project = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in project for extra in KINDS[kind].extras)


def test_the_loader_is_one_that_fit_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    write_project(tmp_path, "torch")
    x, y = np.arange(600 * 4, dtype=np.float32).reshape(600, 4), np.arange(600) % 3
    np.savez(tmp_path / "data.npz", cal_inputs=x, cal_labels=y)
    monkeypatch.chdir(tmp_path)
    found = load_data("loader.py:batches", "cal")
    assert (found.inputs == x).all()
    assert (found.labels == y).all()
    with pytest.raises(InputError, match="gave no data"):
        load_data("loader.py:batches", "test")


def test_a_folder_that_is_not_empty_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty; name another folder, or add --force"):
        write_project(tmp_path, "torch")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_force_writes_beside_what_is_there_and_changes_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("mine")
    (tmp_path / "loader.py").symlink_to("nowhere")
    told = CliRunner().invoke(app, ["quickstart", str(tmp_path), "--force"])
    assert told.exit_code == 0
    assert "train.py is there already, and stays as it is" in told.stderr
    assert (tmp_path / "train.py").read_text() == "mine"
    assert (tmp_path / "loader.py").readlink() == Path("nowhere")
    assert not (tmp_path / "nowhere").exists()
    assert (tmp_path / "client.py").is_file()
    assert write_project(tmp_path, "torch", force=True).made == (), "a second time there is nothing to write"


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file; name a folder"):
        write_project(tmp_path / "file", "torch", force=True)


def test_it_prints_where_to_go_and_three_commands(tmp_path: Path) -> None:
    told = write(tmp_path / "a project", "--kind", "logits")
    shown = [line.strip() for line in told.splitlines() if line.startswith("  ")]
    assert shown == [f"cd '{tmp_path / 'a project'}'", *KINDS["logits"].first]


def test_what_is_not_installed_is_said_before(installed: Path, tmp_path: Path) -> None:
    """In an environment of the wheel and of what it asks for itself, without any extra."""
    program = (
        "import sys\nfrom importlib.metadata import distributions\nfrom calib_serve import doctor\n"
        "own = str(doctor.installed()['calib-serve'].locate_file(''))\n"
        "doctor.distributions = lambda: distributions(path=[own])\n"
        "from calib_serve.cli import main\n"
        "sys.argv = ['calib-serve', 'quickstart', 'p', '--kind', 'sklearn']\nmain()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [installed, "-c", program], check=True, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert "skl2onnx" in done.stderr
    assert done.stderr.rstrip().endswith("are missing here: pip install 'calib-serve[sklearn,watch,report]'")
    assert (tmp_path / "p" / "README.md").is_file()
