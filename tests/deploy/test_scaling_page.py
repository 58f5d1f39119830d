"""The table of docs/scaling.md is what benchmarks/deployment.py makes of its measured units."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from calib_serve.monitoring import recorded_series

ROOT = Path(__file__).parents[2]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "deployment.json").read_text())
PAGE = (ROOT / "docs" / "scaling.md").read_text()


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    return importlib.import_module("deployment")


def test_the_table_is_that_of_the_result(deployment: ModuleType) -> None:
    rows = deployment.lines(RESULT["units"], RESULT["of_others"], RESULT["asked"])
    assert deployment.table(rows) in PAGE


def test_its_series_are_those_of_the_budget(deployment: ModuleType) -> None:
    page = PAGE.replace("\N{MULTIPLICATION SIGN}", "x")
    assert f"{deployment.PER_REPLICA} x 1,000 x 50 + {deployment.PER_VERSION} x 1,000" in page
    assert RESULT["units"]["rules"]["recorded_series"] == recorded_series()


def test_the_budget_is_in_measured_bytes(deployment: ModuleType) -> None:
    per_series = RESULT["units"]["bytes_per_series"]
    assert f"At {per_series / 1000:.1f} kB of memory a series" in PAGE
    assert f"{147_000 * 50 * per_series / 2**30:.0f} GiB for one server" in PAGE
    advised = (deployment.PER_REPLICA * 50 + deployment.PER_VERSION) * 1000
    assert f"some {advised * per_series / 2**30:.0f} GiB. This layout is recommended" in PAGE


def test_units_of_other_benchmarks_are_those_that_they_keep(deployment: ModuleType) -> None:
    assert deployment.of_others() == RESULT["of_others"]


def test_what_the_page_says_of_the_ledger_was_measured() -> None:
    few, every = (RESULT["units"]["ledger"][name]["bytes_per_label"] for name in ("few", "all"))
    assert f"{few:.1f} bytes a" in PAGE.replace("\n", " ")
    assert f"{every:.2f} where every one" in PAGE.replace("\n  ", " ")


def test_twice_the_predictions_cost_twice_the_cores_and_the_same_series(deployment: ModuleType) -> None:
    asked = dict(RESULT["asked"])

    def amounts(**more: float) -> dict[str, str]:
        made = deployment.lines(RESULT["units"], RESULT["of_others"], {**asked, **more})
        return {line.what: line.amount for line in made}

    def number(text: str) -> float:
        return float(text.split(maxsplit=1)[0].replace(",", ""))

    once, twice = amounts(), amounts(predictions=2 * asked["predictions"])
    assert number(twice["counting predictions"]) == pytest.approx(
        2 * number(once["counting predictions"]), abs=0.02
    )
    assert twice["series of predictions"] == once["series of predictions"]
    more = amounts(replicas=2 * asked["replicas"])
    assert number(more["series of predictions"]) == 2 * number(once["series of predictions"])
    assert more["recorded series"] == once["recorded series"]
