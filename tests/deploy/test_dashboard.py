"""The rules and the dashboard on a real Prometheus, of which three deployments take different parts."""

import json
from pathlib import Path

import numpy as np
import pytest
from live_server import until
from real_prometheus import Published, prometheus, publishing
from rules_by_numpy import bins_by_numpy, by_numpy
from sizes import sized

from calib_serve.watch.series import CONTRACTS, SERIES, SHADOWS, WATCH, WORKERS, Series
from calib_serve.watch.sums import Sums

pytestmark = pytest.mark.server

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "calibration.json").read_text())
OF_TORCHSERVE = tuple(
    Series(f"ts_inference_{name}", "counter", ("model_name", "model_version"), "TorchServe's own.")
    for name in ("latency_microseconds", "requests_total")
)
WINDOW = {"calib_window_accuracy": 0.81, "calib_window_gap": 0.04, "calib_window_ece": 0.05}
GAUGES = {
    "Predictions": {"": "calib_window_predictions"},
    "Labels": {"": "calib_window_labels"},
    "Coverage": {"": "calib_window_coverage"},
    "Confidence less accuracy": {"": "calib_window_gap"},
    "Noise floor of the ECE": {"": "calib_window_noise_floor"},
    "Brier (top label)": {"": "calib_window_brier"},
    "Age at which labels are in": {"": "calib_maturity_seconds"},
    "ECE, its noise floor, and what of it is no chance": {
        "ECE": "calib_window_ece",
        "noise floor": "calib_window_noise_floor",
        "debiased, low": "calib_window_debiased_ece_low",
        "debiased, high": "calib_window_debiased_ece_high",
    },
    "What labels cover": {"coverage": "calib_window_coverage", "immature": "calib_window_immature_share"},
    "Promises": {
        "promise": "calib_contract_promise",
        "over its time": "calib_contract_value",
        "at least": "calib_contract_low",
        "at most": "calib_contract_high",
        "budget left": "calib_contract_budget_left",
        "runs out in": "calib_contract_runs_out_seconds",
    },
    "What the shadow gains": {
        "gain": "calib_shadow_gain",
        "at least": "calib_shadow_gain_low",
        "at most": "calib_shadow_gain_high",
    },
    "Drift evidence": {"evidence": "calib_drift_log_evidence", "threshold": "calib_drift_log_threshold"},
}
"""What queries of panels show, by their legends, where watch publishes it."""
NAMES = sorted({name for panel in GAUGES.values() for name in panel.values()} - set(WINDOW))
WINDOW |= {name: 10 + i for i, name in enumerate(NAMES)}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ROWS = {"Contract", "Shadow"}
"""Of versions that have one."""
DEPLOYMENTS = ("torchserve", "watch", "triton")
EVEN = np.ones(15)


@pytest.fixture(scope="module")
def sent():
    """Confidences, right or not, and weights: below .7 all labelled, one in twenty above."""

    def one(seed):
        rng = np.random.default_rng(seed)
        c = rng.beta(5, 2, 6000)
        y = (rng.random(6000) < c - 0.05 * seed).astype(float)
        chance = np.where(c < 0.7, 1.0, 0.05)
        # The first does not say with what chance labels were asked for: within a bin it does not matter.
        return c, y, 1 / chance if seed else np.ones(6000), rng.random(6000) < chance

    return {name: one(i) for i, name in enumerate(DEPLOYMENTS)}


@pytest.fixture(scope="module")
def there(sent, tmp_path_factory):
    """Each deployment in an environment of its own, under the same model name."""
    even = {"calib_reference_share": 1 / len(EVEN)}
    torchserve = Published((*SERIES, *WORKERS, *OF_TORCHSERVE), even)
    watch = Published((*SERIES, *WATCH, *CONTRACTS, *SHADOWS), {**WINDOW, **even})
    triton = Published(SERIES[:2], {})
    # What watch says where Triton counts the predictions: nothing that is weighed by predictions.
    labels = Published((*SERIES, *WATCH), {**WINDOW, **even, "calib_window_predictions": 0})
    every = (torchserve, watch, triton, labels)
    names = ("torchserve", "watch", "triton", "triton")
    with (
        publishing(every[0]) as a,
        publishing(every[1]) as b,
        publishing(every[2]) as c,
        publishing(every[3]) as d,
        prometheus(
            tmp_path_factory.mktemp("prometheus"),
            [(host, {"env": name}) for host, name in zip((a, b, c, d), names, strict=True)],
            since_start=("1h",),
        ) as found,
    ):
        found.wait("sum(up) == 4")
        found.wait("count(ledger:calib_feedback_total:max) == 45")  # every bin at 0, of three
        for one, name in zip(every, names, strict=True):
            confidence, right, weight, seen = sent[name]
            served = Sums.served(confidence)
            labelled = Sums.labelled(confidence[seen], right[seen], weight=weight[seen])
            one.sums = {triton: served, labels: labelled}.get(one, served + labelled)
        for query in (
            "count(model_version:calib_labels:1h > 1000) == 3",
            "count(model_version:calib_ece:7d) == 3",
            "count(model_version:calib_ece:24h) == 3",
            "count(model_version:calib_served:1h > 5999) == 3",
            # For some evaluations: until predictions are there, numbers are weighed by labels.
            "count(count_over_time((model_version:calib_served:24h > 5000)[2m:1s]) > 10) == 3",
            "count(count_over_time((model_version:calib_served:7d > 5000)[2m:1s]) > 10) == 3",
        ):
            found.wait(query)
        yield found


def becomes(there, expression, env, wanted):
    """Within a fiftieth: means over 24 hours hold evaluations from before the predictions were there."""
    near = pytest.approx(wanted, rel=0.02)
    until(lambda: there.number(expression, env=env) == near)


def filled(expression, window):
    for name, value in (
        ("$window", window),
        ("$model", "m"),
        ("$version", "1"),
        ("$clause", "act"),
    ):
        expression = expression.replace(name, value)
    assert "$" not in expression.replace("$1", "")
    return expression


def outside(rows):
    """The panels that stand below none of these rows."""
    found, below = [], ""
    for panel in DASHBOARD["panels"]:
        below = panel["title"] if panel["type"] == "row" else below
        found += [panel] if panel["type"] != "row" and below not in rows else []
    return found


@pytest.mark.parametrize("window", sized(ci=["24h"], nightly=["1h", "24h", "7d"]))
def test_no_panel_is_empty_whichever_server_publishes(there, window):
    assert len(PANELS) > 30
    for name, panels in (("torchserve", outside(ROWS)), ("watch", PANELS)):
        for panel in panels:
            rows = [there.query(filled(one["expr"], window), env=name) for one in panel["targets"]]
            assert any(rows), f"{panel['title']} is empty with {name} alone"


def tile(title):
    (panel,) = [panel for panel in DASHBOARD["panels"] if panel["title"] == title]
    return filled(panel["targets"][0]["expr"], "24h")


def value(there, title, legend, env):
    (panel,) = [panel for panel in PANELS if panel["title"] == title]
    (query,) = [one for one in panel["targets"] if one["legendFormat"].split("{{")[0].strip() == legend]
    return there.number(filled(query["expr"], "1h"), env=env)


def test_panels_of_gauges_show_those_that_they_name(there):
    for title, legends in GAUGES.items():
        for legend, name in legends.items():
            assert value(there, title, legend, "watch") == WINDOW[name], (title, legend)


@pytest.mark.parametrize("name", ["torchserve", "triton"])
def test_panels_of_sums_show_what_numpy_finds(there, sent, name):
    n = by_numpy(*sent[name], EVEN)
    wanted = {
        ("Predictions", ""): n["served"],
        ("Labels", ""): n["labels"],
        ("Coverage", ""): n["coverage"],
        ("Accuracy", ""): n["accuracy"],
        ("ECE", ""): n["ece"],
        ("Mean confidence", ""): n["accuracy"] + n["signed_gap"],
        ("Confidence less accuracy", ""): n["signed_gap"],
        ("Noise floor of the ECE", ""): n["noise_floor"],
        ("Brier (top label)", ""): n["brier"],
        # Four standard errors, of numbers whose mean distance from zero is .7979 of one, less that mean.
        ("ECE, its noise floor, and what of it is no chance", "floor + 4 sigma"): n["noise_floor"]
        + 4 * np.sqrt(1 - 2 / np.pi) * n["gap_error"],
        ("Confidence and accuracy", "confidence of all predictions"): n["served_confidence"],
        ("Gaps", "largest gap"): n["mce"],
        ("What labels cover", "labels per prediction"): n["labels"] / n["served"],
        ("Confidence shift (PSI)", "PSI"): n["confidence_psi"],
    }
    for (title, legend), number in wanted.items():
        # The bound is written with six digits.
        assert value(there, title, legend, name) == pytest.approx(number, rel=1e-6), (title, legend)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_bars_and_the_heatmap_show_what_numpy_finds_in_each_bin(there, sent, name):
    bins = bins_by_numpy(*sent[name])
    wanted = {"confidence": bins["confidence"], "accuracy": bins["accuracy"], "{{bin}}": bins["share"]}
    for panel in PANELS:
        if panel["title"].startswith(("Reliability", "Confidences over time")):
            for one in panel["targets"]:
                rows = there.query(filled(one["expr"], "1h"), env=name)
                found = {int(row["metric"]["bin"]): float(row["value"][1]) for row in rows}
                there_is = {k: v for k, v in enumerate(wanted[one["legendFormat"]]) if not np.isnan(v)}
                assert found == pytest.approx(there_is, rel=1e-9), (panel["title"], one["legendFormat"])


def test_mature_windows_are_preferred_where_watch_counts_the_predictions(there, sent):
    assert there.number(tile("Accuracy"), env="watch") == 0.81
    assert there.number(tile("Mean confidence"), env="watch") == pytest.approx(0.85)
    for name in ("torchserve", "triton"):
        wanted = by_numpy(*sent[name], EVEN)["accuracy"]
        becomes(there, tile("Accuracy"), name, wanted)
