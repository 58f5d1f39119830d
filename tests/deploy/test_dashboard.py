"""The rules and the dashboard on a real Prometheus, of which three deployments take different parts."""

import json

import numpy as np
import pytest
from real_prometheus import Published, prometheus, publishing
from rules_by_numpy import bins_by_numpy, bins_of, by_numpy

from calib_serve.receipts.series import CONTRACTS, SERIES, WATCH, WORKERS
from calib_serve.receipts.sums import Sums
from calib_serve.web import monitoring_files

pytestmark = pytest.mark.server

(TEXT,) = monitoring_files(parts=["dashboards"]).values()
DASHBOARD = json.loads(TEXT)
WINDOW = {
    "calib_window_accuracy": 0.81, "calib_window_gap": 0.04, "calib_window_ece": 0.05,
    "calib_window_verdict": 0.5, "calib_window_coverage": 0.9, "calib_window_noise_floor": 0.03,
}  # fmt: skip
PANELS = DASHBOARD["panels"]
OF_A_CONTRACT = "Promises of its contract"
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
    even = {"calib_reference_share": 1 / len(EVEN), "calib_window_provisional": 0}
    torchserve = Published((*SERIES, *WORKERS), even)
    watch = Published((*SERIES, *WATCH, *CONTRACTS), {**WINDOW, **even})
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
            since_start=True,
        ) as found,
    ):
        found.wait("sum(up) == 4")
        found.wait("count(calib_window_sums{window='24h', sum='feedback'}) == 45")  # every bin at 0, of three
        for one, name in zip(every, names, strict=True):
            confidence, right, weight, seen = sent[name]
            served = Sums.served(confidence)
            labelled = Sums.labelled(confidence[seen], right[seen], weight=weight[seen])
            one.sums = {triton: served, labels: labelled}.get(one, served + labelled)
        for query in (
            "count(model_version:calib_labels:24h > 1000) == 3",
            "count(model_version:calib_served:24h > 5999) == 3",
            "count(model_version:calib_verdict:24h) == 3",
            "count(count_over_time((model_version:calib_served:24h > 5999)[1m:1s]) > 3) == 3",
        ):
            found.wait(query)
        yield found


def filled(expression):
    for name, value in (("$model", "m"), ("$version", "1")):
        expression = expression.replace(name, value)
    assert "$" not in expression.replace("$1", "")
    return expression


def test_no_panel_is_empty_whichever_server_publishes(there):
    assert 10 < len(PANELS) < 15
    for name in ("torchserve", "watch"):
        for panel in PANELS:
            rows = [there.query(filled(one["expr"]), env=name) for one in panel["targets"]]
            assert any(rows) or (name, panel["title"]) == ("torchserve", OF_A_CONTRACT), panel["title"]


def value(there, title, legend, env):
    (panel,) = [panel for panel in PANELS if panel["title"] == title]
    (query,) = [one for one in panel["targets"] if one["legendFormat"].split("{{")[0].strip() == legend]
    return there.number(filled(query["expr"]), env=env)


@pytest.mark.parametrize("name", ["torchserve", "triton"])
def test_panels_of_sums_show_what_numpy_finds(there, sent, name):
    n = by_numpy(*sent[name], EVEN)
    wanted = {
        ("Verdict", ""): n["verdict"],
        ("Accuracy and mean confidence", "accuracy"): n["accuracy"],
        ("Accuracy and mean confidence", "confidence"): n["accuracy"] + n["signed_gap"],
        ("Predictions and labels", "predictions"): n["served"],
        ("Predictions and labels", "labels"): n["labels"],
        ("Predictions and labels", "covered"): n["coverage"],
        ("ECE, and what chance alone would show", "ECE"): n["ece"],
        ("ECE, and what chance alone would show", "by chance"): n["noise_floor"],
        ("Labels coming in, and refused", "a prediction"): n["labels"] / n["served"],
    }
    for (title, legend), number in wanted.items():
        assert value(there, title, legend, name) == pytest.approx(number, rel=1e-9), (title, legend)
    assert there.number("model_version:calib_confidence_psi:24h", env=name) == pytest.approx(
        n["confidence_psi"], rel=1e-9
    )


def bins_of_labels(c, y, weight, labelled):
    """Weighted mean confidence and share of right ones in each bin with any label."""
    c, y, w, b = c[labelled], y[labelled], weight[labelled], bins_of(c[labelled])
    found = {name: np.full(15, np.nan) for name in ("confidence", "accuracy")}
    for k in np.unique(b):
        found["confidence"][k] = np.average(c[b == k], weights=w[b == k])
        found["accuracy"][k] = np.average(y[b == k], weights=w[b == k])
    return found


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_bars_show_what_numpy_finds_in_each_bin(there, sent, name):
    bins = bins_by_numpy(*sent[name])
    wanted = {
        **bins_of_labels(*sent[name]), "served": bins["share"],
        "reference": np.full(15, 1 / 15),
    }  # fmt: skip
    for panel in PANELS:
        for one in panel["targets"] if panel["type"] == "barchart" else ():
            rows = there.query(filled(one["expr"]), env=name)
            found = {int(row["metric"]["bin"]): float(row["value"][1]) for row in rows}
            there_is = {k: v for k, v in enumerate(wanted[one["legendFormat"]]) if not np.isnan(v)}
            assert found == pytest.approx(there_is, rel=1e-9), (panel["title"], one["legendFormat"])
