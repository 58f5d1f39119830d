"""The report as one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

import calib_serve
from calib_serve.artifact import Artifact
from calib_serve.core.errors import InputError
from calib_serve.core.files import write_whole
from calib_serve.core.options.base import changed
from calib_serve.core.options.evaluate import ReportOptions
from calib_serve.core.text import printable
from calib_serve.report.comparison import Predictions
from calib_serve.report.look import STATIC, environment, table_of_tests
from calib_serve.report.tables import table_of_artifact, table_of_levels, table_of_metrics
from calib_serve.report.tasks import Contents, facts, prepare_report

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ReportKeywords


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

    Args:
        path: A .html file.
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
        path: A .html file.
        contents: As ``prepare_report`` returns them.
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"a report is a page, such as report.html, got {path.name!r}")
    try:
        # Whole or not at all: who reloads the page never sees half of it.
        write_whole(path, render(contents))
    except OSError as error:
        raise InputError(f"cannot write the report {path}: {error}; choose another place") from error
    return path


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
