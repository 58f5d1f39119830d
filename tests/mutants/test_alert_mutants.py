"""The program that breaks rules and alerts on purpose: what it changes, and what promtool sees of it."""

from __future__ import annotations

from pathlib import Path

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
TEST = """
rule_files: [rules.yml, alerts.yml]
evaluation_interval: 1m
group_eval_order: [calib_1h, calib_alerts]
tests:
  - interval: 1m
    name: above
    input_series:
      - {series: 'calib_x{model="m"}', values: '5.1x20'}
    alert_rule_test:
      - {alertname: TooMuch, eval_time: 4m, exp_alerts: []}
      - alertname: TooMuch
        eval_time: 5m
        exp_alerts:
          - exp_labels: {model: m, severity: warning}
            exp_annotations: {summary: "1020%"}
"""


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rules.yml").write_text(RULES)
    (tmp_path / "alerts.yml").write_text(ALERTS)
    (tmp_path / "toy_test.yml").write_text(TEST)
    return tmp_path


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
        "TooMuch: summary dropped",
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


def test_what_one_case_above_a_bound_sees_and_what_it_does_not(folder: Path) -> None:
    real_servers.needed("promtool", "prometheus")
    from mutants.rule_cases import Bench
    from mutants.rule_changes import mutants

    bench = Bench(folder)
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


def test_a_change_that_promtool_cannot_read_is_neither_killed_nor_alive(folder: Path) -> None:
    real_servers.needed("promtool", "prometheus")
    from mutants.rule_cases import Bench
    from mutants.rule_changes import Mutant

    line = RULES.splitlines().index("          2 * max without (instance) (calib_x)")
    broken = Mutant("rules.yml", line, "model_version:calib_twice:1h", "broken", "          2 * max (")
    assert not Bench(folder).try_(broken).valid


def test_a_case_that_fails_without_a_change_kills_nothing(folder: Path) -> None:
    real_servers.needed("promtool", "prometheus")
    from mutants.rule_cases import Bench, Broken
    from mutants.rule_changes import mutants

    (folder / "toy_test.yml").write_text(TEST.replace("1020%", "7%"))
    with pytest.raises(Broken, match="'above' fails with the rules as they are"):
        Bench(folder).try_(mutants(folder)[0])


def test_every_mutant_has_a_name_of_its_own_and_equivalent_ones_a_reason() -> None:
    from mutants.rule_changes import mutants

    names = [one.name for one in mutants(DEPLOY)]
    assert len(names) == len(set(names)) > 1000
    lines = (ROOT / "scripts/mutants/equivalent_alerts.txt").read_text().splitlines()
    listed = [line.split(" | ")[0] for line in lines]
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(names)
    assert all(len(line.split(" | ")) == 2 for line in lines)
