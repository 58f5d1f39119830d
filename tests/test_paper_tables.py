"""The papers' tables: near their numbers where the very networks are published, and open about the rest."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def paper_tables(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("paper_tables")


def test_the_cross_entropy_column_is_reproduced(paper_tables, data_dir: Path) -> None:
    table = paper_tables.paper_gradients.cross_entropy_networks(data_dir)
    rows = {row[0]: dict(zip(table.header[1:], row[1:], strict=True)) for row in table.rows}
    resnet50 = rows["resnet50_c10_cross_entropy"]
    assert resnet50["ECE"] == pytest.approx(resnet50["paper's ECE"], abs=0.05)
    assert resnet50["after T by ECE grid"] == pytest.approx(resnet50["paper's after T"], abs=0.05)
    assert rows["kull_resnet110_c10"]["ECE"] == pytest.approx(4.75, abs=0.01)


def recorded_tables() -> dict[str, dict]:
    content = json.loads((BENCHMARKS / "results" / "paper_tables.json").read_text())
    return {table["title"]: table for table in content["tables"]}


@pytest.mark.parametrize("group", ["rethinking", "dark-side", "bsce-gra", "training-losses"])
def test_the_tables_on_a_papers_page_are_the_recorded_ones(paper_tables, group: str) -> None:
    page = paper_tables.PAGES[group].read_text()
    tables = recorded_tables()
    marked = re.findall(r"<!-- (?:says: )?(.+) -->\n", page)
    assert marked
    assert set(marked) <= set(tables)
    assert paper_tables.onto_page(page, [paper_tables.Table(**tables[title]) for title in marked]) == page
    assert "| --- |" in page


@pytest.mark.parametrize("program", ["mac_cal_page", "neural_clamping_page"])
def test_the_tables_on_a_methods_pages_are_the_recorded_ones(paper_tables, program: str) -> None:
    module = importlib.import_module(program)
    for page in getattr(module, "PAGES", None) or (module.PAGE,):
        text = page.read_text(encoding="utf-8")
        assert "| --- |" in text
        assert module.rendered(text) == text, f"run python benchmarks/{program}.py: {page.name} is behind"


def test_the_tables_of_losses_are_those_of_their_runs(paper_tables) -> None:
    """What is recorded in paper_tables.json is what train_losses.json gives."""
    tables = recorded_tables()
    for group in ("rethinking", "training-losses"):
        for make in paper_tables.GROUPS[group].makers:
            table = make(None)
            assert list(map(list, table.rows)) == tables[table.title]["rows"], table.title
            assert table.missing == tables[table.title]["missing"]
