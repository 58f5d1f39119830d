"""The projects that ``calib-serve quickstart`` writes do what their README says, installed from the wheel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import calib_serve
from doc_blocks import blocks, commands
from live_server import total
from terminal import Terminal, http_ok, http_text

from calib_serve.quickstart import KINDS, write_project


def write(folder: Path, *more: str) -> str:
    done = calib_serve("quickstart", folder, *more)
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
    "kind", ["logits", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("torch", "sklearn"))]
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


def test_force_writes_beside_what_is_there_and_changes_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("mine")
    (tmp_path / "loader.py").symlink_to("nowhere")
    told = calib_serve("quickstart", tmp_path, "--force")
    assert told.exit_code == 0
    assert "train.py is there already, and stays as it is" in told.stderr
    assert (tmp_path / "train.py").read_text() == "mine"
    assert (tmp_path / "loader.py").readlink() == Path("nowhere")
    assert not (tmp_path / "nowhere").exists()
    assert (tmp_path / "client.py").is_file()
    assert write_project(tmp_path, "torch", force=True).made == (), "a second time there is nothing to write"
