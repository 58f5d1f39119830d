"""The papers' tables: near their numbers where the very networks are published, and open about the rest."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
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


def runs_of(loss: str, before: float, after: float, on_cal: float = 0.05, seeds: int = 5) -> list[dict]:
    rng = np.random.default_rng(0)
    return [
        {
            "task": "digits",
            "loss": loss,
            "seed": seed,
            "train accuracy": 1.0,
            "ECE": before + e,
            "ECE on cal": on_cal,
            "ECE after pool TS": after + e,
            "ECE after HB": after + e,
        }
        for seed, e in enumerate(0.001 * rng.standard_normal(seeds))
    ]


def test_a_coefficient_is_chosen_by_the_calibration_part_and_never_by_the_test_set(paper_tables) -> None:
    from loss_runs import chosen

    runs = {
        "best on test": runs_of("best on test", 0.01, 0.01, on_cal=0.05),
        "best on cal": runs_of("best on cal", 0.09, 0.01, on_cal=0.04),
    }
    assert chosen(runs, ["best on test", "best on cal", "not trained"]) == "best on cal"
    # Only seeds that all have count: a lucky seed of one alone does not.
    runs["best on test"].append({**runs["best on test"][0], "seed": 5, "ECE on cal": 0.0})
    assert chosen(runs, list(runs)) == "best on cal"
    assert chosen(runs, ["not trained"]) is None
    # A network that says 1/10 of everything is calibrated, and no choice.
    runs["useless"] = [{**run, "train accuracy": 0.1, "ECE on cal": 0.0} for run in runs["best on cal"]]
    assert chosen(runs, list(runs)) == "best on cal"


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


@pytest.mark.server  # the record of a run names the machine, by uname
def test_losses_are_trained_and_an_ended_run_is_not_trained_again(
    paper_tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    train_losses = importlib.import_module("train_losses")
    monkeypatch.setattr(train_losses.peers, "RESULTS", tmp_path)
    asked = ["--tasks", "digits", "--seeds", "1", "--epochs", "20", "--losses", "cross-entropy"]

    def trained(*more: str) -> list[dict]:
        monkeypatch.setattr(sys, "argv", ["train_losses.py", *asked, *more])
        train_losses.main()
        return json.loads((tmp_path / "train_losses.json").read_text())["runs"]

    (first,) = trained()
    again = trained("mixup", "BSCE-GRA, gamma 4")
    assert again[0] == first
    assert [run["loss"] for run in again] == ["cross-entropy", "mixup", "BSCE-GRA, gamma 4"]
    assert capsys.readouterr().out.count("digits") == 3
    for run in again:
        assert run["accuracy"] > 0.85, run["loss"]
        assert run["optimal ECE"] <= min(run["ECE"], run["ECE after pool TS"]) + 1e-5
    runs = paper_tables.paper_rethinking.trained(tmp_path)["digits"]
    assert set(runs) == {run["loss"] for run in again}
