#!/usr/bin/env python3
"""Write ``dashboards/calibration.json``: the Grafana dashboard, as code.

    python deploy/grafana/make_dashboard.py            # writes it
    python deploy/grafana/make_dashboard.py --check    # exit 1 if it is not up to date

Needs grafana-foundation-sdk. Panels read the recording rules of deploy/prometheus, so a number
means the same on a panel, in an alert and in numpy.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.builders import barchart, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as db
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as m
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FILE = Path(__file__).parent / "dashboards" / "calibration.json"
SOURCE = m.DataSourceRef(type_val="prometheus", uid="${datasource}")
CHOSEN = '{model=~"$model", version=~"$version"}'
NAME = "{{model}} {{version}}"


def number(name: str) -> str:
    """The recorded number over the chosen window."""
    return f"model_version:calib_{name}:$window{CHOSEN}"


def per_bin(name: str) -> str:
    """The recorded sum of every bin over the chosen window."""
    return f"model_version_bin:calib_{name}:$window{CHOSEN}"


def query(expression: str, legend: str = NAME, *, table: bool = False) -> prometheus.Dataquery:
    """A range query, or an instant one for a table."""
    target = prometheus.Dataquery().expr(expression).legend_format(legend)
    return target.instant().format(PromQueryFormat.TABLE) if table else target.range()


def curves(title: str, says: str, *targets: prometheus.Dataquery, unit: str = "percentunit"):
    """A panel of lines over time."""
    panel = timeseries.Panel().title(title).description(says).datasource(SOURCE).unit(unit).span(12).height(8)
    for target in targets:
        panel = panel.with_target(target)
    return panel


def tile(title: str, expression: str, unit: str):
    """One number."""
    panel = stat.Panel().title(title).datasource(SOURCE).unit(unit).span(4).height(4)
    return panel.with_target(query(expression))


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
    for legend, name in (("confidence", "feedback_confidence"), ("accuracy", "feedback_correct")):
        expression = f"sum by (bin) ({per_bin(name)}) / (sum by (bin) ({per_bin('feedback')}) > 0)"
        panel = panel.with_target(query(expression, legend, table=True).ref_id(legend))
    for step, options in (
        ("joinByField", {"byField": "bin", "mode": "outer"}),
        ("convertFieldType", {"conversions": [{"targetField": "bin", "destinationType": "number"}]}),
        ("sortBy", {"sort": [{"field": "bin"}]}),
        (
            "organize",
            {
                "excludeByName": {"Time": True, "Time 1": True, "Time 2": True},
                "renameByName": {"Value #confidence": "confidence", "Value #accuracy": "accuracy"},
            },
        ),
    ):
        panel = panel.with_transformation(m.DataTransformerConfig(id_val=step, options=options))
    return panel


def histogram():
    """Where confidences lie, over time."""
    share = f"sum by (bin) ({per_bin('predictions')}) / scalar(sum({per_bin('predictions')}))"
    return (
        heatmap.Panel()
        .title("Confidences over time, share by bin")
        .datasource(SOURCE)
        .span(12)
        .height(9)
        .with_target(query(share, "{{bin}}"))
    )


def variables(board: db.Dashboard) -> db.Dashboard:
    """Data source, model, version, window."""
    windows = [
        m.VariableOption(text=text, value=text, selected=text == "1h") for text in ("5m", "1h", "1d", "total")
    ]
    labels = "label_values(model_version:calib_served:total, model)"
    versions = 'label_values(model_version:calib_served:total{model=~"$model"}, version)'
    board = board.with_variable(db.DatasourceVariable("datasource").type("prometheus").label("Data source"))
    for name, values in (("model", labels), ("version", versions)):
        variable = db.QueryVariable(name).datasource(SOURCE).query(values).include_all(True).multi(True)
        board = board.with_variable(variable.all_value(".*").refresh(m.VariableRefresh.ON_TIME_RANGE_CHANGED))
    window = db.CustomVariable("window").label("Window").values("5m,1h,1d,total").options(windows)
    return board.with_variable(window.current(windows[1]))


def build():
    """The dashboard."""
    board = (
        db.Dashboard("Calibration")
        .uid("calib-serve")
        .tags(["calibration"])
        .description("Does confidence mean what it says? From the counters of calib-serve.")
        .refresh("30s")
        .time("now-24h", "now")
        .timezone("browser")
        .readonly()
    )
    board = variables(board)
    for title, name, unit in (
        ("Labels", "labels", "short"),
        ("Accuracy", "accuracy", "percentunit"),
        ("Mean confidence", "mean_confidence", "percentunit"),
        ("ECE", "ece", "percentunit"),
        ("Noise floor", "noise_floor", "percentunit"),
        ("Brier (top label)", "brier", "none"),
    ):
        board = board.with_panel(tile(title, number(name), unit))
    for panel in (
        reliability(),
        curves(
            "ECE and its noise floor",
            "Alarming is ECE far above the floor, with enough labels; not ECE alone.",
            query(number("ece"), f"ECE {NAME}"),
            query(number("noise_floor"), f"floor {NAME}"),
            query(f"{number('noise_floor')} + 4 * {number('ece_sigma')}", f"floor + 4 sigma {NAME}"),
        ),
        histogram(),
        curves(
            "Confidence and accuracy",
            "The gap between the lines is the signed calibration gap.",
            query(number("mean_confidence"), f"confidence {NAME}"),
            query(number("accuracy"), f"accuracy {NAME}"),
            query(number("served_confidence"), f"confidence of all predictions {NAME}"),
        ),
        curves(
            "Drift evidence",
            "Natural log of the detector's statistic and where it alarms; it starts afresh after an alarm.",
            query(f"max by (model, version) (calib_drift_log_evidence{CHOSEN})", f"evidence {NAME}"),
            query(f"max by (model, version) (calib_drift_log_threshold{CHOSEN})", f"threshold {NAME}"),
            unit="none",
        ),
        curves(
            "Drift alarms",
            "Alarms so far.",
            query(f"sum by (model, version) (calib_drift_alarms_total{CHOSEN})"),
            unit="short",
        ),
        curves(
            "Signed gap and largest gap",
            "Above zero is overconfident. The largest gap is over bins with at least 20 labels.",
            query(number("signed_gap"), f"signed gap {NAME}"),
            query(number("mce"), f"largest gap {NAME}"),
        ),
        curves(
            "Confidence shift (PSI)",
            "Against the artifact's reference, without labels; above 0.2 is a shift.",
            query(number("confidence_psi")),
            unit="none",
        ),
        curves(
            "Labels joined",
            "Labels per prediction over the window.",
            query(number("label_share")),
        ),
        curves(
            "Labels refused",
            "By reason, since the servers started.",
            query("sum by (reason) (calib_feedback_refused_total)", "{{reason}}"),
            unit="short",
        ),
        curves(
            "Answer time of watch",
            "Mean seconds a request.",
            query(
                "sum by (route) (rate(calib_request_seconds_total[5m]))"
                " / (sum by (route) (rate(calib_requests_total[5m])) > 0)",
                "{{route}}",
            ),
            unit="s",
        ),
        curves(
            "Trouble",
            "Failures of the monitoring itself, and model outputs with NaN or infinity.",
            query("sum by (stage) (calib_monitor_errors_total)", "{{stage}}"),
            query(f"sum by (model, version) (calib_invalid_outputs_total{CHOSEN})", f"invalid {NAME}"),
            unit="short",
        ),
    ):
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
