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
