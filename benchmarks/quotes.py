"""Sentences of docs/ with measured numbers, as the kept results make them.

They are written by hand; tests/test_benchmarks.py asks that each stands on its page, so that a new result
does not leave an old number there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blocks import NLL
from goals import ONE_POINT, SHIFTED, Result


@dataclass(frozen=True)
class Quote:
    """A sentence of a page, whatever its line breaks, as one benchmark's result makes it."""

    page: str
    benchmark: str
    says: Callable[[Result], str]


def refits(r: Result, *, changed: bool, classes: int | None = None) -> list[float]:
    """Shares of streams that led to a refit, or medians of labels until one of a changed temperature."""
    found = [s for s in r["settings"] if s["changed"] == changed and s["kind"] != "a class doubled"]
    if not changed:
        return [100 * s["rules"]["evidence"]["asks"] for s in found]
    return [s["rules"]["evidence"]["labels"][1] for s in found if s["classes"] == classes]


def broken(r: Result) -> list[float]:
    """Of contracts that promise just what is true, in percent, by how labels come; none chosen in a bin."""
    cases = ("all labelled", "late by outcome", "unsure ones chosen", "groups of five")
    return [100 * r["said"][f"as promised, {case}"]["broken"] for case in cases]


def breaches(r: Result, *, after: bool) -> list[float]:
    return [one["times_fixed"]["0.9"] for one in r["breaches"] if bool(one["kept_before"]) == after]


def ranges(values: list[float], form: str = "{:.1f}") -> str:
    """``1.7 to 3.3``."""
    return f"{form.format(min(values))} to {form.format(max(values))}"


def held_shares(r: Result, by: str) -> str:
    return ranges([100 * one[f"covered by {by}"] for one in r["label_shift"].values()], "{:.0f}")


def handler_ratios(r: Result, model: str) -> tuple[list[float], list[float]]:
    rows = [row for row in r["rows"] if row["model"] == model]
    return [row["throughput_ratio"] for row in rows], [row["p99_ratio"] for row in rows]


def lengths(r: Result, tolerance: float) -> str:
    """Measured run lengths of the settings that rivals are compared in."""
    return " and ".join(f"{s['run_length']:,.0f}" for s in r["settings"] if s["tolerance"] == tolerance)


def above(r: Result, ours: str, peer: str) -> list[float]:
    """NLL above the peer's on each set where it is, in percent."""
    pairs = [(f[ours]["nll"], f[peer]["nll"]) for f in r["sets"].values() if peer in f]
    return [100 * (mine / theirs - 1) for mine, theirs in pairs if mine > theirs]


NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

QUOTES = (
    Quote(
        "contracts.md",
        "contracts",
        lambda r: f"*broken* was claimed in {ranges(broken(r))} % of {r['streams']} streams",
    ),
    Quote(
        "contracts.md",
        "contracts",
        lambda r: (
            f"took {ranges(breaches(r, after=False))} times as many labels, on average, as a binomial test "
            "of power 90 % needs at one look; after 10,000 kept labels, "
            f"{ranges(breaches(r, after=True))} times as many"
        ),
    ),
    Quote(
        "contracts.md",
        "contracts",
        lambda r: f"its receipt, in {100 * r['said']['as promised, inside a bin, noted']['broken']:.1f} %.",
    ),
    Quote(
        "recalibrate.md",
        "shadow",
        lambda r: (
            f"{100 * r['summary']['gains 1 %']['ours']:.0f} % of streams of real logits (in the worst of 14 "
            f"cases, {100 * r['summary']['gains 1 %']['worst of a network']:.0f} %), and a loss is taken "
            f"for a gain in {100 * r['summary']['loses 1 %']['ours']:.1f} %"
        ),
    ),
    Quote(
        "recalibrate.md",
        "refit_gate",
        lambda r: f"{ranges(refits(r, changed=False), '{:.3g}')} % of the streams led to a new calibration",
    ),
    Quote(
        "recalibrate.md",
        "refit_gate",
        lambda r: (
            f"led to one after {ranges(refits(r, changed=True, classes=10), '{:,}')} labels (ten classes) or "
            f"{max(refits(r, changed=True, classes=2)):,} (two)"
        ),
    ),
    Quote(
        "problems.md",
        "prior_shift",
        lambda r: (
            f"by counts held the true shares in {held_shares(r, 'counts')} % of the cases, those by "
            f"likelihood in {held_shares(r, 'likelihood')} %"
        ),
    ),
    Quote(
        "methods.md",
        "fusion_overhead",
        lambda r: (
            f"takes {r['median_ratio']:.4f} of the time of the bare model, where the bare model itself "
            "differs from run to run by {:.3f} to {:.3f}".format(*r["control_range"]).replace("by 0.", "by .")
        ),
    ),
    Quote(
        "ledger.md",
        "labels",
        lambda r: (
            f"30 days take {30e6 * r['bytes']['SQLite'] / 1e9:.0f} GB in SQLite and "
            f"{30e6 * r['bytes']['PostgreSQL'] / 1e9:.0f} in PostgreSQL"
        ),
    ),
    Quote("monitoring.md", "detectors", lambda r: f"at its edges ({lengths(r, ONE_POINT)} labels)"),
    Quote(
        "benchmarks/serving.md",
        "serving",
        lambda r: "**Met by ResNet-20** (throughput {}, p99 {})".format(
            *(ranges(values, "{:.2f}") for values in handler_ratios(r, "resnet20"))
        ),
    ),
    Quote(
        "benchmarks/serving.md",
        "serving",
        lambda r: "**Missed by the linear model** ({}; p99 up to {:.2f})".format(
            ranges(handler_ratios(r, "linear")[0], "{:.2f}"), max(handler_ratios(r, "linear")[1])
        ),
    ),
    Quote("benchmarks/serving.md", "soak", lambda r: f"two workers, {r['predicted']:,} predictions"),
    Quote(
        "benchmarks/output_calibrators.md",
        "fit_outputs",
        lambda r: (
            f"structured vector on {NUMBERS[len(above(r, *NLL[0]))]} "
            f"(by {ranges(above(r, *NLL[0]), '{:.2f}')} %)"
        ),
    ),
    Quote(
        "benchmarks/output_calibrators.md",
        "fit_outputs",
        lambda r: f"structured matrix on {NUMBERS[len(above(r, *NLL[1]))]} of thirteen",
    ),
    Quote(
        "benchmarks/output_calibrators.md",
        "fit_outputs",
        lambda r: (
            f"**{min(one['times_faster'] for one in r['ece_grid'].values()):.0f} times on `{SHIFTED}`**"
        ),
    ),
)
