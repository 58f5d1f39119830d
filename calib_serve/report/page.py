"""The report as one self-contained HTML file, or its first screen as a picture for a slide."""

from __future__ import annotations

import base64
import hashlib
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, PercentFormatter

import calib_serve
from calib_serve.artifact import Artifact
from calib_serve.core.errors import InputError
from calib_serve.core.files import write_whole
from calib_serve.core.options.base import changed
from calib_serve.core.options.evaluate import ReportOptions
from calib_serve.core.text import printable
from calib_serve.report.comparison import Diagram, Predictions
from calib_serve.report.figures import dots, headline
from calib_serve.report.look import STATIC, environment, table_of_tests
from calib_serve.report.look.charts import Dot, dense_range, slot_place
from calib_serve.report.plot import PALETTE, drawing, legend_beside
from calib_serve.report.tables import table_of_artifact, table_of_levels, table_of_metrics
from calib_serve.report.tasks import Contents, facts, prepare_report

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ReportKeywords

_DRAWN = (".png", ".svg")
_TONES = {"calibrated": "#00694f", "no_error_found": "#0f6ba8", "too_little": "#6b5600", "off": "#b03000"}


def write_report(
    path: str | Path,
    *,
    title: str,
    after: Predictions,
    before: Predictions | None = None,
    artifact: Artifact | None = None,
    options: ReportOptions | None = None,
    **keywords: Unpack[ReportKeywords],
) -> Path:
    """Write the report of ``after``, or of ``before`` and ``after``, to ``path``, atomically.

        write_report("report.html", title="digits", before=(p, y), after=(q, y), artifact=artifact)
        write_report("slide.png", title="digits", before=(p, y), after=(q, y), artifact=artifact)

    Args:
        path: A .html file, or a .png or .svg of its first screen.
        title: The report's heading.
        after: Probabilities (n, K) and class ids (n,); of a multi-label model both (n, L), labels 0 or 1.
        before: The same of another model, or of none calibrated, on the same samples in the same order.
        artifact: The calibration that the report is of.
        options: A ``ReportOptions``; keywords replace its fields.
        **keywords: Fields of ``ReportOptions``: ``bins``, ``edges``, ``seed``, ``replicates``, ``tolerance``,
            ``class_tolerance``, ``names``, ``class_names``, ``sample_weight``, ``groups``,
            ``bounds``, ``own``, ``tree``.

    Returns:
        ``path``.

    Raises:
        InputError: Where probabilities, labels or options do not match, or the file cannot be written.
    """
    asked = changed(options or ReportOptions(), keywords, write_report)
    contents = prepare_report(title=title, after=after, before=before, artifact=artifact, options=asked)
    return write_page(path, contents)


def write_page(path: str | Path, contents: Contents) -> Path:
    """Write prepared contents, atomically.

    Args:
        path: A page, or as .png or .svg its first screen.
        contents: As ``prepare_report`` returns them.
    """
    path = Path(path)
    kind = path.suffix.lower()
    made: str | bytes = _drawing(contents, kind[1:]) if kind in _DRAWN else render(contents)
    try:
        # Whole or not at all: who reloads the page never sees half of it.
        write_whole(path, made)
    except OSError as error:
        raise InputError(f"cannot write the report {path}: {error}; choose another place") from error
    return path


def _drawing(contents: Contents, kind: str) -> bytes:
    file = io.BytesIO()
    # Without a date the same contents give the same bytes.
    metadata = {"Title": contents.title, **({"Date": None} if kind == "svg" else {})}
    figure = slide(contents)
    with drawing(), mpl.rc_context({"svg.hashsalt": "slide"}):
        figure.savefig(file, format=kind, dpi=200, metadata=metadata)
    return file.getvalue()


def render(contents: Contents) -> str:
    """Render prepared contents as a page. The same contents give the same bytes."""
    script = _asset("report.js")
    task = contents.task
    first, more = task.pictures(contents)
    return (
        environment("calib_serve.report")
        .get_template("report.html")
        .render(
            contents=contents,
            task=task,
            verdict=contents.verdict,
            facts=facts(contents),
            tested=[(one, table_of_tests(one)) for one in contents.verdicts],
            metrics=table_of_metrics(task.shown, contents.sides, contents.changes),
            diagram=first,
            pictures=more,
            each=task.each(contents, 1000),  # larger tables are not readable
            decisions=task.decisions(contents),
            levels=table_of_levels(contents.levels) if contents.levels else None,
            artifact=table_of_artifact(contents.artifact) if contents.artifact else None,
            method=printable(contents.artifact.method) if contents.artifact else "",
            style=_asset("look.css"),
            script=script,
            # The page may run only this script and load nothing: a second defence, should escaping fail.
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=calib_serve.__version__,
        )
    )


def _asset(name: str) -> Markup:
    return Markup((STATIC / name).read_text("utf-8"))  # noqa: S704 - ours


def slide(contents: Contents) -> Figure:
    """Draw the first screen of a report, 16 to 9."""
    curves, across, up = headline(contents.sides)
    dense = [one for one in curves if one.dense is not None]
    with drawing():
        figure = Figure(figsize=(10, 5.625), layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.2))
        grid = figure.add_gridspec(1, 3 if dense else 2, width_ratios=[0.9, 1, 1] if dense else [1, 1.05])
        _words(figure.add_subplot(grid[0]), contents, 26 if dense else 34)
        axes = figure.add_subplot(grid[1])
        _diagram(axes, curves)
        axes.set(xlabel=across, ylabel=up)
        if len(curves) > 1:
            legend_beside(axes)
        if dense:
            _draw_parts(figure.add_subplot(grid[2]), dense)
    return figure


def _words(axes: Axes, contents: Contents, wide: int) -> None:
    axes.set_axis_off()
    title = textwrap.shorten(contents.title, wide, placeholder="…")
    axes.text(0, 1, title, fontsize=16, weight="bold", va="top")
    y = 0.9
    compared = [] if contents.other is None else [(contents.verdict.gain, PALETTE["ink"], 11.5)]
    size = 10 if compared else 13.5
    for text, color, of in (*compared, *((v.headline, _TONES[v.level], size) for v in contents.verdicts)):
        said = textwrap.fill(text, round(wide * 13.5 / of))
        axes.text(0, y, said, fontsize=of, weight="bold", va="top", color=color)
        y -= 0.0052 * of * (said.count("\n") + 1) * 0.68 + 0.03
    for row, fact in enumerate(facts(contents)):
        at = min(0.42, y) - 0.17 * row
        old = f"{fact.old} → " if fact.old else ""
        axes.text(0, at, f"{fact.name}: {old}{fact.value}", fontsize=11 if wide < 30 else 14, va="top")
        axes.text(0, at - 0.065, fact.note, fontsize=10, va="top", color=PALETTE["muted"])


def _diagram(axes: Axes, curves: Sequence[Diagram]) -> None:
    axes.plot([0, 1], [0, 1], color=PALETTE["muted"], linewidth=1, linestyle=(0, (4, 3)))
    for one in curves:
        axes.scatter([], [], color=PALETTE[one.color], label=one.name)
        for dot in dots(one.reliability):
            _dot(axes, dot.confidence, dot, PALETTE[one.color])
    _percents(axes)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.xaxis.set_major_formatter("{x:.0%}")


def _draw_parts(axes: Axes, curves: Sequence[Diagram]) -> None:
    """Draw the parts of the densest dot: dots are what came, dashes what was said."""
    every = [dots(one.dense) for one in curves if one.dense is not None]
    for i, (one, parts) in enumerate(zip(curves, every, strict=True)):
        for slot, dot in enumerate(parts):
            x = slot + slot_place(i, len(curves))
            axes.hlines(dot.confidence, x - 0.25, x + 0.25, color=PALETTE[one.color], linewidth=2)
            _dot(axes, x, dot, PALETTE[one.color])
    _percents(axes)
    slots = max(map(len, every))
    axes.set(
        xlim=(0, slots), ylim=dense_range([dot for parts in every for dot in parts]), xticks=[], box_aspect=1
    )
    axes.set_xlabel(f"the densest dot in {slots} parts;\ndashes: what was said")


def _dot(axes: Axes, x: float, dot: Dot, color: str) -> None:
    if dot.vague:
        axes.scatter(x, dot.accuracy, s=14, color=color, alpha=0.4, edgecolors="none", clip_on=False)
        return
    axes.vlines(x, dot.low, dot.high, color=color, linewidth=1.5, alpha=0.6)
    size, face = 30 + 120 * dot.share**0.5, "white" if dot.beyond else color
    axes.scatter(x, dot.accuracy, s=size, color=face, edgecolors=color, linewidths=2, zorder=3, clip_on=False)


def _percents(axes: Axes) -> None:
    axes.grid(True, color=PALETTE["grid"], linewidth=0.7)
    axes.tick_params(length=0)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
