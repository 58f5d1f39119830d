"""All benchmarks in one run: nothing is left out, no miss is hidden, no failure stops the others."""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def run_all(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("run_all")


def programs() -> dict[str, str]:
    """The text of every file of the folder that keeps a result."""
    texts = {path.stem: path.read_text() for path in BENCHMARKS.glob("*.py")}
    return {name: text for name, text in texts.items() if "peers.save(" in text}


def test_every_benchmark_is_run_and_has_its_goals(run_all: ModuleType) -> None:
    assert {each.name for each in run_all.BENCHMARKS} == set(programs())
    assert all(each.goals or each.page for each in run_all.BENCHMARKS)


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_the_pages_are_those_of_the_kept_results(run_all: ModuleType) -> None:
    """Whoever changes a goal, a table or a result renders the pages: run_all.py --render."""
    content = run_all.merged(run_all.earlier_failures())
    assert json.loads(run_all.MERGED.read_text()) == json.loads(json.dumps(content))
    assert run_all.PAGE.read_text() == run_all.page(content)
    for page in run_all.blocks.PAGES:
        assert page.read_text() == run_all.blocks.rendered(page.read_text()), page.name


def test_the_page_of_fusion_is_that_of_the_kept_results(run_all: ModuleType) -> None:
    module = importlib.import_module("fusion_overhead")
    assert module.PAGE.read_text() == module.page()


def test_sentences_with_numbers_say_what_was_measured(run_all: ModuleType) -> None:
    quotes = importlib.import_module("quotes").QUOTES
    assert len(quotes) > 10
    for quote in quotes:
        said = squeezed(quote.says(run_all.kept(quote.benchmark)))
        assert said in squeezed((ROOT / "docs" / quote.page).read_text()), (quote.page, said)
