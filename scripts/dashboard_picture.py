"""Draw docs/images/dashboard.svg: every panel of the dashboard, asked of a real Prometheus.

    python scripts/dashboard_picture.py

A watch and a Prometheus are started as in tests/deploy; predictions and labels come for two minutes, of a
model that is 6 points too sure.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import real_servers  # noqa: E402
from real_prometheus import Prometheus, prometheus  # noqa: E402

from calib_serve.artifact import Artifact, Contract, LogitMap  # noqa: E402
from calib_serve.core.bins import Bins  # noqa: E402
from calib_serve.web import monitoring_files  # noqa: E402

BOARD = json.loads(monitoring_files(parts=["dashboards"])["grafana/dashboards/calibration.json"])
SECONDS = 120
FIRST = ("blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:gray")


def send(url: str, rng: np.random.Generator, n: int = 150) -> None:
    """Predict class 1 with drawn confidences, and label each: right in 6 points fewer than it says."""
    c = rng.beta(5, 2, n)
    items = [{"model": "digits", "version": "1", "predicted": 1, "confidence": float(one)} for one in c]
    answer = httpx.post(f"{url}/v1/predictions", json={"items": items}, timeout=60).json()["items"]
    labels = [
        {"receipt": one["receipt"], "label": int(y)}
        for one, y in zip(answer, rng.random(n) < c - 0.06, strict=True)
    ]
    httpx.post(f"{url}/v1/labels", json={"items": labels}, timeout=60).raise_for_status()


def queries(panel: dict[str, Any]) -> list[tuple[str, str]]:
    """The legend of each query without its labels, and the query."""
    filled = (one["expr"].replace("$model", "digits").replace("$version", "1") for one in panel["targets"])
    return [
        (one["legendFormat"].split("{{")[0].strip(), e)
        for one, e in zip(panel["targets"], filled, strict=True)
    ]


def drawn(axes: Axes, panel: dict[str, Any], there: Prometheus, began: float) -> None:
    """One panel, as its kind shows it."""
    axes.set_title(panel["title"], fontsize=8, loc="left")
    axes.tick_params(labelsize=6)
    if panel["type"] in ("stat", "table"):
        axes.axis("off")
        names = {"0": "calibrated", "0.5": "no error found", "1": "confidence is off"}
        lines = []
        for legend, expression in queries(panel):
            for row in there.query(expression):
                own = " ".join(row["metric"].get(key, "") for key in ("kind", "slice", "clause"))
                value = row["value"][1]
                shown = names.get(value, value) if panel["title"] == "Verdict" else f"{float(value):.4g}"
                lines.append(f"{own} {legend} {shown}".strip())
        axes.text(0, 0.9, "\n".join(lines[:9]) or "none", fontsize=8, va="top")
    elif panel["type"] == "barchart":
        for i, (legend, expression) in enumerate(queries(panel)):
            found = {int(r["metric"]["bin"]): float(r["value"][1]) for r in there.query(expression)}
            axes.bar([k + 0.4 * i for k in found], list(found.values()), 0.4, label=legend, color=FIRST[i])
        axes.legend(fontsize=6)
    else:
        states = panel["type"] == "state-timeline"
        level = 0
        for legend, expression in queries(panel):
            ask = {"query": expression, "start": began, "end": time.time(), "step": 4}
            for row in there.get("query_range", **ask)["result"]:
                own = " ".join(row["metric"].get(key, "") for key in ("job", "check", "stage", "reason"))
                at, values = np.array(row["values"], float).T
                if states:
                    axes.scatter(
                        at - began, np.full(len(at), level), 4, ["green" if v else "red" for v in values]
                    )
                    axes.text(0, level + 0.2, f"{legend} {own}".strip(), fontsize=6)
                else:
                    axes.plot(
                        at - began, values, label=f"{legend} {own}".strip(), color=FIRST[level % 7], lw=1
                    )
                level += 1
        axes.set_xlabel("s", fontsize=6)
        if not states:
            axes.legend(fontsize=6)


def main() -> None:
    """Start both, wait, and draw."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        contract = Contract.read("contract: 1\nact: {above: 0.9, accuracy: 0.9}")
        reference = Bins.tally(rng.beta(5, 2.2, 2000), np.ones(2000))
        step = (LogitMap.temperature(1.5),)
        Artifact(step, method="temperature", classes=3, reference=reference, contract=contract).save(
            folder / "artifact"
        )
        models = (f"digits:1={folder / 'artifact'}",)
        with (
            real_servers.Server(folder, "--maturity", "0", models=models) as watch,
            prometheus(folder, [(f"127.0.0.1:{watch.port}", {})]) as there,
        ):
            there.wait("count(calib_window_sums) > 80")
            began = time.time()
            while time.time() < began + SECONDS:
                send(watch.url, rng)
                time.sleep(2)
            figure = Figure((12, 14), layout="constrained")
            grid = figure.add_gridspec(7, 2, height_ratios=[0.7, 0.7, 1.6, 1.6, 1.4, 1, 2.2])
            for i, panel in enumerate(BOARD["panels"]):
                place = grid[6, :] if i == len(BOARD["panels"]) - 1 else grid[i // 2, i % 2]
                drawn(figure.add_subplot(place), panel, there, began)
            with mpl.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
                figure.savefig(ROOT / "docs" / "images" / "dashboard.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
