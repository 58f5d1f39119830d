"""The program that breaks rules and alerts on purpose: what it changes, and what promtool sees of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import real_servers

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
RULES = """
groups:
  - name: calib_1h
    rules:
      - record: model_version:calib_twice:1h
        expr: >-
          2 * max without (instance) (calib_x)
      - record: model_version:calib_unread:1h
        expr: >-
          3 * calib_x
"""
ALERTS = """
groups:
  - name: calib_alerts
    rules:
      - alert: TooMuch
        expr: >-
          model_version:calib_twice:1h > 10
        for: 5m
        labels: {severity: warning}
        annotations:
          summary: "{{ $value | humanizePercentage }}"
"""


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("scripts", "tests/deploy"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rules.yml").write_text(RULES)
    (tmp_path / "alerts.yml").write_text(ALERTS)
    return tmp_path


def above(summary: str = "1020%") -> list[Any]:
    """Return a case of the alert, and one of what it reads, each of one series above the bound."""
    from rule_cases import Case

    series, twice = "calib_x{model='m'}", "model_version:calib_twice:1h"
    asks = [
        {"alertname": "TooMuch", "eval_time": "4m", "exp_alerts": []},
        {
            "alertname": "TooMuch",
            "eval_time": "5m",
            "exp_alerts": [
                {"exp_labels": {"model": "m", "severity": "warning"}, "exp_annotations": {"summary": summary}}
            ],
        },
    ]
    number = {
        "expr": f"{twice} + 0",
        "eval_time": "4m",
        "exp_samples": [{"labels": "{model='m'}", "value": 10.2}],
    }
    return [
        Case(
            "above",
            frozenset({"TooMuch"}),
            1,
            ((f"{twice}{{model='m'}}", "10.2x20"),),
            {"alert_rule_test": asks},
        ),
        Case(
            "twice",
            frozenset({twice}),
            1,
            ((series, "5.1x20"),),
            {"promql_expr_test": [number]},
            ("rules.yml",),
        ),
    ]


def told(folder: Path) -> set[str]:
    from mutants.rule_changes import mutants

    return {one.name for one in mutants(folder)}


def test_each_bound_comparison_wait_label_and_text_becomes_another(folder: Path) -> None:
    assert told(folder) == {
        "TooMuch: 10 -> 9",
        "TooMuch: 10 -> 11",
        "TooMuch: > -> >=",
        "TooMuch: > -> <",
        "TooMuch: for 5m -> 0",
        "TooMuch: for 5m -> 10m",
        "TooMuch: severity warning -> info",
        "TooMuch: severity dropped",
        "TooMuch: summary, humanizePercentage -> humanize",
        "model_version:calib_twice:1h: 2 -> 1.8",
        "model_version:calib_twice:1h: 2 -> 2.2",
        "model_version:calib_twice:1h: * -> /",
        "model_version:calib_twice:1h: max without -> min without",
        "model_version:calib_twice:1h: without instance -> kept (list 1)",
        "model_version:calib_unread:1h: 3 -> 2.7",
        "model_version:calib_unread:1h: 3 -> 3.3",
        "model_version:calib_unread:1h: * -> /",
    }


@pytest.mark.server
def test_what_one_case_above_a_bound_sees_and_what_it_does_not(folder: Path) -> None:
    real_servers.needed("promtool", "prometheus")
    from mutants.rule_bench import Bench
    from mutants.rule_changes import mutants

    bench = Bench(folder, above())
    alive = {one.name for one in mutants(folder) if not bench.try_(one).by}
    assert alive == {
        # No case is below the bound or at it, and no series has replicas; a tenth more is still above it.
        "TooMuch: 10 -> 9",
        "TooMuch: > -> >=",
        "model_version:calib_twice:1h: max without -> min without",
        "model_version:calib_twice:1h: without instance -> kept (list 1)",
        "model_version:calib_unread:1h: 3 -> 2.7",
        "model_version:calib_unread:1h: 3 -> 3.3",
        "model_version:calib_unread:1h: * -> /",
    }


@pytest.mark.server
def test_a_change_that_promtool_cannot_read_is_neither_killed_nor_alive(folder: Path) -> None:
    real_servers.needed("promtool", "prometheus")
    from mutants.rule_bench import Bench
    from mutants.rule_changes import Mutant

    line = RULES.splitlines().index("          2 * max without (instance) (calib_x)")
    broken = Mutant("rules.yml", line, "model_version:calib_twice:1h", "broken", "          2 * max (")
    assert not Bench(folder, above()).try_(broken).valid


@pytest.mark.server
def test_a_case_that_fails_without_a_change_kills_nothing(folder: Path) -> None:
    real_servers.needed("promtool", "prometheus")
    from mutants.rule_bench import Bench, Broken
    from mutants.rule_changes import mutants

    with pytest.raises(Broken, match="above"):
        Bench(folder, above("7%")).try_(mutants(folder)[0])


def test_every_mutant_has_a_name_of_its_own_and_equivalent_ones_a_reason() -> None:
    from mutants.rule_changes import mutants

    names = [one.name for one in mutants(DEPLOY)]
    assert len(names) == len(set(names)) > 1000
    lines = (ROOT / "scripts/mutants/equivalent_alerts.txt").read_text().splitlines()
    listed = [line.split(" | ")[0] for line in lines]
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(names)
    assert all(len(line.split(" | ")) == 2 for line in lines)
