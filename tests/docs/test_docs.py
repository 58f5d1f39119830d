"""The documentation is true: the site builds strictly, and every command and program in it runs.

``bash`` and ``python`` blocks are run as they stand, in order, in a folder with the quickstart's files.
``console`` blocks start servers or need Docker, and some pages are about nothing else: of these, every
command of ours is checked against the command line's own options.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from calib_serve.cli import app
from calib_serve.watch.series import SEGMENTS, SERIES

TIMES = "\N{MULTIPLICATION SIGN}"
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
SERVERS = {"monitoring", "serving", "security"}  # what they tell is proved in tests/watch and tests/serve
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if "benchmarks" not in page.parts and BLOCK.search(page.read_text())
]


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    """(language, text) of each block, without the indent of a list that it may stand in."""
    found = []
    for indent, language, text in BLOCK.findall(page.read_text()):
        if language in languages:
            found.append((language, re.sub(f"^{indent}", "", text, flags=re.MULTILINE)))
    return found


def run(page: Path, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    for language, text in blocks(page, "bash", "python"):
        program = (
            ["bash", "-euo", "pipefail", "-c"]
            if language == "bash"
            else [sys.executable, "-W", "ignore", "-c"]
        )
        done = subprocess.run(
            [*program, text],
            check=False,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{page.name}:\n{text}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quickstart")
    run(DOCS / "quickstart.md", folder)
    return folder


def test_the_quickstart_leaves_what_it_promises(quickstart: Path) -> None:
    names = {p.name for p in quickstart.iterdir()}
    assert {"artifact", "report.html", "calibrated.onnx", "model_store"} <= names
    assert {p.name for p in (quickstart / "model_store").glob("*.mar")} >= {"digits.mar"}


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if p.stem not in {"quickstart", *SERVERS} and blocks(p, "bash", "python")],
    ids=lambda p: p.stem,
)
def test_every_block_of_a_page_runs(page: Path, quickstart: Path, tmp_path: Path) -> None:
    shutil.copytree(quickstart, tmp_path, dirs_exist_ok=True)
    run(page, tmp_path)


def our_commands(text: str) -> list[list[str]]:
    joined = text.replace("\\\n", " ")
    lines = [line.removeprefix("$ ").strip() for line in joined.splitlines()]
    return [line.split() for line in lines if line.startswith("calib-serve ")]


def options_of(words: list[str]) -> set[str]:
    """Every option that the command named by ``words`` takes."""
    command = get_command(app)
    for word in words[1:]:
        if not hasattr(command, "commands"):
            break
        assert word in command.commands, f"there is no command {word}"
        command = command.commands[word]
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda p: p.stem)
def test_no_page_names_an_option_that_does_not_exist(page: Path) -> None:
    texts = [text for _, text in blocks(page, "console", "bash")]
    if page.name == "README.md":
        texts.append(
            "\n".join(line.strip() for line in page.read_text().splitlines() if line.startswith("    "))
        )
    for words in our_commands("\n".join(texts)):
        used = {word.split("=")[0] for word in words if word.startswith("-")}
        assert used <= options_of(words), " ".join(words)


def test_yaml_in_the_pages_is_yaml() -> None:
    for page in PAGES:
        for _, text in blocks(page, "yaml"):
            assert yaml.safe_load(text), page.name


def test_the_cardinality_budget_is_that_of_the_published_series() -> None:
    of_version = [s for s in SERIES if s.labels[:2] == ("model", "version")]
    by_bin = [s for s in of_version if "bin" in s.labels]
    whole = 15 * len(by_bin) + len(of_version) - len(by_bin)
    page = (DOCS / "scaling.md").read_text()
    assert f"| **together** | **{whole}** |" in page
    assert f"**{whole * 1000 * 50 / 1e6:.1f} million series**" in page
    served = [s for s in of_version if s.name.startswith(("calib_predictions", "calib_invalid"))]
    on_replica = sum(15 if "bin" in s.labels else 1 for s in served)
    rest = whole - on_replica
    millions = (on_replica * 50 + rest) / 1e3
    assert f"{on_replica} {TIMES} 1,000 {TIMES} 50 + {rest} {TIMES} 1,000 = **{millions:.1f} million" in page
    assert f"{len(SEGMENTS)} families {TIMES} 15 bins = {len(SEGMENTS) * 15} series" in page


def test_every_method_is_in_the_table_of_methods() -> None:
    from calib_serve.fit.candidates import CANDIDATES

    page = (DOCS / "methods.md").read_text()
    for name in CANDIDATES:
        assert name == "none" or f"`{name}`" in page


def test_every_picture_has_a_text() -> None:
    for page in [*DOCS.rglob("*.md"), ROOT / "README.md"]:
        for text, target in re.findall(r"!\[(.*?)\]\((.*?)\)", page.read_text()):
            assert len(text) > 10, page.name
            assert (page.parent / target).exists(), target


def test_the_site_builds_strictly_and_asks_nobody(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert not [url for url in loaded if "canonical" not in url], page.name
