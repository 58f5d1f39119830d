"""The report as one self-contained HTML file, or its first screen as a picture for a slide."""

from __future__ import annotations

import base64
import hashlib
import io
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import calib_serve
from calib_serve.artifact import Artifact
from calib_serve.core.errors import InputError
from calib_serve.core.files import write_whole
from calib_serve.core.options.base import changed
from calib_serve.core.options.evaluate import ReportOptions
from calib_serve.report.comparison import Predictions, printable
from calib_serve.report.figures import dots
from calib_serve.report.look import STATIC, environment, table_of_tests
from calib_serve.report.plot import PALETTE, drawing
from calib_serve.report.tables import table_of_artifact, table_of_metrics
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
            ``class_tolerance``, ``target_risk``, ``names``, ``class_names``, ``sample_weight``, ``groups``,
            ``own``.

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
            tests=table_of_tests(contents.verdict),
            metrics=table_of_metrics(task.shown, contents.sides, contents.changes),
            diagram=first,
            pictures=more,
            each=task.each(contents, 1000),  # larger tables are not readable
            decisions=task.decisions(contents),
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
    with drawing():
        figure = Figure(figsize=(10, 5.625))
        words, axes = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1, 1.05]})
        figure.subplots_adjust(left=0.04, right=0.97, top=0.94, bottom=0.11, wspace=0.12)
        _words(words, contents)
        _diagram(axes, contents)
    return figure


def _words(axes: Axes, contents: Contents) -> None:
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


def _diagram(axes: Axes, contents: Contents) -> None:
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
