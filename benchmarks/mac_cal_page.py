"""Write the tables of docs/papers/mac-cal.md and docs/benchmarks/masked_head.md from recorded results.

    python benchmarks/mac_cal_page.py                                   # a second
    CALIB_SERVE_DATA=... python benchmarks/mac_cal_page.py --measure    # what is not recorded yet, first

A table stands between <!-- table NAME --> and <!-- end -->; its rows are of the results of masked_head.py,
head_networks.py and mac_cal.py. Cells are means over splits, with a standard deviation where one is told.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys

import numpy as np
import peers

DOCS = peers.ROOT / "docs"
PAGES = (DOCS / "papers" / "mac-cal.md", DOCS / "benchmarks" / "masked_head.md")
MEASURED = ("masked_head", "head_networks", "mac_cal")
CONTROL = (
    *(
        "vanilla",
        "vanilla + TS",
        "+ decaying adaptive q (the paper's)",
        "+ decaying adaptive q (the paper's) + TS",
    ),
    *("default", "default + TS", "no mask", "no mask + TS"),
)
NETWORK = {"resnet20": "ResNet-20", "mnist": "MNIST", "digits": "digits"}
METHOD = {
    "none": "as it is",
    "temperature": "temperature",
    "masked-head": "masked head",
    "masked-head-paper": "as printed",
    "no-mask-head+temperature": "no mask + TS",
    "tuned-head": "tuned head",
}


def recorded(name):
    path = peers.RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def spread(rows, column, *, places=2):
    values = 100 * np.array([row[column] for row in rows])
    return f"{values.mean():.{places}f} ± {values.std():.{places}f}"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def of_heads(names=None):
    """Rows of masked_head.json that every split has."""
    splits = recorded("masked_head").get("splits", [])
    there = [name for name in splits[0] if all(name in rows for rows in splits)] if splits else []
    lines = []
    for name in names or there:
        if name not in there:
            continue
        rows = [split[name] for split in splits]
        q = f"{np.mean([row['q'] for row in rows]):.2f}" if "q" in rows[0] else ""
        spent = f"{np.mean([row['cpu_seconds'] for row in rows]):.0f}" if "cpu_seconds" in rows[0] else ""
        lines.append(
            [
                *(name, spread(rows, "accuracy"), spread(rows, "ece"), spread(rows, "aece")),
                *(
                    f"{np.mean([row['nll'] for row in rows]):.3f}",
                    spread(rows, "ood_fpr95", places=1),
                    q,
                    spent,
                ),
            ]
        )
    header = ("row", "accuracy %", "ECE %", "AECE %", "NLL", "OOD FPR95 %", "last q", "processor seconds")
    return table(header, lines)


def of_network(network):
    found = recorded("head_networks").get("networks", {}).get(network)
    if not found:
        return ["Not measured."]
    splits, pairs = found["splits"], found["pairs"]
    lines = []
    for name in splits[0]:
        if not all(name in rows for rows in splits):
            continue
        rows = [split[name] for split in splits]
        against = [
            f"{pairs[name][c]['difference']:+.4f} (p {pairs[name][c]['p']:.3f})"
            if name in pairs and pairs[name][c]["p"] is not None
            else ""
            for c in ("nll", "ece")
        ]
        nll = np.mean([row["nll"] for row in rows])
        lines.append(
            [
                *(name, spread(rows, "accuracy"), f"{nll:.4f}", against[0], spread(rows, "ece")),
                *(f"{100 * np.mean([row['floor'] for row in rows]):.2f}", against[1]),
            ]
        )
    header = (
        "row",
        "accuracy %",
        "NLL",
        "against the best output",
        "ECE %",
        "by chance %",
        "against the best output",
    )
    return [f"{len(splits)} splits:", "", *table(header, lines)]


def of_gamma(network):
    rows = recorded("mac_cal").get("summary", {}).get("gamma", {}).get(network)
    if not rows:
        return ["Not measured."]
    lines = [
        [gamma, f"{100 * r['accuracy']:.2f}", f"{100 * r['ece']:.2f}", f"{r['nll']:.3f}"]
        + [f"{r[key]:.3f}" if r.get(key) is not None else "" for key in ("q", "confidence_over_accuracy")]
        for gamma, r in rows.items()
    ]
    return table(("gamma", "accuracy %", "ECE %", "NLL", "last q", "confidence over accuracy"), lines)


def of_shift():
    found = recorded("mac_cal").get("summary", {}).get("shift", {})
    lines = [
        [NETWORK[name], METHOD[method], *(f"{100 * row[s]:.1f}" for s in ("clean", "1", "3", "5"))]
        for name, methods in found.items()
        for method, row in methods.items()
    ]
    if not lines:
        return ["Not measured."]
    return table(("network", "method", "clean", "severity 1", "severity 3", "severity 5"), lines)


def of_trainings():
    found = recorded("mac_cal").get("summary", {}).get("trainings", {})
    lines = []
    for name, stages in found.items():
        for stage, methods in stages.items():
            cells = [
                f"{100 * row['ece']:.1f} / {row['nll']:.3f}" if "ece" in row else "no fit"
                for row in methods.values()
            ]
            lines.append([NETWORK[name], stage, *cells])
    return table(("network", "first stage", *METHOD.values()), lines) if lines else ["Not measured."]


TABLES = {
    "control": lambda: of_heads(CONTROL),
    "masked head": of_heads,
    **{f"heads of {name}": lambda name=name: of_network(name) for name in NETWORK},
    **{f"gamma on {name}": lambda name=name: of_gamma(name) for name in NETWORK},
    "shift": of_shift,
    "trainings": of_trainings,
}


def rendered(text):
    """The page with each of its tables as recorded."""

    def written(found):
        return f"<!-- table {found[1]} -->\n\n" + "\n".join(TABLES[found[1]]()) + "\n<!-- end -->"

    return re.sub(r"<!-- table ([\w ]+) -->.*?<!-- end -->", written, text, flags=re.S)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run what is not recorded yet before")
    if parser.parse_args().measure:
        for name in MEASURED:
            subprocess.run([sys.executable, str(peers.HERE / f"{name}.py")], check=True)
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
        print(page.relative_to(peers.ROOT))


if __name__ == "__main__":
    main()
