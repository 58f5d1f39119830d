"""Every publisher publishes what is declared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from publishers import CONFIDENCES

import calib_serve
from calib_serve.monitor import TOTALS
from calib_serve.receipts.series import (
    CONTRACTS,
    PUBLISHED,
    SERIES,
    SUMS,
    WATCH,
    WORKERS,
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
    of_servers = {one.name for one in PUBLISHED if one.of == "predictions"}  # they count by bin, in no ledger
    of_ledgers = {(name, "edition", "ledger", "model", "version") for name in TOTALS}
    assert set(published[1]) == of_ledgers | {
        (s.name, *sorted(s.labels)) for s in (*SERIES, *WATCH, *CONTRACTS) if s.name not in of_servers
    }


def test_every_publisher_adds_up_what_is_declared(published: tuple[Published, Published]) -> None:
    workers, watch = published
    for one in PUBLISHED:
        key = (one.name, *sorted(one.series.labels))
        assert sum(workers[key].values()) == pytest.approx(20 * sum(one.adds(c, 0, 1) for c in CONFIDENCES))
    for name in TOTALS:
        told = watch[name, "edition", "ledger", "model", "version"]
        assert {n for labels, n in told.items() if ("version", "1") in labels} == {100 * len(CONFIDENCES)}
    for one in (each for each in SUMS if each.in_windows):
        (told,) = (of for (name, *_), of in watch.items() if name == "calib_window_sums")
        own = {("version", "1"), ("sum", one.short), ("window", "24h")}
        mine = [n for labels, n in told.items() if own <= labels]
        want = 100 * sum(one.adds(c, 1, 1) for c in CONFIDENCES)
        # Weights that are all 1 are not told: they are the labels' number.
        assert sum(mine) == pytest.approx(0 if one.short == "feedback_weight" else want)
