"""Lin 2025, "Uncertainty Weighted Gradients for Model Calibration" (BSCE-GRA)."""

from __future__ import annotations

from pathlib import Path

from loss_runs import SETS, first_seed, labelled, mean, ranked, spread, told_runs, trained, unlearned
from loss_settings import BRIER_GAMMAS, brier_weighted
from paper_results import Table, recorded, splits, told
from published import LIN, LIN_GAMMAS, LIN_LOSSES, LIN_VARIANTS

from calib_serve.fit.output.candidates import fit_by_name
from calib_serve.metrics import ece, softmax

LIN_2025 = "Lin 2025, Uncertainty weighted gradients"
WATCHED = ("cross-entropy", "focal, gamma 3", "dual focal, gamma 5", "BSCE-GRA, gamma 4")


def cross_entropy_networks(folder, results: Path | None = None):
    rows = []
    for data, published in LIN.items():
        cal, (z, y) = splits(folder, data)
        coarse = fit_by_name("temperature-ece", *cal, grid="coarse").probs(z)
        nll = fit_by_name("temperature", *cal).probs(z)
        rows.append((data, 100 * ece(softmax(z), y), 100 * ece(coarse, y), 100 * ece(nll, y), *published))
    return Table(
        LIN_2025,
        "Table 1, the cross-entropy column: CIFAR-10, ECE before and after a temperature",
        ("network", "ECE", "after T by ECE grid", "after T by NLL", "paper's ECE", "paper's after T"),
        tuple(rows),
        "The paper's are means over three trainings of its own; these are single published networks of the "
        "same architectures. Its Wide-ResNet and DenseNet, CIFAR-100 and Tiny-ImageNet are not at hand.",
    )


def theirs(task, published):
    """The paper's own numbers, which are of CIFAR-10."""
    return published if task == "images" else (None,) * len(published)


def rows_of(losses, keys, results):
    """Each loss on each set, beside the paper's own numbers."""
    return tuple(
        (
            SETS[task],
            labelled(name, runs),
            len(runs[name]),
            *(spread(runs[name], key) for key in keys),
            *theirs(task, published),
        )
        for task, runs in trained(results).items()
        for name, published in losses.items()
        if name in runs
    )


def weighted_losses(folder, results: Path | None = None):
    keys = ("accuracy", "ECE", "ECE after pool TS", "AECE", "SCE")
    rows = rows_of(LIN_LOSSES, keys, results)
    numbers = ("accuracy", "ECE", "after T", "AECE", "SCE")
    return Table(
        LIN_2025,
        "Tables 1, 3, 4 and 5, its losses, on small networks",
        ("set", "loss", "seeds", *numbers, *(f"paper's {number} (ResNet-50)" for number in numbers)),
        rows,
        "Networks trained with these losses are not published, and 350 epochs of CIFAR are out of reach "
        "here. T is searched by ECE in steps of .01, in the paper of .1. SCE is what the paper calls "
        "classwise ECE. "
        + " ".join(order(task, runs) for task, runs in trained(results).items())
        + f" {told_runs(results)}",
    )


def order(task, runs) -> str:
    """The losses of the paper by ECE, from the numbers alone."""
    before, after = (ranked(runs, list(LIN_LOSSES), key) for key in ("ECE", "ECE after pool TS"))
    return " ".join(
        [
            f"{SETS[task]}, by ECE from the least: {'; '.join(before)}.",
            f"After a temperature: {'; '.join(after)}.",
            *unlearned({name: runs[name] for name in LIN_LOSSES if name in runs}),
        ]
    )


def gradient_against_loss(task, runs) -> str:
    pairs = list(zip(list(LIN_VARIANTS)[::2], list(LIN_VARIANTS)[1::2], strict=True))
    told = [
        f"{gra} {100 * (mean(runs[gra], 'ECE') - mean(runs[plain], 'ECE')):+.2f} "
        f"({100 * (mean(runs[gra], 'ECE after pool TS') - mean(runs[plain], 'ECE after pool TS')):+.2f})"
        for plain, gra in pairs
        if ranked(runs, [plain, gra], "ECE")[1:]
    ]
    return f"{SETS[task]}: {', '.join(told) or 'no pair'}."


def on_gradients(folder, results: Path | None = None):
    keys = ("accuracy", "ECE", "ECE after pool TS", "AECE", "AECE after pool TS")
    rows = rows_of(LIN_VARIANTS, keys, results)
    numbers = ("accuracy", "ECE", "after T", "AECE", "AECE after T")
    return Table(
        LIN_2025,
        "Table 2, weights on the loss and on its gradient",
        ("set", "loss", "seeds", *numbers, *(f"paper's {number} (ResNet-50)" for number in numbers)),
        rows,
        "ECE with the weight on the gradient less that with the weight on the loss, in points, and after a "
        "temperature: "
        + " ".join(gradient_against_loss(task, runs) for task, runs in trained(results).items())
        + f" {told_runs(results)}",
    )


def exponents(folder, results: Path | None = None):
    rows = [
        (
            SETS[task],
            name,
            len(runs[name]),
            *(spread(runs[name], k) for k in keys),
            *theirs(task, (LIN_GAMMAS[gamma],)),
        )
        for keys in [("accuracy", "ECE", "ECE after pool TS")]
        for task, runs in trained(results).items()
        for gamma in BRIER_GAMMAS
        if (name := brier_weighted(gamma)) in runs
    ]
    return Table(
        LIN_2025,
        "Table 6, the exponent of BSCE-GRA",
        ("set", "loss", "seeds", "accuracy", "ECE", "after T", "paper's ECE (CIFAR-100)"),
        tuple(rows),
        "The paper's least ECE is at 4, of ResNet-50 on CIFAR-100. Beta is 2, as in its experiments.",
    )


def norms(folder, results: Path | None = None):
    runs = trained(results).get("images", {})
    rows = []
    for name in WATCHED:
        found = first_seed(runs, name)
        for point in found["gradients"] if found else ():
            _, low, median, high, _ = point["quantiles"]
            rows.append((name, point["epoch"], point["rank correlation"], point["spread"], low, median, high))
    return Table(
        LIN_2025,
        "Figures 4 and 5(b, c), norms of the last layer's gradients (CIFAR-10 images, one seed)",
        (
            "loss",
            "epoch",
            "rank correlation with the Brier score",
            "spread at a Brier score",
            "lower quartile of norms",
            "median",
            "upper quartile",
        ),
        tuple(rows),
        "Of 2,000 training images. The spread is the interquartile range of the norms among images of about "
        "one Brier score, over the range of their medians: the paper claims that it is narrowest for "
        "BSCE-GRA and widest for dual focal loss. " + " ".join(narrowest(rows)),
    )


def narrowest(rows):
    """The losses by the spread at the last epoch, from the numbers alone."""
    last = {row[0]: row[3] for row in rows}  # rows of a loss are by epoch
    if last:
        order = sorted(last, key=lambda name: last[name])
        yield f"At the end, from the narrowest: {', '.join(f'{name} ({last[name]:.3f})' for name in order)}."


def over_epochs(folder, results: Path | None = None):
    runs = trained(results).get("images", {})
    curves = {name: found["curve"] for name in WATCHED if (found := first_seed(runs, name))}
    points = next(iter(curves.values()), [])
    rows = tuple(
        (point["epoch"], *(100 * curve[i]["ECE"] for curve in curves.values()))
        for i, point in enumerate(points)
    )
    return Table(
        LIN_2025,
        "Figure 5(a), the ECE over epochs (CIFAR-10 images, one seed)",
        ("epoch", *curves),
        rows,
        "The learning rate falls after epochs 11 and 16.",
    )


def toy_order(found):
    """Whether the paper's order gBS, DFL, FL comes out, from the numbers alone."""
    for result in found:
        for reading, families in result["best"].items():
            order = sorted(families, key=lambda family: -families[family]["mean"])
            same = "comes" if order == ["gBS", "DFL", "FL"] else "does not come"
            gap = families[order[0]]["mean"] - families[order[-1]]["mean"]
            yield (
                f"Error of {reading}: the order is {', '.join(order)}, within {gap:.3f}; the paper's (gBS, "
                f"DFL, FL, within .114) {same} out."
            )


def toy(folder, results: Path | None = None):
    found = recorded("toy_gaussians", "best", results)[-1:]
    rows = [
        (reading, family, each["setting"], f"{each['mean']:.3f} ± {each['sd']:.3f}", less, published)
        for result in found
        for reading, families in result["best"].items()
        for family, each in families.items()
        for less in ["{:+.3f} ± {:.3f}".format(*each["less gBS"]) if family != "gBS" else ""]
        for published in [f"{each['published']:.3f}"]
    ]
    runs = len(found[0]["runs"]) if found else 0
    return Table(
        LIN_2025,
        "Section 4.3, correlation of the weights with the true error (five Gaussians)",
        ("error of", "weight", "best setting", "correlation", "less gBS", "paper's"),
        tuple(rows),
        " ".join(toy_order(found))
        + f" {runs} drawings of the means, in the paper 5. Mean and standard deviation over them; the "
        "difference to gBS is of the same drawings, with its standard error. " + told("toy_gaussians", found),
    )


TABLES = (
    cross_entropy_networks,
    weighted_losses,
    on_gradients,
    exponents,
    norms,
    over_epochs,
    toy,
)
