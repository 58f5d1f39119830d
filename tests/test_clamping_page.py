"""The page of Neural Clamping shows what was recorded."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def clamping_page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("neural_clamping_page")


def test_every_table_of_the_page_is_that_of_the_recorded_results(clamping_page: ModuleType) -> None:
    text = clamping_page.PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in text for name in clamping_page.TABLES)
    assert clamping_page.rendered(text) == text


def test_a_number_that_was_not_recorded_does_not_stay(clamping_page: ModuleType) -> None:
    text = clamping_page.PAGE.read_text(encoding="utf-8")
    forged = text.replace("| digits | uncalibrated |", "| digits | perfect |", 1)
    assert forged != text
    assert clamping_page.rendered(forged) == text


def test_a_cell_is_mean_and_deviation_in_percent_where_it_is_a_share(clamping_page: ModuleType) -> None:
    assert clamping_page.cell([0.01, 0.03], "ece") == "2.00 ± 1.00 %"
    assert clamping_page.cell([0.25], "nll") == "0.2500"
