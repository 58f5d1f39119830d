"""What ``study`` and ``refit`` print, whole: numbers are those of numpy and scipy, words are written here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import t as student
from scipy.stats import ttest_ind
from typer.testing import CliRunner

from calib_serve import calibrate
from calib_serve.artifact import Abstain, Artifact, Clause, Contract, LogitMap, PredictionSets
from calib_serve.cli import app, main
from calib_serve.metrics import adaptive_ece, classwise_ece, noise_floor
from calib_serve.receipts import Label, Receipt
from calib_serve.study.corruptions import corrupt
from calib_serve.watch.samples import SampleLog

Floats = NDArray[np.float64]
Part = tuple[Floats, NDArray[np.int64]]


# --- the numbers, without this package ------------------------------------------------------------


def draw(n: int, sharp: float, seed: int, shares: tuple[float, ...] = (0, 0, 0)) -> Part:
    """Logits ``sharp`` times too large, and labels."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 3)) + shares
    return sharp * z, (z + rng.gumbel(size=z.shape)).argmax(1)


def ece(p: Floats, y: NDArray[np.int64], bins: int = 15) -> float:
    c, right = p.max(1), p.argmax(1) == y
    of = np.ceil(c * bins).astype(int) - 1
    return sum(abs((c - right)[of == b].sum()) for b in range(bins)) / len(y)


def nll(p: Floats, y: NDArray[np.int64]) -> float:
    return -np.log(p[np.arange(len(y)), y]).mean()


def accuracy(p: Floats, y: NDArray[np.int64]) -> float:
    return (p.argmax(1) == y).mean()


def auroc(p: Floats, y: NDArray[np.int64]) -> float:
    c, right = p.max(1), p.argmax(1) == y
    return (np.sign(c[right][:, None] - c[~right]).mean() + 1) / 2


def temperature(z: Floats, y: NDArray[np.int64]) -> float:
    def loss(log_t: float) -> float:
        return -log_softmax(z / np.exp(log_t), axis=1)[np.arange(len(y)), y].mean()

    return float(np.exp(minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9}).x))


def cooled(fit: Part, z: Floats) -> Floats:
    return softmax(z / temperature(*fit), axis=1)


# --- what is printed ------------------------------------------------------------------------------


class Printed(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]
    says: list[str]
    rest: list[str]


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "250"})
    return done.exit_code, done.stdout


def ended(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> object:
    """The exit code of the program itself."""
    monkeypatch.setattr("sys.argv", ["calib-serve", *map(str, arguments)])
    with pytest.raises(SystemExit) as found:
        main()
    return found.value.code


def study(*arguments: object) -> Printed:
    code, said = run("study", *arguments)
    assert code == 0
    lines = said.splitlines()
    ends = [i for i, line in enumerate(lines) if line[:1] in "┏┡└"]
    title = " ".join(line.strip() for line in lines[: ends[0]])
    header, *rows = (
        [c.strip() for c in one[1:-1].replace("┃", "│").split("│")] for one in lines if one[0] in "┃│"
    )
    after = lines[ends[-1] + 1 :]
    says = [one[2:] for one in after if one.startswith("- ")]
    return Printed(title, header, rows, says, [one for one in after if not one.startswith("- ")])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("studies")
    for name, (fit, test) in SETS.items():
        np.savez(
            found / f"{name}.npz",
            cal_logits=fit[0],
            cal_labels=fit[1],
            test_logits=test[0],
            test_labels=test[1],
        )
    return found


SETS = {
    "sharp": (draw(600, 3, 0), draw(500, 3, 1)),
    "turned": (draw(600, 3, 0), draw(500, 1, 1)),  # a fit makes it worse
    # Every second sample is nine times too sure: no temperature is right for all.
    "bent": (
        draw(600, 3, 0),
        (np.where(np.arange(500)[:, None] % 2, 1, 9) * draw(500, 1, 1)[0], draw(500, 1, 1)[1]),
    ),
}
each_set = pytest.mark.parametrize("name", SETS)


@pytest.mark.parametrize(("name", "metric"), [("sharp", "ece"), ("sharp", "nll"), ("turned", "nll")])
def test_study_size(name: str, metric: str, folder: Path) -> None:
    (z, y), (x, labels) = SETS[name]
    measure: Callable[..., float] = {"ece": ece, "nll": nll}[metric]
    rng, rows, means = np.random.default_rng(5), [], []
    for size, parts in ((30, 3), (300, 3), (600, 1)):
        drawn = [rng.choice(600, size, replace=False) for _ in range(parts)]
        values = [measure(cooled((z[part], y[part]), x), labels) for part in drawn]
        means.append(np.mean(values))
        spread = f"{np.std(values, ddof=1):.4f}" if parts > 1 else ""
        rows.append(["temperature", str(size), f"{means[-1]:.4f}", spread, str(parts), "0"])
    raw = measure(softmax(x, axis=1), labels)
    gain = raw - np.array(means)
    if name == "turned":
        enough = "temperature does not pay: with all 600 samples it brings no gain"
    else:
        first = min(i for i in range(3) if (gain[i:] >= 0.95 * gain[-1]).all())
        assert first > 0
        enough = (
            f"temperature has 95% of its gain from {(30, 300, 600)[first]} samples on "
            f"({means[first]:.4f}, all 600 bring {means[-1]:.4f})"
        )
    told = study(
        *("size", "--logits", folder / f"{name}.npz", "--sizes", "30,300", "--repeats", 3),
        *("--metric", metric, "--seed", 5),
    )
    assert told == Printed(
        f"Test {metric} by the number of calibration samples",
        ["method", "samples", metric, "standard deviation", "parts", "not fitted"],
        rows,
        [f"without calibration the {metric} is {raw:.4f}", enough],
        [],
    )


def test_study_size_of_parts_that_cannot_be_fitted(tmp_path: Path) -> None:
    """No temperature of one sample is finite: T = 0 where it is right, infinite where it is wrong."""
    z, y = np.eye(3)[[0, 1, 2, 0]] * 2.0, np.array([0, 1, 2, 1])
    np.savez(tmp_path / "few.npz", cal_logits=z, cal_labels=y, test_logits=z, test_labels=y)
    raw, whole = ece(softmax(z, axis=1), y), ece(cooled((z, y), z), y)
    told = study("size", "--logits", tmp_path / "few.npz", "--sizes", "1", "--repeats", 5)
    assert told.rows == [
        ["temperature", "1", "", "", "5", "5"],
        ["temperature", "4", f"{whole:.4f}", "", "1", "0"],
    ]
    assert told.says == [
        f"without calibration the ece is {raw:.4f}",
        f"temperature has 95% of its gain from 4 samples on ({whole:.4f}, all 4 bring {whole:.4f})",
    ]


@each_set
def test_study_optimum(name: str, folder: Path) -> None:
    (z, y), (x, labels) = SETS[name]
    pool = np.arange(1, 1001) / 100

    def best(logits: Floats, of: NDArray[np.int64]) -> float:
        return float(pool[np.argmin([ece(softmax(logits / t, axis=1), of) for t in pool])])

    fits = {
        "none": 1.0,
        "fitted by NLL on cal": temperature(z, y),
        "fitted by ECE on cal": best(z, y),
        "best for test": best(x, labels),
    }
    found = {fit: ece(softmax(x / t, axis=1), labels) for fit, t in fits.items()}
    floor = {fit: noise_floor(softmax(x / t, axis=1), labels) for fit, t in fits.items()}
    room = found["none"] - found["best for test"]
    says = [
        f"the best temperature would bring the ECE from {found['none']:.2%} to {found['best for test']:.2%} "
        f"(T = {fits['best for test']:.2f})"
    ]
    for fit in ("fitted by NLL on cal", "fitted by ECE on cal"):
        used = (found["none"] - found[fit]) / room
        worse = f"it makes the ECE worse, {found[fit]:.2%}"
        says.append(f"{fit}: {f'{used:.0%} of that room is used' if used >= 0 else worse}")
    assert ("worse" in says[1]) == (name != "sharp")
    times = found["best for test"] / floor["best for test"]
    if name == "bent":
        says.append(
            f"the optimum is still {times:.1f} times what chance gives ({floor['best for test']:.2%}): "
            "a temperature alone cannot calibrate this model"
        )
    assert (times > 2) == (name == "bent")
    told = study("optimum", "--logits", folder / f"{name}.npz")
    assert told == Printed(
        "Optimal ECE: the best that any temperature can do on the test set",
        ["temperature", "T", "ECE", "noise floor"],
        [[fit, f"{t:.4f}", f"{found[fit]:.4f}", f"{floor[fit]:.4f}"] for fit, t in fits.items()],
        says,
        [],
    )


@each_set
def test_study_bins(name: str, folder: Path) -> None:
    fit, (x, labels) = SETS[name]
    probs = {"none": softmax(x, axis=1), "temperature": cooled(fit, x)}
    counts = (2, 15)
    rows = [
        [
            *(method, str(n), f"{ece(p, labels, n):.4f}", f"{adaptive_ece(p, labels, bins=n):.4f}"),
            f"{classwise_ece(p, labels, bins=n):.4f}",
        ]
        for method, p in probs.items()
        for n in counts
    ]
    orders = [", ".join(sorted(probs, key=lambda m: ece(probs[m], labels, n))) for n in counts]
    same = [f"the order by ECE is the same at every bin count: {orders[0]}"]
    each = [f"by ECE at {n} bins: {order}" for n, order in zip(counts, orders, strict=True)]
    told = study("bins", "--logits", folder / f"{name}.npz", "--counts", "2,15")
    assert told == Printed(
        "Calibration errors over 2 and 15 bins",
        ["method", "bins", "ece", "adaptive_ece", "classwise_ece"],
        rows,
        same if orders[0] == orders[1] else each,
        [],
    )


def of_two(confidence: list[float], right: list[float]) -> Part:
    """200 samples of each confidence, of two classes, of which this share is right."""
    p = np.repeat(confidence, 200)
    y = np.concatenate([np.arange(200) >= 200 * share for share in right]).astype(np.int64)
    return np.stack([np.log(p / (1 - p)), np.zeros(400)], axis=1), y


def test_study_bins_of_methods_that_change_places(tmp_path: Path) -> None:
    """Without calibration all are right on average and off apart; the fit is off a little everywhere."""
    fit, (x, labels) = of_two([0.95, 0.6], [0.85, 0.56]), of_two([0.95, 0.6], [0.8, 0.75])
    np.savez(tmp_path / "t.npz", cal_logits=fit[0], cal_labels=fit[1], test_logits=x, test_labels=labels)
    probs = {"none": softmax(x, axis=1), "temperature": cooled(fit, x)}
    assert ece(probs["none"], labels, 1) < 0.01 < ece(probs["temperature"], labels, 1)
    assert ece(probs["none"], labels) > 0.02 + ece(probs["temperature"], labels)
    told = study("bins", "--logits", tmp_path / "t.npz", "--counts", "1,15")
    assert told.says == ["by ECE at 1 bins: none, temperature", "by ECE at 15 bins: temperature, none"]


@pytest.mark.parametrize("metric", ["ece", "accuracy", "nll"])
def test_study_stability(metric: str, folder: Path) -> None:
    (z, y), (x, labels) = SETS["sharp"]
    z, y = np.concatenate([z, x]), np.concatenate([y, labels])
    of: dict[str, Callable[..., float]] = {
        "accuracy": accuracy,
        "entropy": lambda p, _: -(p * np.log(p)).sum(1).mean(),
        "ece": ece,
        "adaptive_ece": adaptive_ece,
        "classwise_ece": classwise_ece,
        "nll": nll,
    }
    values: dict[str, list[list[float]]] = {"temperature": [], "vector": []}
    held = np.array_split(np.random.default_rng([4, 0, 0]).permutation(len(y)), 3)
    for one in held:
        rest = np.setdiff1d(np.arange(len(y)), one)
        probs = {
            "temperature": cooled((z[rest], y[rest]), z[one]),
            "vector": calibrate(z[rest], y[rest], "vector").probs(z[one]),
        }
        for method, p in probs.items():
            values[method].append([measure(p, y[one]) for measure in of.values()])
    rows = [
        [method, name, f"{np.mean(column):.4f}", f"{np.std(column, ddof=1):.4f}"]
        for method, found in values.items()
        for name, column in zip(of, np.transpose(found), strict=True)
    ]
    column = {method: np.array(found)[:, list(of).index(metric)] for method, found in values.items()}
    best, second = sorted(column, key=lambda m: column[m].mean() * (-1 if metric == "accuracy" else 1))
    a, b = column[best], column[second]
    welch = ttest_ind(a, b, equal_var=False)
    spread = np.sqrt(a.var(ddof=1) / 3 + b.var(ddof=1) / 3) * student.ppf(0.975, welch.df)
    change = a.mean() - b.mean()
    says = (
        f"best by {metric}: {best}, then {second}; difference {change:.4f} "
        f"[{change - spread:.4f}, {change + spread:.4f}], Welch's p = {welch.pvalue:.2g} over runs that "
        "share samples"
    )
    told = study(
        *("stability", "--logits", folder / "sharp.npz", "--methods", "temperature,vector", "--folds", 3),
        *("--metric", metric, "--seed", 4),
    )
    assert told == Printed(
        "Mean and standard deviation over 3 runs",
        ["method", "metric", "mean", "standard deviation"],
        rows,
        [says],
        [],
    )


@each_set
def test_study_ablation(name: str, folder: Path) -> None:
    fit, (x, labels) = SETS[name]
    probs = {
        ("none", "nothing"): softmax(x, axis=1),
        ("temperature", "temperature"): cooled(fit, x),
        ("vector", "output"): calibrate(*fit, "vector").probs(x),
    }
    losses = {key[0]: nll(p, labels) for key, p in probs.items()}
    beside = "less" if losses["vector"] < losses["temperature"] else "no less"
    told = study("ablation", "--logits", folder / f"{name}.npz", "--methods", "vector", "-o", folder / name)
    written = ", ".join(str(folder / name / file) for file in ("study.json", "study.csv"))
    assert told == Printed(
        "What each part of a calibration does",
        ["method", "parts", "accuracy", "ece", "nll"],
        [
            [*key, *(f"{measure(p, labels):.4f}" for measure in (accuracy, ece, nll))]
            for key, p in probs.items()
        ],
        [
            f"NLL: {losses['none']:.4f} without calibration, {losses['temperature']:.4f} with a temperature "
            "fitted by itself",
            f"vector: {losses['vector']:.4f} by its output; {beside} than that temperature",
        ],
        [f"written to {written}"],
    )


@pytest.mark.parametrize("sharp", [1, 3])
def test_study_shift(sharp: int, tmp_path: Path) -> None:
    """A temperature of clean images, fitted to a model that is right, or too sure by this much."""
    rng = np.random.default_rng(1)
    weight = (sharp * rng.standard_normal((4, 192)) / 3).astype(np.float32)
    images = rng.random((600, 3, 8, 8)).astype(np.float32)

    def logits(x: NDArray[np.float32]) -> Floats:
        return ((x.reshape(len(x), -1) - 0.5) @ weight.T).astype(float)

    z = logits(images) / sharp
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    linear = torch.nn.Linear(192, 4)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weight))
        linear.bias.copy_(torch.from_numpy(-0.5 * weight.sum(axis=1)))
    model = torch.nn.Sequential(torch.nn.Flatten(), linear).eval()
    program = torch.export.export(
        model, (torch.zeros(2, 3, 8, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    torch.export.save(program, tmp_path / "model.pt2")
    first, last = slice(0, 300), slice(300, 600)
    cal = {"cal_inputs": images[first], "cal_labels": y[first]}
    np.savez(tmp_path / "data.npz", **cal, test_inputs=images[last], test_labels=y[last])
    fit = (logits(images[:300]), y[:300])
    settings = [("clean", 0), ("noise", 1), ("noise", 5), ("blur", 1), ("blur", 5)]
    rows, ece_of, auroc_of = [], {}, {}
    for name, severity in settings:
        shown = images[300:] if not severity else corrupt(images[300:], name, severity, seed=0)
        x = logits(shown)
        for method, p in (("none", softmax(x, axis=1)), ("temperature", cooled(fit, x))):
            told = accuracy(p, y[300:]), ece(p, y[300:]), auroc(p, y[300:]), nll(p, y[300:])
            ece_of[name, severity, method], auroc_of[name, severity, method] = told[1:3]
            rows.append([name, str(severity), method, *(f"{one:.4f}" for one in told)])
    moved = settings[1:]
    behind = [f"{n} {s}" for n, s in moved if ece_of[n, s, "temperature"] >= ece_of[n, s, "none"]]
    *others, final = behind or [""]
    lost = f", not with {', '.join(others)} and {final}" if others else f", not with {final}"
    assert bool(behind) == (sharp == 1)
    mean, plain = (np.mean([ece_of[n, s, method] for n, s in moved]) for method in ("temperature", "none"))
    coarse = np.mean([auroc_of[n, s, "temperature"] - auroc_of[n, s, "none"] for n, s in moved])
    found = study(
        *("shift", "--model", tmp_path / "model.pt2", "--data", tmp_path / "data.npz"),
        *("--corruptions", "noise,blur", "--severities", "1,5"),
    )
    assert found == Printed(
        "Calibration and refinement under shift",
        ["shift", "severity", "method", "accuracy", "ece", "auroc", "nll"],
        rows,
        [
            f"temperature keeps up with {4 - len(behind)} of 4 shifts{lost if behind else ''}: mean ECE "
            f"{mean:.2%} where none has {plain:.2%}; AUROC {coarse:+.4f}"
        ],
        [],
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("size", "--logits", "none.npz"), "there is no file none.npz"),
        (("size", "--logits", "sharp.npz", "--metric", "brier"), "metric must be ece or nll, got 'brier'"),
        (("stability",), "say what to study, one of: --logits FILE, or --model MODEL with --data DATA"),
        (("bins", "--logits", "sharp.npz", "--counts", "0"), "bins"),
    ],
)
def test_a_study_that_cannot_be_says_why_and_ends_with_two(
    arguments: tuple[str, ...],
    why: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert ended("study", *arguments, monkeypatch=monkeypatch) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("calib-serve: ")
    assert why in told.err


# --- refit ----------------------------------------------------------------------------------------


def served(folder: Path, z: Floats, y: NDArray[np.int64], model: str = "m", version: str = "1") -> None:
    """A folder of samples as a server keeps them."""
    log = SampleLog(folder, rate=1.0)
    names = [i.to_bytes(10, "big") for i in range(len(y))]
    log.predicted(model, version, names, z, times=time.time() - np.arange(len(y), 0, -1.0))
    log.labelled(
        [Label(Receipt("k", model, version, 0.0, n, 0, 0.9), int(k)) for n, k in zip(names, y, strict=True)]
    )
    log.close()


def judged(z: Floats, y: NDArray[np.int64], t: float) -> dict[str, Any]:
    """Every label by a temperature fitted to those before it; the evidence of the bets on these."""
    n, starts = len(y), [100]
    while (following := int(np.ceil(starts[-1] * 1.5))) < n:
        starts.append(following)
    old = softmax(z / t, axis=1)
    new, pays = old.copy(), np.zeros(n)
    for start, stop in zip(starts, [*starts[1:], n], strict=True):
        block = slice(start, stop)
        new[block] = cooled((z[:start], y[:start]), z[block])
        at = (np.arange(start, stop), y[block])
        pays[block] = np.log((0.98 * new + 0.02 * old)[at] / old[at])
    worth = [np.exp(pays[start:].sum()) / ((j + 1) * (j + 2)) for j, start in enumerate(starts)]
    held = slice(n - int(0.3 * n), None)
    return {
        "held": n - held.start,
        "nll": (nll(old[held], y[held]), nll(new[held], y[held])),
        "ece": (ece(old[held], y[held]), ece(new[held], y[held])),
        "evidence": sum(worth) + 1 / (len(starts) + 1),
    }


def sentences(told: dict[str, Any], n: int, alpha: float = 0.05) -> list[str]:
    old, new = told["ece"]
    return [
        f"on the latest {told['held']} of {n} samples: NLL {told['nll'][0]:.4f} -> {told['nll'][1]:.4f}, "
        f"ECE {100 * old:.2f} % -> {100 * new:.2f} %",
        f"evidence against the current calibration: {told['evidence']:.3g}, {1 / alpha:.3g} needed; a "
        f"calibration that is right is replaced with a chance of at most {100 * alpha:.3g} %, however often "
        "this is asked",
    ]


def refit(folder: Path, *more: object) -> tuple[int, list[str]]:
    asked = ("refit", folder / "old", "--samples", folder / "log", "--name", "m", "--version", "1")
    code, said = run(*asked, "-o", folder / "new", "--method", "temperature", *more)
    return code, said.splitlines()


def test_refit_says_what_is_better_and_by_how_much(tmp_path: Path) -> None:
    z, y = (one.astype(np.float16).astype(float) if one.ndim == 2 else one for one in draw(400, 3, 2))
    Artifact((LogitMap.temperature(1.5),), method="t", classes=3).save(tmp_path / "old")
    served(tmp_path / "log", z, y)
    told = judged(z, y, 1.5)
    assert told["evidence"] > 20
    assert refit(tmp_path) == (
        0,
        [
            *sentences(told, 400),
            "better: temperature, fitted on all of them",
            f"written to {tmp_path / 'new'}",
        ],
    )
    assert Artifact.load(tmp_path / "new").fit["temperature"] == pytest.approx(temperature(z, y), rel=1e-6)


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_refit_says_why_the_current_one_stays_and_ends_with_one(alpha: float, tmp_path: Path) -> None:
    z, y = draw(400, 1, 2)
    z = z.astype(np.float16).astype(float)
    Artifact((LogitMap.temperature(1.0),), method="t", classes=3).save(tmp_path / "old")
    served(tmp_path / "log", z, y)
    told = judged(z, y, 1.0)
    assert told["evidence"] < 1 / alpha
    assert refit(tmp_path, "--alpha", alpha) == (
        1,
        [
            *sentences(told, 400, alpha),
            "not enough evidence that a new one is better; the current one stays",
        ],
    )
    assert not (tmp_path / "new").exists()


def moved(what: str, served: NDArray[np.int64], known: NDArray[np.int64], bins: int) -> str:
    """How far what was served is from what was fitted on, and how much of that is chance."""
    n, m = len(served), len(known)
    p, q = (np.bincount(one, minlength=bins) / len(one) for one in (served, known))
    chance = (np.count_nonzero(q) - 1) * (1 / n + 1 / m)
    p, q = p.clip(1e-4), q.clip(1e-4)
    psi = ((p - q) * np.log(p / q)).sum()
    return f"{what} against those of the calibration set: PSI {psi:.2f}, {chance:.2f} by chance"


def test_refit_says_what_moved_what_is_lost_and_what_stays(tmp_path: Path) -> None:
    fit = draw(500, 1, 3)
    z, y = draw(400, 3, 2, shares=(1.0, 0.0, -1.0))
    z = z.astype(np.float16).astype(float)
    old = replace(
        calibrate(*fit, "temperature"),
        data={},  # how many it was fitted on is not known: it is not moved
        contract=Contract((Clause("act", 0.9, above=0.8),)),
        sets=PredictionSets(np.array(0.8), coverage=0.9),
        abstain=Abstain(0.5, risk=0.1),
    )
    old.save(tmp_path / "old")
    served(tmp_path / "log", z, y)
    t = temperature(*fit)
    then, now = softmax(fit[0] / t, axis=1), softmax(z / t, axis=1)
    bins = [np.ceil(p.max(1) * 15).astype(int) - 1 for p in (now, then)]
    assert refit(tmp_path) == (
        0,
        [
            moved("confidences", bins[0], bins[1], 15),
            moved("predicted classes", now.argmax(1), then.argmax(1), 3),
            *sentences(judged(z, y, t), 400),
            "better: temperature, fitted on all of them",
            "the new one has no prediction sets and no abstention: those of the current one hold for its own "
            "probabilities; fit them again",
            "the contract stays as it is; whether the new one keeps it, say labels that it has not seen: "
            "calib-serve contract check",
            f"written to {tmp_path / 'new'}",
        ],
    )


def test_refit_that_cannot_judge_says_why_and_ends_with_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not with one, which says that the current calibration stays."""
    Artifact((LogitMap.temperature(1.0),), method="t", classes=3).save(tmp_path / "old")
    served(tmp_path / "log", *draw(199, 1, 2))
    asked = ("refit", tmp_path / "old", "--samples", tmp_path / "log", "--name", "m", "--version", "1")
    assert ended(*asked, "-o", tmp_path / "new", monkeypatch=monkeypatch) == 2
    assert capsys.readouterr() == (
        "",
        "calib-serve: 199 labelled samples of 199 kept predictions; at least 200 are needed: look farther "
        "back, keep a larger share, or wait for labels\n",
    )
    assert not (tmp_path / "new").exists()
    served(tmp_path / "log", *draw(400, 1, 2))  # enough, and no better
    assert ended(*asked, "-o", tmp_path / "new", monkeypatch=monkeypatch) == 1
