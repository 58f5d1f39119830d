"""The tables of docs/papers/neural-clamping.md, from the recorded results.

    python benchmarks/neural_clamping_page.py

Each table stands between ``<!-- NAME -->`` and ``<!-- end -->`` and is written anew from
benchmarks/results/neural_clamping*.json. What stands around them is text.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import peers
from scipy import stats

PAGE = Path(__file__).parents[1] / "docs" / "papers" / "neural-clamping.md"
PERCENT = ("accuracy", "ece", "aece", "sce", "ece 10", "ece 20")
OUTPUT = ("TS", "TS (FL)", "TS grid", "VS", "MS-ODIR", "Dir-ODIR", "structured average")
FIRST = ("uncalibrated", *OUTPUT)


def result(name):
    path = peers.RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def cell(values, column):
    """Mean and, of several, standard deviation, in percent where the column is a share."""
    values = np.array(values) * (100 if column in PERCENT else 1)
    digits = {"entropy": 3, "nll": 4}.get(column, 2)
    text = f"{values.mean():.{digits}f}"
    text += f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
    return text + (" %" if column in PERCENT else "")


def lines(header, rows):
    out = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*out, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def rows_in_order(splits):
    names = list(splits[0])
    return [name for name in FIRST if name in names] + [name for name in names if name.startswith("NC")]


def network(name, of="neural_clamping"):
    splits = result(of)["models"][name]["splits"]
    columns = ("accuracy", "entropy", "ece", "aece", "sce", "nll")
    rows = [
        (row, *(cell([split[row][c] for split in splits], c) for c in columns))
        for row in rows_in_order(splits)
        if not row.endswith(".01")
    ]
    return lines(("method", "accuracy", "entropy", "ECE", "AECE", "SCE", "NLL"), rows)


def significance():
    """Every Neural Clamping row against the output method of least mean ECE."""
    rows = []
    for name, found in result("neural_clamping")["models"].items():
        splits = found["splits"]
        if len(splits) < 2:
            continue
        known = [row for row in OUTPUT if row in splits[0]]
        best = min(known, key=lambda row: np.mean([split[row]["ece"] for split in splits]))
        theirs = np.array([split[best]["ece"] for split in splits])
        for row in splits[0]:
            if not row.startswith("NC") or row.endswith(".01"):
                continue
            ours = np.array([split[row]["ece"] for split in splits])
            welch, pairs = stats.ttest_ind(ours, theirs, equal_var=False), stats.ttest_rel(ours, theirs)
            points = f"{100 * (ours - theirs).mean():+.2f}"
            rows.append((name, row, best, points, f"{welch.pvalue:.2g}", f"{pairs.pvalue:.2g}"))
    return lines(("network", "method", "against", "ECE, points", "Welch's p", "p in pairs"), rows)


def ablation():
    """Table 4: one of the two that were fitted together."""
    rows = []
    for name in ("digits", "mnist"):
        splits = result("neural_clamping")["models"][name]["splits"]
        for row in ("uncalibrated", "TS", "TS (FL)"):
            rows.append((name, row, *parts_of([split[row] for split in splits])))
        for row in ("NC (FL), as printed", "NC, toolkit, images as they are", "NC (FL), L-BFGS"):
            for part in ("delta alone", "T alone"):
                rows.append((name, f"{row}: {part}", *parts_of([s[row]["parts"][part] for s in splits])))
            rows.append((name, f"{row}: both", *parts_of([split[row] for split in splits])))
    return lines(("network", "what", "accuracy", "ECE", "AECE", "NLL"), rows)


def parts_of(found):
    return [cell([one[c] for one in found], c) for c in ("accuracy", "ece", "aece", "nll")]


def gammas():
    """Figure 2: test ECE and entropy by gamma."""
    rows = []
    for name in ("digits", "mnist"):
        splits = result("neural_clamping")["models"][name]["splits"]
        for row in ("NC (FL), as printed", "NC (FL), L-BFGS"):
            for i, one in enumerate(splits[0][row]["by gamma"]):
                here = [split[row]["by gamma"][i] for split in splits]
                taken = sum(split[row]["fit"]["gamma"] == one["gamma"] for split in splits)
                scored = [cell([each[c] for each in here], c) for c in ("entropy", "ece")]
                rows.append((name, row, one["gamma"], *scored, f"{taken} of {len(splits)}"))
    return lines(("network", "method", "gamma", "entropy", "ECE", "taken by calibration ECE"), rows)


def bins():
    """Appendix D: ECE with 10, 15 and 20 bins."""
    rows = []
    for name in ("digits", "mnist"):
        splits = result("neural_clamping")["models"][name]["splits"]
        for row in rows_in_order(splits):
            if not row.endswith(".01"):
                found = [cell([split[row][c] for split in splits], c) for c in ("ece 10", "ece", "ece 20")]
                rows.append((name, row, *found))
    return lines(("network", "method", "10 bins", "15 bins", "20 bins"), rows)


def times():
    """Table 11: the efficient form against the grid search, at two resolutions."""
    rows = []
    for name in ("digits", "mnist"):
        splits = result("neural_clamping")["models"][name]["splits"]
        for row, step in (
            ("TS grid .01", 0.01), ("TS grid", 0.001), ("NC (Eff.) .01", 0.01), ("NC (Eff.)", 0.001),
            ("NC (FL), as printed", ""), ("NC (FL), L-BFGS", ""),
        ):  # fmt: skip
            spent = [
                split[row].get("cpu_seconds", split[row].get("fit", {}).get("cpu_seconds"))
                for split in splits
            ]
            scored = [cell([split[row][c] for split in splits], c) for c in ("accuracy", "ece")]
            rows.append((name, row.removesuffix(" .01"), step, *scored, f"{np.mean(spent):.2f}"))
    return lines(("network", "method", "steps of T", "accuracy", "ECE", "processor seconds"), rows)


def starts():
    """Figure 3."""
    rows = []
    for name, found in result("neural_clamping_starts")["models"].items():
        for start, scored in found["figure 3"].items():
            shown = [
                f"{100 * scored[c][0]:.2f} ± {100 * scored[c][1]:.2f} %"
                for c in ("accuracy", "ece", "aece", "sce")
            ]
            rows.append((name, start, *shown))
    return lines(("network", "start", "accuracy", "ECE", "AECE", "SCE"), rows)


def schedule():
    """How far the printed schedule takes T, by recorded logits at full size."""
    rows = []
    for name, found in result("neural_clamping_starts")["T alone"].items():
        ends = ("none", "schedule", "gamma 0", "gamma 1")
        shown = [f"{found['t'][end]:.3f}" for end in ends[1:]]
        shown += [f"{100 * found['ece'][end]:.2f} %" for end in ends]
        rows.append((name, f"{found['samples']:,}", f"{found['steps']:,}", *shown))
    header = (
        "network", "images", "steps", "T after the schedule", "best T of gamma 0", "of gamma 1",
        "ECE without", "after the schedule", "best of gamma 0", "of gamma 1",
    )  # fmt: skip
    return lines(header, rows)


def noise():
    """What delta's start does by itself."""
    found = result("neural_clamping_starts")["start alone"]["starts"]
    rows = [
        (name, *(cell([one[c] for one in scored], c) for c in ("accuracy", "ece")))
        for name, scored in found.items()
    ]
    return lines(("start of delta", "accuracy", "ECE"), rows)


def trainings():
    """Appendix G."""
    rows = []
    for name, found in result("neural_clamping_starts")["models"].items():
        for row, means in found["means"].items():
            test = found["against TS grid"].get(row)
            said = ("", "", "")
            if test:
                said = (
                    f"{100 * test['difference']:+.2f}",
                    f"{test['welch_p']:.2g}",
                    f"{test['paired_p']:.2g}",
                )
            rows.append(
                (name, row, cell([means["accuracy"]], "accuracy"), cell([means["ece"]], "ece"), *said)
            )
    header = ("network", "method", "accuracy", "ECE", "against TS grid, points", "Welch's p", "p in pairs")
    return lines(header, rows)


def gain():
    rows = []
    for name, found in result("neural_clamping_gain")["models"].items():
        best = found["compared"]["best output method"]
        for idea, against in found["compared"]["gains"].items():
            rows.append(
                (
                    f"{name} ({len(found['splits'])})",
                    idea,
                    best,
                    *gained(against["nll"]),
                    *gained(against["ece"], 100),
                )
            )
    header = ("network (splits)", "shift", "against", "NLL gained", "p", "ECE gained, points", "p")
    return lines(header, rows)


def gained(one, times=1):
    error = "" if one["standard_error"] is None else f" ± {times * one['standard_error']:.4f}"
    return f"{times * one['gain']:+.4f}{error}", "" if one["p"] is None else f"{one['p']:.2g}"


def bounds():
    rows = []
    for name, found in result("neural_clamping_gain")["models"].items():
        bound = {kind: gained(one) for kind, one in found["compared"]["bounds"].items()}
        alone = np.mean([split["bounds"]["temperature"] for split in found["splits"]])
        best = np.mean([split[found["compared"]["best output method"]]["nll"] for split in found["splits"]])
        rows.append((name, f"{alone:.4f}", f"{alone - best:+.4f}", bound["oracle"][0], bound["in sample"][0]))
    header = (
        "network",
        "NLL of a temperature",
        "gained by the best output method",
        "by the oracle's shift",
        "in sample",
    )
    return lines(header, rows)


def speed():
    rows = []
    found = (result(f"neural_clamping_speed{device}") for device in ("", ".cuda"))
    for name, one, run in ((*pair, each["run"]) for each in found for pair in each["schedules"].items()):
        sooner = one["times_faster_until_as_good"]
        met = sooner["passes"] > 0
        ends = (f"{one[who]['objective_value']:.3f}" for who in ("reference", "ours"))
        until = (f"{sooner[kind]:.1f}" if met else "never" for kind in ("passes", "cpu_seconds"))
        asked = one["asked"]
        whole = f"{one['times_faster']['cpu_seconds']:.1f}"
        where = run["machine"]["gpu"] or run["machine"]["cpu"]
        rows.append((f"the {name}'s", where, f"{asked['images']:,}", asked["epochs"], *ends, *until, whole))
    header = (
        "schedule", "on", "images", "epochs", "its objective", "ours", "times fewer passes until as good",
        "times less processor time until as good", "times less in all",
    )  # fmt: skip
    return lines(header, rows)


TABLES = {
    "digits": lambda: network("digits"),
    "mnist": lambda: network("mnist"),
    "resnet20": lambda: network("resnet20, as printed", of="neural_clamping.cuda"),
    "significance": significance,
    "ablation": ablation,
    "gammas": gammas,
    "bins": bins,
    "times": times,
    "schedule": schedule,
    "noise": noise,
    "starts": starts,
    "trainings": trainings,
    "gain": gain,
    "bounds": bounds,
    "speed": speed,
}


def rendered(text):
    """The page with every table written anew."""

    def table(match):
        return f"<!-- {match[1]} -->\n\n{TABLES[match[1]]()}\n\n<!-- end -->"

    return re.sub(r"<!-- ([a-z0-9]+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
