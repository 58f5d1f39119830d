"""A report as one picture for a slide: the verdict, three figures and the reliability diagram."""

from __future__ import annotations

import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calib_serve.report.contents import Contents, LabelsContents
from calib_serve.report.figures import dots
from calib_serve.report.plot import PALETTE, drawing
from calib_serve.report.tables import facts

__all__ = ["slide"]

_TONES = {"calibrated": "#00694f", "no_error_found": "#0f6ba8", "too_little": "#6b5600", "off": "#b03000"}


def slide(contents: Contents | LabelsContents) -> Figure:
    """The first screen of a report, 16 to 9."""
    with drawing():
        figure = Figure(figsize=(10, 5.625))
        words, axes = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1, 1.05]})
        figure.subplots_adjust(left=0.04, right=0.97, top=0.94, bottom=0.11, wspace=0.12)
        _words(words, contents)
        _diagram(axes, contents)
    return figure


def _words(axes: Axes, contents: Contents | LabelsContents) -> None:
    axes.set_axis_off()
    verdict = contents.verdict
    title = textwrap.shorten(contents.title, 34, placeholder="…")
    axes.text(0, 1, title, fontsize=16, weight="bold", va="top")
    said = textwrap.fill(verdict.headline, 34)
    axes.text(0, 0.86, said, fontsize=13.5, weight="bold", va="top", color=_TONES[verdict.level])
    for row, fact in enumerate(facts(contents)):
        y = 0.42 - 0.19 * row
        old = f"{fact.old} → " if fact.old else ""
        axes.text(0, y, f"{fact.name}: {old}{fact.value}", fontsize=14, va="top")
        axes.text(0, y - 0.075, fact.note, fontsize=10.5, va="top", color=PALETTE["muted"])


def _diagram(axes: Axes, contents: Contents | LabelsContents) -> None:
    axes.plot([0, 1], [0, 1], color=PALETTE["muted"], linewidth=1, linestyle=(0, (4, 3)))
    for side in contents.sides:
        color = PALETTE[side.color]
        axes.scatter([], [], color=color, label=side.name)
        for dot in dots(side.reliability):
            if dot.vague:
                axes.scatter(dot.confidence, dot.accuracy, s=14, color=PALETTE["muted"], alpha=0.45)
                continue
            axes.vlines(dot.confidence, dot.low, dot.high, color=color, linewidth=1.5, alpha=0.6)
            size, face = 30 + 120 * dot.share**0.5, "white" if dot.beyond else color
            axes.scatter(
                dot.confidence,
                dot.accuracy,
                s=size,
                color=face,
                edgecolors=color,
                linewidths=2,
                zorder=3,
                clip_on=False,
            )
    axes.grid(True, color=PALETTE["grid"], linewidth=0.7)
    axes.tick_params(length=0)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", aspect="equal")
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.yaxis.set_major_formatter("{x:.0%}")
    if len(contents.sides) > 1:
        axes.legend(loc="upper left")
