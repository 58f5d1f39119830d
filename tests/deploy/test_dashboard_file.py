"""The dashboard as a file: words beside colours, links, variables, and what Grafana reads of it."""

import copy
import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "calibration.json").read_text())


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
