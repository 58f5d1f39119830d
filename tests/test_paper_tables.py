"""The papers' tables come out near the papers' numbers, where the very networks are published."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def paper_tables(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("paper_tables")


def test_the_cross_entropy_column_is_reproduced(paper_tables, data_dir: Path) -> None:
    table = paper_tables.uncertainty_gradients(data_dir)
    rows = {row[0]: dict(zip(table.header[1:], row[1:], strict=True)) for row in table.rows}
    resnet50 = rows["resnet50_c10_cross_entropy"]
    assert resnet50["ECE"] == pytest.approx(resnet50["paper's ECE"], abs=0.05)
    assert resnet50["after T by ECE grid"] == pytest.approx(resnet50["paper's after T"], abs=0.05)
    assert rows["kull_resnet110_c10"]["ECE"] == pytest.approx(4.75, abs=0.01)


def test_a_table_knows_what_it_lacks(paper_tables, data_dir: Path) -> None:
    table = paper_tables.masked_head(data_dir)
    vanilla = table.rows[0]
    assert vanilla[:2] == ("vanilla", pytest.approx(91.73, abs=0.005))
    assert "not published" in table.missing
    assert "| vanilla | 91.73 |" in paper_tables.markdown([table], "a machine")
