#!/usr/bin/env python3
"""Write ``dashboards/calibration.json``: the Grafana dashboard, as code.

    python deploy/grafana/make_dashboard.py            # writes it
    python deploy/grafana/make_dashboard.py --check    # exit 1 if it is not up to date

Needs grafana-foundation-sdk. It shows one model version at a time: nothing is pooled. Where ``calib-serve
watch`` counts the predictions, panels show its windows, which hold mature labels alone; elsewhere they show
the recorded numbers of deploy/prometheus. So no panel is empty with TorchServe alone, nor with watch alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.builders import barchart, heatmap, stat, table
from grafana_foundation_sdk.builders import dashboard as db
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as m
from lines import SOURCE, detectors, errors, query, workings
from queries import CONFIDENCE, SAME, VERSION, gauge, number, per_bin, recorded, windowed

FILE = Path(__file__).parent / "dashboards" / "calibration.json"
RUNBOOK = "docs/monitoring.md"


def tile(title: str, expression: str, unit: str = "percentunit", *, without: str = "no labels yet"):
    """One number; ``without``: what stands there while it is not known."""
    panel = stat.Panel().title(title).datasource(SOURCE).unit(unit).span(4).height(4).no_value(without)
    return panel.with_target(query(expression))


def changed(panel, **steps: dict[str, object]):
    """The panel with transformations of its tables."""
    for step, options in steps.items():
        panel = panel.with_transformation(m.DataTransformerConfig(id_val=step, options=options))
    return panel


def tiles():
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


def reliability():
    """Mean confidence and accuracy of every bin, side by side: equal bars are calibration."""
    panel = (
        barchart.Panel()
        .title("Reliability: confidence and accuracy by bin")
        .description("Equal bars are calibration; confidence above accuracy is overconfidence.")
        .datasource(SOURCE)
        .unit("percentunit")
        .min(0)
        .max(1)
        .span(12)
        .height(9)
        .x_field("bin")
    )
    for name in ("confidence", "accuracy"):
        panel = panel.with_target(query(per_bin(name), name, rows=True).ref_id(name))
    return changed(
        panel,
        merge={},
        sortBy={"sort": [{"field": "bin"}]},
        filterFieldsByName={"include": {"names": ["bin", "Value #confidence", "Value #accuracy"]}},
        organize={"renameByName": {"Value #confidence": "confidence", "Value #accuracy": "accuracy"}},
    )


def histogram():
    """Where confidences lie, over time."""
    panel = heatmap.Panel().title("Confidences over time, share by bin").datasource(SOURCE)
    return panel.span(12).height(9).with_target(query(per_bin("share"), "{{bin}}"))


def slices():
    """Classes and segments beside all predictions, those furthest off first."""

    def beside(each: str, whole: str) -> str:
        kind = f'label_replace({whole}, "kind", "all", "", "")'
        return f'{gauge(each)} or label_replace({kind}, "slice", "all predictions", "", "")'

    whole = f"{recorded('signed_gap', '24h')} / {recorded('in_the_large_z', '24h')}"
    gap = beside("slice_gap", number("signed_gap", "gap", "24h"))
    error = beside("slice_gap_error", f"({windowed('gap_error', '24h')} or {whole})")
    panel = (
        table.Panel()
        .title("Classes and segments over 24 hours: confidence less accuracy")
        .description("Off by more than four standard errors beyond the tolerance raises ClassOrSegmentOff.")
        .datasource(SOURCE)
        .span(24)
        .height(8)
        .with_target(query(gap, rows=True).ref_id("gap"))
        .with_target(query(error, rows=True).ref_id("error"))
        .with_target(query(f"abs({gap}) / ({error})", rows=True).ref_id("errors"))
    )
    names = {"Value #gap": "gap", "Value #error": "standard error", "Value #errors": "in standard errors"}
    hidden = {"Time": True, "model": True, "version": True}
    return changed(
        panel,
        merge={},
        organize={"excludeByName": hidden, "renameByName": names},
        sortBy={"sort": [{"field": "in standard errors", "desc": True}]},
    )


def variables(board: db.Dashboard) -> db.Dashboard:
    """Data source, one model, one version, window, further labels, and where the runbooks are."""
    series = '__name__=~"model_version:calib_(labels|served):1h"'
    windows = [
        m.VariableOption(text=text, value=text, selected=text == "24h") for text in ("1h", "24h", "7d")
    ]
    board = board.with_variable(db.DatasourceVariable("datasource").type("prometheus").label("Data source"))
    for name, chosen in (("model", ""), ("version", ', model="$model"')):
        values = f"label_values({{{series}{chosen}}}, {name})"
        variable = db.QueryVariable(name).label(name.capitalize()).datasource(SOURCE).query(values)
        board = board.with_variable(variable.refresh(m.VariableRefresh.ON_TIME_RANGE_CHANGED))
    window = db.CustomVariable("window").label("Window").values("1h,24h,7d").options(windows)
    board = board.with_variable(window.current(windows[1]))
    board = board.with_variable(db.AdHocVariable("filters").label("Only").datasource(SOURCE))
    runbook = db.TextBoxVariable("runbook").label("Runbooks").default_value(RUNBOOK)
    return board.with_variable(runbook)


def build():
    """The dashboard."""
    opened = f"{SAME} (changes(calib_incidents_total{{{VERSION}}}[2m])) > 0"
    board = (
        db.Dashboard("Calibration")
        .uid("calib-serve")
        .tags(["calibration"])
        .description("Does confidence mean what it says? From the counters of calib-serve.")
        .refresh("30s")
        .time("now-24h", "now")
        .timezone("browser")
        .readonly()
        .annotation(
            db.AnnotationQuery()
            .name("Incidents")
            .datasource(SOURCE)
            .enable(True)
            .icon_color("red")
            .expr(opened)
        )
    )
    for title, place in (
        ("Runbooks", "runbooks"),
        ("Error high", "calibrationerrorhigh"),
        ("Drift", "calibrationdrift"),
    ):
        link = db.DashboardLink(title).type(m.DashboardLinkType.LINK).icon("doc").target_blank(True)
        board = board.link(link.url(f"${{runbook}}#{place}"))
    board = variables(board)
    for panel in (*tiles(), reliability(), histogram(), slices(), *errors(), *detectors(), *workings()):
        board = board.with_panel(panel)
    return board.build()


def main() -> int:
    """Write or check the file."""
    text = JSONEncoder(sort_keys=True, indent=2).encode(build()) + "\n"
    if "--check" in sys.argv[1:]:
        return 0 if FILE.exists() and FILE.read_text("utf-8") == text else 1
    FILE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
