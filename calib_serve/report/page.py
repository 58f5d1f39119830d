"""One self-contained HTML file: no network, no fonts, no libraries."""

from __future__ import annotations

import base64
import hashlib
import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup

import calib_serve
from calib_serve.artifact import Artifact
from calib_serve.errors import InputError
from calib_serve.files import write_whole
from calib_serve.pages import STATIC, Table, environment, table_of_tests
from calib_serve.report.contents import (
    Contents,
    LabelsContents,
    Predictions,
    prepare_labels_report,
    prepare_report,
    printable,
)
from calib_serve.report.figures import Picture, diagram, pictures
from calib_serve.report.plot import drawing
from calib_serve.report.slide import slide
from calib_serve.report.tables import (
    DecisionRows,
    decision_rows,
    facts,
    table_of_artifact,
    table_of_classes,
    table_of_labels,
    table_of_metrics,
)

__all__ = ["render", "write_page", "write_report"]

_MOST_ROWS = 1000  # larger tables are not readable
_DRAWN = (".png", ".svg")


def write_report(
    path: str | Path,
    *,
    title: str,
    after: Predictions,
    before: Predictions | None = None,
    artifact: Artifact | None = None,
    **options: Any,
) -> Path:
    """Write the report of ``after``, or of ``before`` and ``after``, to ``path``, atomically.

        write_report("report.html", title="digits", before=(p, y), after=(q, y), artifact=artifact)
        write_report("slide.png", title="digits", before=(p, y), after=(q, y), artifact=artifact)

    Both are (probs (n, K), labels (n,)) of the same samples, of a multi-label model (probs (n, L), labels
    (n, L)); ``options`` are those of
    ``prepare_report``: names, class_names, bins, tolerance, target_risk, replicates, seed.
    """
    labels = np.ndim(after[1]) == 2
    prepare: Any = prepare_labels_report if labels else prepare_report
    contents = prepare(title=title, after=after, before=before, artifact=artifact, **options)
    return write_page(path, contents)


def write_page(path: str | Path, contents: Contents | LabelsContents) -> Path:
    """Write prepared contents to ``path``, atomically: a page, or as .png or .svg its first screen."""
    path = Path(path)
    kind = path.suffix.lower()
    made: str | bytes = _drawing(contents, kind[1:]) if kind in _DRAWN else render(contents)
    try:
        write_whole(path, made)
    except OSError as error:
        raise InputError(f"cannot write the report {path}: {error}; choose another place") from error
    return path


def _drawing(contents: Contents | LabelsContents, kind: str) -> bytes:
    file = io.BytesIO()
    metadata = {"Title": contents.title, **({"Date": None} if kind == "svg" else {})}
    figure = slide(contents)
    with drawing(), mpl.rc_context({"svg.hashsalt": "slide"}):
        figure.savefig(file, format=kind, dpi=200, metadata=metadata)
    return file.getvalue()


def render(contents: Contents | LabelsContents) -> str:
    """The page of prepared contents. The same contents give the same bytes."""
    script = _asset("report.js")
    first, more = _pictures(contents)
    return (
        environment("calib_serve.report")
        .get_template("report.html")
        .render(
            contents=contents,
            verdict=contents.verdict,
            facts=facts(contents),
            tests=table_of_tests(contents.verdict),
            metrics=table_of_metrics(contents),
            diagram=first,
            pictures=more,
            each=_each(contents),
            decisions=_decisions(contents),
            artifact=table_of_artifact(contents.artifact) if contents.artifact else None,
            method=printable(contents.artifact.method) if contents.artifact else "",
            style=_asset("look.css"),
            script=script,
            # The page may run only this script and load nothing: a second defence, should escaping fail.
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=calib_serve.__version__,
        )
    )


def _each(contents: Contents | LabelsContents) -> Table:
    """Class by class, or label by label."""
    if isinstance(contents, LabelsContents):
        return table_of_labels(contents.labels[:_MOST_ROWS])
    return table_of_classes(contents.classes[:_MOST_ROWS])


def _decisions(contents: Contents | LabelsContents) -> DecisionRows | None:
    if isinstance(contents, LabelsContents) or not contents.artifact or contents.decisions is None:
        return None
    if not contents.decisions and contents.artifact.contract is None:
        return None
    return decision_rows(contents.artifact, contents.decisions, contents.class_names)


def _pictures(contents: Contents | LabelsContents) -> tuple[Picture, tuple[Picture, ...]]:
    """The first diagram, and those below it."""
    if isinstance(contents, LabelsContents):
        return diagram(contents.sides, title="Do the decisions' confidences mean what they say?"), ()
    return diagram(contents.sides), pictures(contents)


def _asset(name: str) -> Markup:
    return Markup((STATIC / name).read_text("utf-8"))  # noqa: S704 - ours
