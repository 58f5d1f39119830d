"""``calibration.json``: the Grafana dashboard.

It shows one model version at a time: nothing is pooled. Where ``calib-serve watch`` counts the predictions,
panels show its windows, which hold mature labels alone; elsewhere they show the recorded numbers. So no panel
is empty with TorchServe alone, nor with watch alone.
"""

from __future__ import annotations

import json
from typing import Any

from calib_serve.monitoring.chosen import CONFIDENCE, VERSION, gauge, number, per_bin
from calib_serve.monitoring.contract_panels import contract, shadow
from calib_serve.monitoring.lines import detectors, errors, workings
from calib_serve.monitoring.options import MonitoringOptions
from calib_serve.monitoring.panels import SOURCE, Panel, bars, heat, placed, row, table, tile
from calib_serve.monitoring.queries import SAME

__all__ = ["dashboard_file"]

_FIRST = "24h"
"""The window that is shown at first."""


def _tiles() -> tuple[Panel, ...]:
    """The numbers of the window, and the state of the detector."""
    return (
        tile("Predictions", number("served", "predictions"), "short", without="none"),
        tile("Labels", number("labels"), "short", without="none"),
        tile("Coverage", number("coverage")),
        tile("Accuracy", number("accuracy")),
        tile("ECE", number("ece")),
        tile("Open incidents", gauge("incidents_open"), "short", without="no detector"),
        tile("Mean confidence", CONFIDENCE),
        tile("Confidence less accuracy", number("signed_gap", "gap")),
        tile("Noise floor of the ECE", number("noise_floor")),
        tile("Brier (top label)", number("brier"), "none"),
        tile("Age at which labels are in", gauge("maturity_seconds"), "s", without="not known yet"),
        tile("Incidents so far", gauge("incidents_total"), "short", without="no detector"),
    )


def _reliability() -> Panel:
    return bars(
        "Reliability: confidence and accuracy by bin",
        "Equal bars are calibration; confidence above accuracy is overconfidence.",
        "bin",
        {name: per_bin(name) for name in ("confidence", "accuracy")},
    )


def _slices(options: MonitoringOptions) -> Panel:
    """Classes and segments beside all predictions, those furthest off first."""

    def beside(each: str, whole: str) -> str:
        kind = f'label_replace({whole}, "kind", "all", "", "")'
        return f'{gauge(each)} or label_replace({kind}, "slice", "all predictions", "", "")'

    gap = beside("slice_gap", number("signed_gap", "gap", "24h"))
    error = beside("slice_gap_error", number("gap_error", window="24h"))
    return table(
        "Classes and segments over 24 hours: confidence less accuracy",
        f"Off by more than {options.sigmas:g} standard errors beyond the tolerance raises ClassOrSegmentOff.",
        {"gap": gap, "standard error": error, "in standard errors": f"abs({gap}) / ({error})"},
        hidden=("Time", "model", "version"),
        first="in standard errors",
    )


def _variable(kind: str, name: str, label: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "name": name, "label": label, "hide": 0, **more}


def _variables(options: MonitoringOptions) -> list[dict[str, Any]]:
    """Data source, one model, one version, window, further labels, and where the runbooks are."""
    series = f'__name__=~"model_version:calib_(labels|served):{options.ordered_windows[0]}"'
    windows = [{"text": one, "value": one, "selected": one == _FIRST} for one in options.ordered_windows]
    (shown,) = (one for one in windows if one["selected"])
    of_one = {"datasource": SOURCE, "refresh": 2, "multi": False, "includeAll": False}
    model, version = (
        f"label_values({{{series}{chosen}}}, {name})"
        for name, chosen in (("model", ""), ("version", ', model="$model"'))
    )
    clause = f"label_values(calib_contract_promise{{{VERSION}}}, clause)"
    return [
        _variable("datasource", "datasource", "Data source", query="prometheus"),
        _variable("query", "model", "Model", query=model, **of_one),
        _variable("query", "version", "Version", query=version, **of_one),
        _variable(
            "custom",
            "window",
            "Window",
            query=",".join(options.ordered_windows),
            options=windows,
            current=shown,
        ),
        _variable("query", "clause", "Clause", query=clause, **of_one),
        _variable("adhoc", "filters", "Only", datasource=SOURCE),
        _variable("textbox", "runbook", "Runbooks", query=options.runbooks),
    ]


def _link(title: str, section: str) -> dict[str, Any]:
    return {
        "type": "link",
        "icon": "doc",
        "title": title,
        "targetBlank": True,
        "url": f"${{runbook}}#{section}",
    }


def _incidents() -> dict[str, Any]:
    """A mark on all panels wherever an incident was opened."""
    return {
        "name": "Incidents",
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "expr": f"{SAME} (changes(calib_incidents_total{{{VERSION}}}[2m])) > 0",
    }


def _all_else(options: MonitoringOptions) -> tuple[Panel, ...]:
    return (row("Over time"), *errors(options), *detectors(), *workings())


def dashboard_file(options: MonitoringOptions) -> str:
    """The file."""
    histogram = heat("Confidences over time, share by bin", per_bin("share"), "{{bin}}")
    top = (*_tiles(), _reliability(), histogram, _slices(options))
    board = {
        "uid": "calib-serve",
        "title": "Calibration",
        "description": "Does confidence mean what it says? From the counters of calib-serve.",
        "tags": ["calibration"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-24h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [_incidents()]},
        "links": [
            _link("Runbooks", "runbooks"),
            _link("Error high", "calibrationerrorhigh"),
            _link("Drift", "calibrationdrift"),
        ],
        "templating": {"list": _variables(options)},
        "panels": placed((*top, *contract(), *shadow(), *_all_else(options))),
    }
    return json.dumps(board, indent=2, sort_keys=True) + "\n"
