"""Every publisher publishes what is declared, and a declaration is all that a new sum needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from ledgers import accept, make_label
from prometheus_client.parser import text_string_to_metric_families
from publishers import CONFIDENCES

import calib_serve
from calib_serve.serve.metric_lines import LINE
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.series import CONTRACTS, PUBLISHED, SEGMENTS, SERIES, SHADOWS, WATCH, WORKERS

PACKAGE = Path(calib_serve.__file__).parent
PROGRAM = Path(__file__).parents[1] / "support" / "publishers.py"

Published = dict[tuple[str, ...], dict[frozenset[tuple[str, str]], float]]
"""(name, sorted label names...) to values by labels."""


def publish(folder: Path, ledger: str, *, package: Path = PACKAGE) -> tuple[Published, Published]:
    """What TorchServe's workers and ``watch`` publish with this package."""
    environment = os.environ | {"PYTHONPATH": str(package.parent)}
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
    assert set(published[1]) == {
        (s.name, *sorted(s.labels)) for s in (*SERIES, *SEGMENTS, *WATCH, *CONTRACTS, *SHADOWS)
    }


def test_every_publisher_adds_up_what_is_declared(published: tuple[Published, Published]) -> None:
    workers, watch = published
    for one in PUBLISHED:
        key = (one.name, *sorted(one.series.labels))
        assert sum(watch[key].values()) == pytest.approx(100 * sum(one.adds(c, 1, 1) for c in CONFIDENCES))
        assert sum(workers[key].values()) == pytest.approx(20 * sum(one.adds(c, 0, 1) for c in CONFIDENCES))


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_one_more_sum_is_one_more_declaration_and_ledgers_of_before_are_read(
    tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    package = tmp_path / "calib_serve"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    declared = package / "watch" / "series.py"
    cubed = (
        '    Sum("calib_feedback_cubed_total", "3", of="labels", adds=lambda c, _y, w: w * c**3,'
        ' by_segment="3"),\n'
        '    Sum("calib_predictions_cubed_total", "3", of="predictions", adds=lambda c, _y, _w: c**3),\n'
    )
    text = declared.read_text()
    assert text.count(")\n\nPUBLISHED:") == 1
    declared.write_text(text.replace(")\n\nPUBLISHED:", f"{cubed})\n\nPUBLISHED:"))
    with closing(SqliteLedger(tmp_path / "ledger.db")) as before:  # its vectors are shorter
        accept(before, [make_label(1)])
    # A database of its own: others that share this Redis do not know the new sum.
    ledger = str(tmp_path / "ledger.db")
    if store == "redis":
        ledger = request.getfixturevalue("empty_redis")
    workers, watch = publish(tmp_path, ledger, package=package)
    for name in ("calib_feedback_cubed_total", "calib_predictions_cubed_total"):
        key = (name, "bin", "model", "version")
        assert len(workers[key]) == len(watch[key]) == 15
        assert sum(workers[key].values()) == pytest.approx(20 * sum(c**3 for c in CONFIDENCES))
        assert sum(watch[key].values()) == pytest.approx(100 * sum(c**3 for c in CONFIDENCES))
    assert ("calib_segment_feedback_cubed_total", "bin", "model", "segment", "version") in watch
