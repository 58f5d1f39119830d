"""What the documentation says beside its blocks is true, and the site builds strictly.

The blocks themselves are run in ``test_pages.py``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from doc_blocks import ROOT, inline_commands, markdown

from calib_serve.app._command import program
from calib_serve.core.faces import modules_of
from calib_serve.core.files import import_object


def check_ours(words: list[str]) -> None:
    """Every option in ``words`` is one that the command takes."""
    options = {word.split("=")[0] for word in words[1:] if word.startswith("-")}
    if len(words) == 1 or words[1].startswith("-"):
        assert options <= {"--help", "--version", "--install-completion"}, words
        return
    commands, apps, _ = program(words[1]).parse_commands([word for word in words[1:] if word != "--help"])
    assert commands, f"there is no command {words[1]}"
    takes = [] if apps[-1].default_command is None else apps[-1].assemble_argument_collection()
    known = {name for argument in takes for name in argument.names}
    assert options <= known | {"--help"}, words


def check_program(words: list[str]) -> None:
    """The file that Python is to run is there, and knows the options."""
    program = ROOT / (words[2].replace(".", "/") if words[1] == "-m" else words[1])
    files = [program, program.with_suffix(".py"), program / "__main__.py"]
    text = next(file for file in files if file.is_file()).read_text()
    assert all(f'"{word}"' in text for word in words if word.startswith("--")), words


def check_target(words: list[str]) -> None:
    assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(), words


@pytest.mark.parametrize("page", [p for p in markdown() if inline_commands(p)], ids=lambda p: p.stem)
def test_every_command_in_a_sentence_exists(page: Path) -> None:
    check = {"calib-serve": check_ours, "python": check_program, "make": check_target}
    for words in inline_commands(page):
        check[words[0]](words)


def test_links_of_pages_outside_the_site_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("model_store/*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#:]+)[^)]*\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "reference").glob("*.md")), ids=lambda p: p.stem)
def test_a_page_of_the_reference_names_what_it_shows_of_a_room(page: Path) -> None:
    """The site shows nothing of a room whose names are not listed, as they are imported at run time."""
    for room, options in re.findall(
        r"^::: calib_serve\.(\w+)\n((?: +.*\n)*)", page.read_text(), re.MULTILINE
    ):
        face = ROOT / "calib_serve" / room / "__init__.pyi"
        if face.is_file():
            assert set(yaml.safe_load(options)["options"]["members"]) <= modules_of(face).keys()


def test_the_page_of_the_public_api_has_every_public_name() -> None:
    shown = re.findall(
        r"^::: calib_serve\.(\w+)$", (ROOT / "docs/reference/public.md").read_text(), re.MULTILINE
    )
    assert set(shown) == modules_of(ROOT / "calib_serve" / "__init__.pyi").keys()


def named_in_python(name: str) -> object:
    """What a name of the Python API's page stands for: below ``calib_serve``, if it does not say so."""
    module, path = "calib_serve", name.removeprefix("calib_serve.").split(".")
    with suppress(ModuleNotFoundError):  # below a module, which is no package
        while path and importlib.util.find_spec(f"{module}.{path[0]}") is not None:
            module = f"{module}.{path.pop(0)}"
    return import_object(f"{module}:{'.'.join(path)}") if path else importlib.import_module(module)


def test_every_name_of_the_page_of_the_python_api_can_be_imported() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    names = set(re.findall(r"`(calib_serve(?:\.\w+)+)`", page))
    for row in re.findall(r"^\| `.*\| (.*) \|$", page, re.MULTILINE):
        names |= set(re.findall(r"`([A-Za-z_][\w.]*)`", row))
    assert len(names) > 30
    for name in sorted(names - {"Scores.schema"}):  # which each of these has, and not their class
        assert named_in_python(name) is not None


@pytest.mark.server
def test_the_site_builds_strictly_and_asks_nobody_else(tmp_path: Path) -> None:
    """Warnings, which broken links and anchors are, end it."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    # --strict counts the warnings that are told, so nothing may be --quiet.
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loaded = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert not [url for url in loaded if "canonical" not in url], page.name
