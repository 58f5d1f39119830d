"""One self-contained HTML file: no network, no fonts, no libraries."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import calib_serve
from calib_serve.artifact import Artifact
from calib_serve.errors import InputError
from calib_serve.files import write_whole
from calib_serve.report.contents import (
    Contents,
    LabelsContents,
    Predictions,
    prepare_labels_report,
    prepare_report,
    printable,
)
from calib_serve.report.figures import Picture, label_picture, pictures
from calib_serve.report.plot import drawing, inline_svg
from calib_serve.report.tables import DecisionRows, artifact_facts, decision_rows, metric_rows
from calib_serve.report.verdict import percent, signed_points

__all__ = ["render", "write_page", "write_plots", "write_report"]

# Larger tables are not readable.
_MOST_CLASSES = 1000
_TILES = ("ECE", "Accuracy", "NLL", "AUROC right from wrong")
_LABEL_TILES = ("ECE of P(label)", "Accuracy", "NLL", "Brier score of P(label)")


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

    Both are (probs (n, K), labels (n,)) of the same samples, of a multi-label model (probs (n, L), labels
    (n, L)); ``options`` are those of
    ``prepare_report``: names, class_names, bins, tolerance, target_risk, replicates, seed.
    """
    labels = np.ndim(after[1]) == 2
    prepare: Any = prepare_labels_report if labels else prepare_report
    contents = prepare(title=title, after=after, before=before, artifact=artifact, **options)
    return write_page(path, contents)


def write_page(path: str | Path, contents: Contents | LabelsContents) -> Path:
    """Write prepared contents to ``path``, atomically."""
    path = Path(path)
    page = render(contents)
    try:
        write_whole(path, page)
    except OSError as error:
        raise InputError(f"cannot write the report {path}: {error}; choose another place") from error
    return path


def render(contents: Contents | LabelsContents) -> str:
    """The page of prepared contents. The same contents give the same bytes."""
    environment = Environment(
        loader=PackageLoader("calib_serve.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, printable=printable, signed=signed_points)
    script = _asset("report.js")
    of_labels = isinstance(contents, LabelsContents)
    table: dict[str, Any] = (
        {"labels": contents.labels[:_MOST_CLASSES], "tiles": _LABEL_TILES}
        if isinstance(contents, LabelsContents)
        else {"classes": contents.classes[:_MOST_CLASSES], "tiles": _TILES}
    )
    return environment.get_template("labels.html" if of_labels else "report.html").render(
        contents=contents,
        verdict=contents.verdict,
        rows=metric_rows(contents),
        pictures=[
            (p, inline_svg(p.figure, name=p.name, title=p.title, text=p.text)) for p in _pictures(contents)
        ],
        **table,
        decisions=_decisions(contents),
        facts=artifact_facts(contents.artifact) if contents.artifact else (),
        style=_asset("report.css"),
        script=script,
        # The page may run only this script and load nothing: a second defence, should escaping fail.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        version=calib_serve.__version__,
    )


def _decisions(contents: Contents | LabelsContents) -> DecisionRows | None:
    if isinstance(contents, LabelsContents) or not contents.artifact or contents.decisions is None:
        return None
    if not contents.decisions and contents.artifact.contract is None:
        return None
    return decision_rows(contents.artifact, contents.decisions, contents.class_names)


def _pictures(contents: Contents | LabelsContents) -> tuple[Picture, ...]:
    if isinstance(contents, LabelsContents):
        return (label_picture(contents.sides),)
    return pictures(contents)


def _asset(name: str) -> Markup:
    return Markup(resources.files("calib_serve.report").joinpath("templates", name).read_text("utf-8"))  # noqa: S704


def write_plots(
    folder: str | Path, contents: Contents | LabelsContents, *, kind: Literal["png", "svg"] = "svg"
) -> list[Path]:
    """Write each figure to its own file, and all numbers as ``numbers.json``; returns the paths."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawn = _pictures(contents)
        paths = [folder / f"{picture.name}.{kind}" for picture in drawn]
        with drawing():
            for path, picture in zip(paths, drawn, strict=True):
                metadata = {"Title": picture.title, **({"Date": None} if kind == "svg" else {})}
                picture.figure.savefig(path, format=kind, dpi=200, metadata=metadata)
        numbers = folder / "numbers.json"
        numbers.write_text(json.dumps(contents.as_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write plots to {folder}: {error}; choose another folder") from error
    return [*paths, numbers]
