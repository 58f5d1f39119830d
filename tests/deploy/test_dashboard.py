"""The rules and the dashboard on a real Prometheus, of which three deployments take different parts."""

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from live_server import until
from real_prometheus import Published, prometheus, publishing
from rules_by_numpy import by_numpy
from sizes import sized

from calib_serve.watch.ledger.sums import Sums
from calib_serve.watch.series import CONTRACTS, SERIES, SHADOWS, WATCH, WORKERS, Series

pytestmark = pytest.mark.server

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "calibration.json").read_text())
OF_TORCHSERVE = tuple(
    Series(f"ts_inference_{name}", "counter", ("model_name", "model_version"), "TorchServe's own.")
    for name in ("latency_microseconds", "requests_total")
)
WINDOW = {"calib_window_accuracy": 0.81, "calib_window_gap": 0.04, "calib_window_ece": 0.05}
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


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_recorded_number_equals_numpy_and_no_deployment_mixes_with_another(there, sent, name):
    wanted = by_numpy(*sent[name], EVEN)
    rules = (GRAFANA.parent / "prometheus" / "rules.yml").read_text()
    assert set(re.findall(r"record: model_version:calib_(\w+):1h", rules)) == set(wanted)
    for number, value in wanted.items():
        found = there.number(f"model_version:calib_{number}:1h", env=name)
        assert found == pytest.approx(value, rel=1e-9), number
    for number in ("accuracy", "signed_gap", "ece"):
        becomes(there, f"model_version:calib_{number}:24h", name, wanted[number])


def test_the_numbers_are_of_all_predictions_not_of_the_labelled_ones(there, sent):
    _, y, _, seen = sent["torchserve"]
    found = there.number("model_version:calib_accuracy:1h", env="torchserve")
    assert abs(found - y.mean()) < 0.03
    assert y.mean() - y[seen].mean() > 0.1


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


@pytest.mark.parametrize("window", ["1h", "24h", "7d"])
def test_every_query_finds_something_in_some_deployment(there, window):
    for panel in PANELS:
        for one in panel["targets"]:
            assert there.query(filled(one["expr"], window)), f"{panel['title']}: {one['expr']}"
    for one in DASHBOARD["annotations"]["list"]:
        there.query(filled(one["expr"].removesuffix(" > 0"), window))


def tile(title):
    (panel,) = [panel for panel in DASHBOARD["panels"] if panel["title"] == title]
    return filled(panel["targets"][0]["expr"], "24h")


def test_mature_windows_are_preferred_where_watch_counts_the_predictions(there, sent):
    assert there.number(tile("Accuracy"), env="watch") == 0.81
    assert there.number(tile("Mean confidence"), env="watch") == pytest.approx(0.85)
    for name in ("torchserve", "triton"):
        wanted = by_numpy(*sent[name], EVEN)["accuracy"]
        becomes(there, tile("Accuracy"), name, wanted)


def test_bins_sort_as_numbers(there):
    (panel,) = [panel for panel in DASHBOARD["panels"] if panel["title"].startswith("Reliability")]
    for one in panel["targets"]:
        rows = there.query(filled(one["expr"], "1h"), env="torchserve")
        bins = [row["metric"]["bin"] for row in rows]
        assert len(bins) > 5
        assert sorted(bins) == sorted(bins, key=int)


def test_classes_and_segments_stand_beside_all_predictions(there):
    (panel,) = [panel for panel in PANELS if panel["title"].startswith("Classes and segments")]
    for one in panel["targets"]:
        for name, kinds in (("watch", {"all", "class"}), ("torchserve", {"all"})):
            rows = there.query(filled(one["expr"], "24h"), env=name)
            assert {row["metric"]["kind"] for row in rows} == kinds


def test_a_clause_has_one_row_of_all_its_numbers_whatever_the_replicas(there):
    """Columns are joined by labels: where these differ, a clause would have several rows."""
    (panel,) = [panel for panel in PANELS if panel["title"] == "Promises"]
    rows = [there.query(filled(one["expr"], "24h"), env="watch") for one in panel["targets"]]
    assert {len(one) for one in rows} == {1}
    assert len({json.dumps(one[0]["metric"], sort_keys=True) for one in rows}) == 1


def test_every_state_and_verdict_has_a_word_and_not_only_a_colour():
    words = {
        panel["title"]: panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
        for panel in PANELS
        if panel["type"] == "state-timeline"
    }
    assert {v: one["text"] for v, one in words["Kept, broken or not yet known"].items()} == {
        "-1": "broken",
        "0": "not yet known",
        "1": "kept",
    }
    assert {v: one["text"] for v, one in words["Against the served version"].items()} == {
        "-1": "worse",
        "0": "not yet known",
        "0.5": "no worse",
        "1": "better",
    }


def test_one_version_is_chosen_at_a_time():
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    for name in ("model", "version"):
        assert not variables[name]["multi"]
        assert not variables[name]["includeAll"]
    assert not any("=~" in one["expr"] for panel in PANELS for one in panel["targets"])


def test_links_lead_to_sections_of_the_runbooks():
    alerts = yaml.safe_load((GRAFANA.parent / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    places = {alert["annotations"]["runbook_url"].split("#")[0] for alert in alerts}
    (variable,) = [one for one in DASHBOARD["templating"]["list"] if one["name"] == "runbook"]
    assert {variable["query"]} == places
    text = (GRAFANA.parents[1] / places.pop()).read_text().lower()
    for link in DASHBOARD["links"]:
        heading = link["url"].split("#")[1]
        assert re.search(rf"^##+ {heading}$", text, re.MULTILINE), heading


def test_grafanas_own_models_read_the_dashboard_and_write_all_of_it():
    """Every key is one of Grafana's: what its models do not know, they would not write back."""

    def missing(ours, theirs, path=""):
        if isinstance(ours, dict):
            for key, value in ours.items():
                yield from missing(value, theirs.get(key, key), f"{path}.{key}")
        elif isinstance(ours, list):
            for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                yield from missing(one, other, f"{path}[{i}]")
        elif ours != theirs:
            yield path, ours, theirs

    read = Dashboard.from_json(copy.deepcopy(DASHBOARD))
    assert list(missing(DASHBOARD, json.loads(JSONEncoder().encode(read)))) == []


def test_no_rule_fails(there):
    groups = there.get("rules")["groups"]
    assert [rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "err"] == []
