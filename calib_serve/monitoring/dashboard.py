"""``calibration.json``: the Grafana dashboard, from ``templates/dashboard.json``.

It shows one model version at a time: nothing is pooled. Where ``calib-serve watch`` counts the predictions,
panels show its windows, which hold mature labels alone; elsewhere they show the recorded numbers. So no panel
is empty with TorchServe alone, nor with watch alone.
"""

from __future__ import annotations

import json
from pathlib import Path

from calib_serve.monitoring.options import MonitoringOptions
from calib_serve.monitoring.queries import HALF_NORMAL

__all__ = ["dashboard_file"]

_TEMPLATE = Path(__file__).parent / "templates" / "dashboard.json"
_FIRST = "24h"
"""The window that is shown at first."""


def dashboard_file(options: MonitoringOptions) -> str:
    """Return the file: the template with the options' limits, links and windows."""
    text = _TEMPLATE.read_text("utf-8")
    for name, value in {
        "@sigmas": f"{options.sigmas:g}",
        "@noise": f"{options.sigmas * HALF_NORMAL:.6g}",
        "@runbooks": options.runbooks,
        "@first": options.ordered_windows[0],
    }.items():
        text = text.replace(name, value)
    board = json.loads(text)
    (window,) = (one for one in board["templating"]["list"] if one["name"] == "window")
    shown = [{"text": one, "value": one, "selected": one == _FIRST} for one in options.ordered_windows]
    (current,) = (one for one in shown if one["selected"])
    window |= {"query": ",".join(options.ordered_windows), "options": shown, "current": current}
    return json.dumps(board, indent=2, sort_keys=True) + "\n"
