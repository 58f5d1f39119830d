"""The projects that ``calib-serve quickstart`` writes do what their README says, installed from the wheel.

No container engine runs here: what compose.yaml starts is started as processes, from the same files, and the
real Prometheus answers every panel.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from pathlib import Path

import httpx
import pytest
import tomllib
from command_line import calib_serve
from doc_blocks import ROOT, blocks, commands
from live_server import total
from packaging.requirements import Requirement
from real_prometheus import Prometheus, panels_of
from real_servers import needed
from terminal import Terminal
from test_docs import check_ours

from calib_serve.app.projects.kinds import KINDS
from calib_serve.app.projects.project import project_files, write_project

CONTAINERS = ("docker ", "kubectl ")


def followed(folder: Path, t: Terminal) -> list[str]:
    """Type every command of the README there that needs no container engine, on ports of its own."""
    for path in folder.glob("*.py"):
        path.write_text(t.here(path.read_text()))
    typed = []
    for block in blocks(folder / "README.md"):
        assert block.language == "console", "a command is shown after its prompt, and nothing else"
        for command in commands(block):
            if not any(one in command for one in CONTAINERS):
                # The choice of a method has tests of its own, and takes its time.
                t.type(command + " --method temperature" * command.startswith("calib-serve fit"))
                typed.append(command)
    return typed


def monitored(folder: Path, t: Terminal, client: httpx.Client) -> Prometheus:
    """Start Prometheus with the files that its container mounts, on this host, and without long waits."""
    needed("prometheus", "prometheus")
    named = r"dns_sd_configs:\n      - \{names: \[(watch|server)-pods\], type: A, port: (\d+)\}"
    here = r'static_configs:\n      - targets: ["127.0.0.1:\2"]'
    for path in (folder / "deploy" / "prometheus").iterdir():
        text = re.sub(named, here, path.read_text())
        text = re.sub(r"(interval|for): \d+[smh]", r"\1: 1s", text)
        path.write_text(t.here(text))
    t.type(
        "prometheus --config.file=deploy/prometheus/prometheus.yml --storage.tsdb.path=data "
        "--web.listen-address=127.0.0.1:9090"
    )
    return Prometheus(t.url(9090, "").rstrip("/"), client)


@pytest.mark.server
@pytest.mark.nightly  # minutes, as panels fill; tests/deploy asks every panel of a Prometheus each time
@pytest.mark.parametrize("kind", ["fastapi", "torchserve"])
def test_a_project_does_what_its_readme_says_and_no_panel_is_empty(
    kind: str, installed: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    with Terminal(tmp_path, installed) as t, httpx.Client(timeout=60, trust_env=False) as client:
        t.type(f"calib-serve quickstart project --kind {kind}")
        shown = [line.strip() for line in t.output.splitlines() if line.startswith("  ")]
        t.type("cd project")
        typed = followed(project, t)
        assert shown == ["cd project", *typed[: len(shown) - 1]], "in that order"
        assert "calibration report" in (project / "report.html").read_text()
        sent = len((project / "labels.csv").read_text().splitlines()) - 1
        assert sent > 800
        token = (project / "secrets" / "prometheus.token").read_text()
        metrics = httpx.get(t.url(9300, "metrics"), headers={"Authorization": f"Bearer {token}"}).text
        assert total(metrics, "calib_feedback_total", model="digits") == sent
        t.type("calib-serve label labels.csv --url http://127.0.0.1:9300/v1/labels --json")
        assert json.loads(t.output) == {"accepted": 0, "held": 0, "refused": {"duplicate": sent}}

        found = monitored(project, t, client)
        jobs = {"prometheus", "calib-serve-watch", *(["server"] if kind == "torchserve" else [])}
        found.wait(f"count(up == 1) == {len(jobs)}")
        assert {one["metric"]["job"] for one in found.query("up == 1")} == jobs
        # One scrape shows what came before it.
        found.wait(f"model_version:calib_labels:24h == {sent}", seconds=90)
        if kind == "torchserve":  # its counters of before the first scrape rose in no window: another round
            t.type("python client.py && calib-serve label labels.csv --url http://127.0.0.1:9300/v1/labels")
        # The watch learns when labels are in from how late these came: on a busy host, minutes.
        found.wait("model_version:calib_verdict:24h and model_version:calib_labels:24h > 0", seconds=900)
        for number in ("served", "labels", "coverage", "ece", "verdict"):
            assert len(found.query(f"model_version:calib_{number}:24h")) == 1, "one number, not one a host"
        for title, rows in panels_of(project / "deploy" / "grafana", found, model="digits", version="1"):
            assert rows or title in ("Promises of its contract",), title
        # Before the first scrape, and without its 15 minutes here, MonitorAbsent is right.
        found.wait('absent(ALERTS{alertname=~"Monitor.*"})', seconds=30)
        t.stop(9300)
        found.wait('ALERTS{alertname="MonitorDown",alertstate="firing"}')
        t.type(next(command for command in typed if command.startswith("calib-serve watch")))
        found.wait('absent(ALERTS{alertname="MonitorDown"})')
        t.type("git init -q && git add --all && git diff --cached --name-only")
        assert set(t.output.split()) - {"data"} >= set(project_files(kind)), "what is written is committed"
        assert not [one for one in t.output.split() if one.startswith(("secrets", "artifact", "ledger"))]


def test_a_file_of_yours_is_replaced_only_by_force_and_secrets_never(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "train.py").write_text("mine")
    (tmp_path / "loader.py").symlink_to("nowhere")
    refused = calib_serve("quickstart", tmp_path)
    assert refused.exit_code == 2
    assert "train.py" in refused.stderr
    assert "loader.py" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loader.py", "notes.txt", "train.py"]
    assert calib_serve("quickstart", tmp_path, "--force").exit_code == 0
    assert (tmp_path / "train.py").read_text() != "mine"
    assert (tmp_path / "loader.py").is_file()
    assert not (tmp_path / "nowhere").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    keys = (tmp_path / "secrets" / "keyring.json").read_bytes()
    assert write_project(tmp_path, "fastapi") == [], "a second time there is nothing to write"
    assert (tmp_path / "secrets" / "keyring.json").read_bytes() == keys


@pytest.fixture(params=KINDS)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_project(tmp_path / "project", request.param)
    return tmp_path / "project"


def test_every_command_of_a_project_takes_its_options(project: Path) -> None:
    lines = re.findall(r"^\$ (calib-serve .+)$", (project / "README.md").read_text(), re.M)
    assert lines
    for line in lines:
        check_ours(shlex.split(line))


def test_a_project_names_every_package_that_it_imports(project: Path) -> None:
    """Where an index has the package: a script that runs here may import what only the tests brought."""
    (line,) = re.findall(r"The commands need `pip install ([^`]+)`", (project / "README.md").read_text())
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    brought, waiting = set[str](), [Requirement(word) for word in shlex.split(line)]
    while waiting:
        one = waiting.pop()
        brought.add({"scikit-learn": "sklearn"}.get(one.name, one.name).replace("-", "_"))
        if one.name == "calib-serve":
            lists = (declared["dependencies"], *(declared["optional-dependencies"][e] for e in one.extras))
            waiting += [Requirement(text) for listed in lists for text in listed]
    own = {path.stem for path in project.glob("*.py")}
    assert imported(project) - own - set(sys.stdlib_module_names) <= brought


def imported(project: Path) -> set[str]:
    """The top names that the project's scripts import."""
    found = set()
    for path in project.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").split(".")[0])
    return found
