"""Every publisher publishes what is declared."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from publishers import CONFIDENCES

import calib_serve
from calib_serve.receipts.series import (
    CONTRACTS,
    LEDGER_LABELS,
    PUBLISHED,
    SERIES,
    SHADOWS,
    WATCH,
    WORKERS,
    Series,
)
from calib_serve.torchserve._channel import LINE

pytestmark = pytest.mark.server

PACKAGE = Path(calib_serve.__file__).parent
PROGRAM = Path(__file__).parents[1] / "support" / "publishers.py"

Published = dict[tuple[str, ...], dict[frozenset[tuple[str, str]], float]]
"""(name, sorted label names...) to values by labels."""


def publish(folder: Path, ledger: str) -> tuple[Published, Published]:
    """What TorchServe's workers and ``watch`` publish."""
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, str(PROGRAM), str(folder), ledger]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    workers: Published = {}
    for line in done.stdout.splitlines():
        if match := LINE.fullmatch(line):
            labels = dict(pair.split(":") for pair in match.group(4).split(","))
            _add(workers, match.group(1), labels, float(match.group(3)))
    watch: Published = {}
    for family in text_string_to_metric_families((folder / "watch.txt").read_text()):
        for sample in family.samples:
            _add(watch, sample.name, sample.labels, sample.value)
    return workers, watch


def _add(found: Published, name: str, labels: dict[str, str], more: float) -> None:
    column, key = found.setdefault((name, *sorted(labels)), {}), frozenset(labels.items())
    column[key] = column.get(key, 0.0) + more


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Published, Published]:
    folder = tmp_path_factory.mktemp("published")
    return publish(folder, str(folder / "ledger.db"))


def test_torchserve_publishes_the_declared_series_and_no_other(
    published: tuple[Published, Published],
) -> None:
    assert set(published[0]) == {(s.name, *sorted(s.labels)) for s in (*SERIES, *WORKERS)}


def test_watch_publishes_the_declared_series_and_no_other(published: tuple[Published, Published]) -> None:
    beside = {one.name for one in PUBLISHED if one.of == "predictions"}  # others count them in no ledger
    assert set(published[1]) == {
        (s.name, *sorted({*s.labels, *(LEDGER_LABELS if s.name in beside else ())}))
        for s in (*SERIES, *WATCH, *CONTRACTS, *SHADOWS)
    }


def test_every_publisher_adds_up_what_is_declared(published: tuple[Published, Published]) -> None:
    workers, watch = published
    for one in PUBLISHED:
        key = (one.name, *sorted(one.series.labels))
        counted = (one.name, *sorted({*one.series.labels, *LEDGER_LABELS}))
        mine = [value for labels, value in watch[counted].items() if ("version", "1") in labels]
        assert sum(mine) == pytest.approx(100 * sum(one.adds(c, 1, 1) for c in CONFIDENCES))
        assert sum(workers[key].values()) == pytest.approx(20 * sum(one.adds(c, 0, 1) for c in CONFIDENCES))


def test_the_budget_of_series_in_the_documentation_is_that_of_the_declared_ones() -> None:
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text("utf-8")

    def of_a_version(*declared: Series) -> int:
        """How many one version has, with 15 bins and 5 windows, 4 of them by bin, and no incident."""
        own = {"model", "version", "bin", "window", "reason", "sum", *LEDGER_LABELS}
        many = {"bin": 15, "window": 5, "reason": 4, "sum": 6}
        return sum(
            math.prod(
                4 if label == "window" and "bin" in one.labels else n
                for label, n in many.items()
                if label in one.labels
            )
            for one in declared
            if {"model", "version"} <= set(one.labels) <= own and "_incident_" not in one.name
        )

    watch_alone = of_a_version(*WATCH)
    by_replicas = (
        *(one.series for one in PUBLISHED if one.of == "predictions"),
        *(one for one in SERIES if one.name in ("calib_reference_share", "calib_invalid_outputs_total")),
        *WORKERS,
    )
    for said in (
        f"| **together** | **{of_a_version(*SERIES, *WORKERS)}** |",
        f"and seven more | {watch_alone} |",
        f"Each replica then keeps {of_a_version(*by_replicas)} series",
        f"watch {of_a_version(*SERIES) + watch_alone}:",
    ):
        assert said in page
