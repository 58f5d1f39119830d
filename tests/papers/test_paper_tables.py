"""The papers' pages: near the papers' numbers where their networks are published, and true to kept runs."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.metrics import ece
from calib_serve.scores import softmax

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
SETS = {"CIFAR-10 images": "images", "MNIST": "mnist", "digits": "digits"}
# The page, and the two columns of a training's result that each cell of its tables shows.
PAGES = {
    "papers/bsce-gra.md": ("ECE", "ECE after pool TS"),
    "papers/rethinking-calibration.md": ("ECE", "ECE after pool TS"),
    "papers/dark-side.md": ("ECE", "AUROC"),
}


def test_the_cross_entropy_column_is_reproduced(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lin 2025, table 1: ResNet-50 and ResNet-110 on CIFAR-10, ECE before and after a temperature."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    networks = importlib.import_module("published_networks")
    cal, (z, y) = networks.splits(data_dir, "resnet50_c10_cross_entropy")
    coarse = fit_by_name("temperature-ece", *cal, grid="coarse").probs(z)
    assert 100 * ece(softmax(z), y) == pytest.approx(4.36, abs=0.05)
    assert 100 * ece(coarse, y) == pytest.approx(1.32, abs=0.05)
    _, (z, y) = networks.splits(data_dir, "kull_resnet110_c10")
    assert 100 * ece(softmax(z), y) == pytest.approx(4.75, abs=0.01)


def cells(page: str) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """(set, loss, the two numbers) of each cell of a page's tables that have a column for each set."""
    header: list[str] = []
    for line in (ROOT / "docs" / page).read_text().splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not row:
            header = []
        elif not header:
            header = row
        elif set(SETS) <= set(header):
            loss = f"BSCE-GRA, gamma {row[0]}" if header[0] == "gamma" else row[0]
            for name in SETS:
                if numbers := re.fullmatch(r"([\d.]+)(?: →|,) ([\d.]+)", row[header.index(name)]):
                    yield name, loss, (numbers[1], numbers[2])


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_losses_are_those_of_their_runs(page: str) -> None:
    runs = json.loads((BENCHMARKS / "results" / "train_losses.json").read_text())["runs"]
    seen = 0
    for name, loss, shown in cells(page):
        calibrated = loss == "the same, after a temperature"
        columns = ("ECE after TS", "AUROC after TS") if calibrated else PAGES[page]
        trained = (SETS[name], "cross-entropy" if calibrated else loss)
        found = [run for run in runs if (run["task"], run["loss"]) == trained]
        assert len(found) == 3, (page, name, loss)
        means = tuple(f"{100 * np.mean([run[column] for run in found]):.2f}" for column in columns)
        assert shown == means, (page, name, loss)
        seen += 1
    assert seen >= 18
