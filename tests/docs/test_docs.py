"""What the documentation says beside its blocks is true, and the site builds strictly.

The blocks themselves are run in ``test_pages.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from chromium import chromium
from doc_blocks import DOCS, ROOT, inline_commands, markdown
from typer.main import get_command

from calib_serve.cli import app
from calib_serve.watch.series import SEGMENTS, SERIES, WATCH, WORKERS

TIMES = "\N{MULTIPLICATION SIGN}"


def check_ours(words: list[str]) -> None:
    """Every option in ``words`` is one that the command takes."""
    command = get_command(app)
    for word in words[1:]:
        if word.startswith("-") or not hasattr(command, "commands"):
            break
        assert word in command.commands, f"there is no command {word}"
        command = command.commands[word]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.split("=")[0] for word in words if word.startswith("-")} <= options | {"--help"}, words


def check_program(words: list[str]) -> None:
    """The file that Python is to run is there, and knows the options."""
    module = words[1] == "-m"
    text = (ROOT / (words[2].replace(".", "/") + ".py" if module else words[1])).read_text()
    assert all(f'"{word}"' in text for word in words if word.startswith("--")), words


def check_target(words: list[str]) -> None:
    assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(), words


@pytest.mark.parametrize("page", [p for p in markdown() if inline_commands(p)], ids=lambda p: p.stem)
def test_every_command_in_a_sentence_exists(page: Path) -> None:
    check = {"calib-serve": check_ours, "python": check_program, "make": check_target}
    for words in inline_commands(page):
        check[words[0]](words)


def test_the_cardinality_budget_is_that_of_the_published_series() -> None:
    of_version = [s for s in (*SERIES, *WORKERS) if s.labels[:2] == ("model", "version")]
    by_bin = [s for s in of_version if "bin" in s.labels]
    whole = 15 * len(by_bin) + len(of_version) - len(by_bin)
    page = (DOCS / "scaling.md").read_text()
    assert f"| **together** | **{whole}** |" in page
    assert f"**{whole * 1000 * 50 / 1e6:.1f} million series**" in page
    served = [
        s
        for s in of_version
        if s.name.startswith(("calib_predictions", "calib_invalid", "calib_uncalibrated"))
    ]
    on_replica = sum(15 if "bin" in s.labels else 1 for s in served)
    by_slice = {"slice", "class", "source", "tag"}
    of_watch = [s for s in WATCH if s.labels[:2] == ("model", "version") and not by_slice & {*s.labels}]
    of_incident = [s for s in of_watch if s.name.startswith("calib_incident_")]
    own = sum(3 if "window" in s.labels else 1 for s in of_watch if s not in of_incident)
    assert re.search(rf"watch` alone: .* \| {own} \|", page)
    known = sum(15 if "bin" in s.labels else 1 for s in of_incident)
    assert f"watch` alone, while an incident is open | {known} |" in page
    rest = whole - on_replica + own
    millions = (on_replica * 50 + rest) / 1e3
    assert f"{on_replica} {TIMES} 1,000 {TIMES} 50 + {rest} {TIMES} 1,000 = **{millions:.1f} million" in page
    assert f"{len(SEGMENTS)} families {TIMES} 15 bins = {len(SEGMENTS) * 15} series" in page


def test_every_method_is_in_the_table_of_methods() -> None:
    from calib_serve.fit.output.candidates import CANDIDATES

    page = (DOCS / "methods.md").read_text()
    for name in CANDIDATES:
        assert name == "none" or f"`{name}`" in page


def test_links_of_pages_outside_the_site_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("model_store/*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#:]+)[^)]*\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


def test_every_picture_has_a_text() -> None:
    for page in markdown():
        for text, target in re.findall(r"!\[(.*?)\]\((.*?)\)", page.read_text()):
            assert len(text) > 10, page.name
            assert (page.parent / target).exists(), target


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as strictly as there is: warnings, which broken links and anchors are, end it."""
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    # Warnings are errors: --strict counts those that are told, so nothing may be --quiet.
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


def test_the_site_asks_nobody_else(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 70
    for page in pages:
        loaded = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert not [url for url in loaded if "canonical" not in url], page.name
    assert "<blockquote>" not in (site / "reference" / "serve.html").read_text(), "doctests are code"


def test_every_page_of_the_navigation_is_found_by_its_tabs(site: Path) -> None:
    home = (site / "index.html").read_text()
    tabs = re.findall(r'class="md-tabs__link"[^>]*>\s*(.*?)\s*<', home, re.DOTALL)
    assert tabs == ["Home", "Tutorials", "How-to", "Explanation", "Reference", "Project"]


def test_the_site_opens_from_disk_at_every_width_and_can_be_searched(site: Path) -> None:
    with chromium() as browser:
        for page in ("index", "how-to/your-data", "reference/cli", "notebooks/watch-a-stream"):
            for width in (390, 820, 1400):
                browser.open((site / f"{page}.html").as_uri(), width=width)
                over = browser.run("return document.documentElement.scrollWidth - window.innerWidth")
                assert over <= 0, (page, width)
        browser.run("document.querySelector('input.md-search__input').focus()")
        browser.driver.find_element("css selector", "input.md-search__input").send_keys("noise floor")
        browser.wait("return document.querySelectorAll('.md-search-result__item').length > 3")
        assert not browser.complaints()
        assert not [url for url in browser.requests() if url.startswith("http")]
