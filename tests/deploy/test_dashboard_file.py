"""The dashboard as a file: words beside colours, links, variables, and what Grafana reads of it."""

import copy
import json
import re
from pathlib import Path

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "calibration.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


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
