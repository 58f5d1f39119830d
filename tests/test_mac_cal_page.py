"""The page of MaC-Cal: its tables are the recorded ones, and its names are found."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import calib_serve.fit.masked
from calib_serve.fit.masked import PAPER

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "papers" / "mac-cal.md"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    return importlib.import_module("mac_cal_page")


def test_the_tables_on_the_pages_are_the_recorded_ones(page: ModuleType) -> None:
    for path in page.PAGES:
        text = path.read_text()
        assert "<!-- table" in text
        assert page.rendered(text) == text, f"run python benchmarks/mac_cal_page.py: {path.name} is behind"


def test_every_table_has_a_place_and_every_place_a_table(page: ModuleType) -> None:
    places = [
        name for path in page.PAGES for name in re.findall(r"<!-- table ([\w ]+) -->", path.read_text())
    ]
    assert sorted(places) == sorted(page.TABLES)


def test_a_changed_number_does_not_stand(page: ModuleType) -> None:
    text = PAGE.read_text()
    table = text[text.index("<!-- table control -->") :]
    number = re.search(r"\d\d\.\d\d ±", table)
    assert number
    changed = text.replace(number[0], "12.34 ±", 1)
    assert page.rendered(changed) != changed


@pytest.mark.parametrize("file", ["README.md", "docs/api.md", "docs/methods.md", "docs/papers/mac-cal.md"])
def test_mac_cal_is_found_by_its_name(file: str) -> None:
    assert "MaC-Cal" in (ROOT / file).read_text()
    assert "MaC-Cal" in (calib_serve.fit.masked.__doc__ or "")  # of the reference


def test_the_page_names_the_settings_that_are_our_choice() -> None:
    told = dict(re.findall(r"^\| (gamma|width)[^|]*\| ([\d.]+)", PAGE.read_text(), flags=re.M))
    assert told == {"gamma": ".95" if PAPER.retention.gamma == 0.95 else "", "width": str(PAPER.hidden)}


def test_the_api_lists_both_flagship_methods_where_they_are() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    for name, module in re.findall(r"`(fit_\w+)\([^`]*\)`[^|]*\| `(calib_serve[\w.]+)` \|", text):
        assert hasattr(importlib.import_module(module), name)
    assert {"fit_neural_clamping(", "fit_masked_head(", "fit_tuned_head("} <= set(
        re.findall(r"fit_\w+\(", text)
    )
