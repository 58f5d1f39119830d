"""``calib-serve audit``: its numbers and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import calib_serve
from libraries import library
from logs import expected, some_logs
from pyarrow import parquet

library("ibis")

pytestmark = pytest.mark.filterwarnings("ignore:::ibis")


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = some_logs(600)
    parquet.write_table(made.predictions, tmp_path / "p.parquet")
    parquet.write_table(made.labels, tmp_path / "l.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> str:
    done = calib_serve("audit", *words, "--confidence-of", "predicted")
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_json_holds_the_numbers_of_numpy_and_nothing_but_json(logs: Path) -> None:
    told = json.loads(run("p.parquet", "--labels", "l.parquet", "--json", "--by", "model"))
    wanted = expected(some_logs(600))
    (group,) = told["groups"]
    assert group["by"] == {"model": "pets"}
    assert group["labelled"]["ece"] == pytest.approx(wanted.ece, abs=1e-12)
    np.testing.assert_allclose(group["bins"]["confidence"], wanted.confidence, rtol=1e-12)
    assert told["total"] == {**group, "by": {}}
    rows = told["labels"]
    assert rows["rows"] == rows["counted"] == 400


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--since", "2026-01-01", "no zone"),
        ("--until", "soon", "is a time such as"),
        ("--every", "1 month", "such as 1d"),
        ("--column", "score=confidence", "NAME=COLUMN"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_read(option: str, value: str, says: str) -> None:
    done = calib_serve("audit", "none", "--labels", "none", option, value)
    assert done.exit_code == 2
    assert option in done.stderr
    assert says in done.stderr


@pytest.mark.parametrize("role", ["weight", "model", "version"])
def test_a_column_that_was_named_is_missed(role: str, logs: Path) -> None:
    done = calib_serve("audit", "p.parquet", "--labels", "l.parquet", "--column", f"{role}=nosuch")
    assert (done.exit_code, "no column nosuch" in done.stderr) == (2, True)


def test_since_is_read_with_its_zone(logs: Path) -> None:
    words = ("p.parquet", "--labels", "l.parquet", "--json", "--since", "2025-06-15T20:46:40+05:30")
    told = json.loads(run(*words))
    assert told["total"]["since"] == "2025-06-15T15:16:40+00:00"
    assert told["predictions"]["rows"] == 590


def test_the_table_shows_each_group_and_all_together(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    asked = ("p.parquet", "--labels", "l.parquet", "--by", "model,segment")
    told, shown = json.loads(run(*asked, "--json")), run(*asked)
    assert shown.startswith(told["reading"])
    assert "600 predictions, 400 labels; shares in percent" in shown
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines()]
    groups = [(one, " ".join(one["by"].values())) for one in told["groups"]]
    for group, name in [*groups, (told["total"], "all")]:
        of, error = group["labelled"], group["estimated"]["debiased_ece"]
        numbers = [str(group["predictions"]), str(group["labels"])]
        numbers += [f"{100 * of['accuracy']:.2f}", f"{100 * of['signed_gap']:+.2f}", f"{100 * of['ece']:.2f}"]
        assert [name, *numbers, f"{100 * error['low']:.2f} to {100 * error['high']:.2f}"] in rows
    verdicts = [one["verdict"]["headline"] for one in told["groups"]]
    assert [line for line in shown.splitlines() if line in verdicts] == verdicts
    bins = told["total"]["bins"]["count"]
    assert [row[1] for row in rows if len(row) == 4] == [f"{n:.0f}" for n in bins if n]


def test_of_many_windows_the_first_verdicts_are_shown(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    shown = run("p.parquet", "--labels", "l.parquet", "--every", "45m", "--since", "2025-06-15T15:00:00Z")
    titles = [line for line in shown.splitlines() if line.endswith("Z:")]
    assert titles[:2] == ["pets 1.0 2025-06-15 15:00Z:", "pets 1.0 2025-06-15 15:45Z:"]
    windows = sum(line.startswith("│ pets") for line in shown.splitlines())
    assert len(titles) == 10
    assert shown.splitlines()[-1] == f"{windows - 10} more verdicts by --json"


def test_confidences_of_one_class_are_shown_as_its_own(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    done = calib_serve("audit", "p.parquet", "--labels", "l.parquet", "--by", "model", "--confidence-of", "2")
    assert done.exit_code == 0, done.stderr
    assert "share of 2" in done.stdout
    assert "reliability: bars are the share of 2, | is P(2)" in done.stdout
