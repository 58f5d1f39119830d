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
    table = paper_tables.cross_entropy_networks(data_dir)
    rows = {row[0]: dict(zip(table.header[1:], row[1:], strict=True)) for row in table.rows}
    resnet50 = rows["resnet50_c10_cross_entropy"]
    assert resnet50["ECE"] == pytest.approx(resnet50["paper's ECE"], abs=0.05)
    assert resnet50["after T by ECE grid"] == pytest.approx(resnet50["paper's after T"], abs=0.05)
    assert rows["kull_resnet110_c10"]["ECE"] == pytest.approx(4.75, abs=0.01)


def test_a_table_knows_what_it_lacks(paper_tables, data_dir: Path, tmp_path: Path) -> None:
    table = paper_tables.masked_head(data_dir, tmp_path)
    assert table.rows[0][:2] == ("vanilla", pytest.approx(91.73, abs=0.005))
    assert all(row[1] is None for row in table.rows[1:])
    assert "Not measured yet" in table.missing
    assert "| vanilla | 91.73 |" in paper_tables.markdown([table], "a machine")


def clamped(ece: float, finished: str, *networks: str) -> str:
    facts = {"asked": {"images": 5000}, "trimmed": [], "splits": [{"TS": {"accuracy": 0.9, "ece": ece}}]}
    return json.dumps({"run": {"finished": finished}, "models": dict.fromkeys(networks, facts)})


def test_the_newest_result_of_each_network_is_taken_whatever_the_device(paper_tables, tmp_path: Path) -> None:
    (tmp_path / "neural_clamping.json").write_text(clamped(0.02, "2026-02", "resnet20"))
    (tmp_path / "neural_clamping.cuda.json").write_text(clamped(0.03, "2026-01", "resnet20", "resnet56"))
    table = paper_tables.neural_clamping(tmp_path, tmp_path)
    assert [(row[0].split(",")[0], row[3]) for row in table.rows] == [("resnet20", 2.0), ("resnet56", 3.0)]
    assert "neural_clamping.json" in table.missing
    assert "neural_clamping.cuda.json" in table.missing
    (tmp_path / "neural_clamping.json").write_text('{"models": {}}')  # begun and broken off
    (tmp_path / "neural_clamping.cuda.json").unlink()
    assert "Not measured yet" in paper_tables.neural_clamping(tmp_path, tmp_path).missing


def test_what_is_said_of_the_losses_follows_from_their_runs(paper_tables) -> None:
    from paper_losses import against_cross_entropy

    rng = np.random.default_rng(0)

    def runs(before: float, after: float) -> list[dict[str, float]]:
        return [{"ECE": before + e, "ECE after TS": after + e} for e in 0.001 * rng.standard_normal(5)]

    same = {name: runs(0.06, 0.01) for name in ("cross-entropy", "label smoothing .05", "focal, gamma 3")}
    text = against_cross_entropy("a set", {**same, "L1 norm of logits .01": runs(0.02, 0.03)})
    assert "end of training is lower for L1 norm of logits .01 and higher for none" in text
    assert "after a temperature it is lower for none and higher for L1 norm of logits .01" in text
    assert text.endswith("less calibratable, is seen.")


def test_the_page_of_losses_shows_the_recorded_runs() -> None:
    page = (ROOT / "docs" / "training-losses.md").read_text()
    for name in ("training_losses", "training_losses_digits"):
        runs = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())["runs"]
        for loss, seeds in runs.items():
            columns = [100 * np.array([s[key] for s in seeds]) for key in ("accuracy", "ECE", "ECE after TS")]
            accuracy, before, after = (f"{c.mean():.2f} ± {c.std(ddof=1):.2f}" for c in columns)
            row = rf"\| {re.escape(loss)} \| {accuracy} \| {before} \| [\d.]+ \| {after} \|"
            assert re.search(row, page), (name, loss)
