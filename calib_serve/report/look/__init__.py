"""Pages: the stylesheet, macros, charts and number formats that the report and the watch share.

A page imports its macros from ``parts.html``, and hands them the records of this module.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from calib_serve.core.text import chance, count, points

if TYPE_CHECKING:
    from calib_serve.metrics import Verdict

__all__ = ["STATIC", "Cell", "Fact", "Said", "Table", "environment", "table_of_tests"]

STATIC = Path(__file__).parent / "static"
"""The stylesheet and the scripts of both pages."""


class Said(NamedTuple):
    """The text of a banner; a ``Verdict`` can stand in.

    Args:
        level: Level of a ``Verdict``, which chooses icon and colour.
        headline: Text, which is escaped.
    """

    level: str
    headline: str


class Fact(NamedTuple):
    """One of the figures below a verdict.

    Args:
        name: Name of the figure.
        value: Value as text, with its unit.
        note: Small print below it; empty: none.
        old: Value before; empty: none.
    """

    name: str
    value: str
    note: str = ""
    old: str = ""


class Cell(NamedTuple):
    """A cell of a table.

    Args:
        text: Text, which is escaped.
        small: Small print below it; empty: none.
        value: Number to sort by; None: the text.
        style: CSS class.
        href: Address that it links to; empty: no link.
        current: Whether the link is to the page that is looked at.
    """

    text: str
    small: str = ""
    value: float | None = None
    style: str = ""
    href: str = ""
    current: bool = False


class Table(NamedTuple):
    """A table.

    Args:
        label: Name for screen readers.
        heads: Heads of the columns.
        rows: Cells, or texts; the first cell names the row.
        sorted_by: Head by which it is sorted, and which makes its heads buttons; empty: none.
    """

    label: str
    heads: tuple[str, ...]
    rows: Sequence[Sequence[Cell | str]]
    sorted_by: str = ""


@functools.cache
def environment(package: str) -> Environment:
    """The templates of a package beside the shared ones, compiled once."""
    found = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(__name__)]),
        # Escaped, as names of classes and models are users' text; strict, as a missing value is our fault.
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(count=count)
    return found


def table_of_tests(verdict: Verdict) -> Table:
    """List the tests behind a verdict: those of the whole first, then the most telling classes."""
    # Of a thousand classes only those that stand out can be read.
    whole = [test for test in verdict.tests if not test.alone]
    each = sorted((test for test in verdict.tests if test.alone), key=lambda test: test.p)
    rows = [
        (
            test.what[0].upper() + test.what[1:],
            _points(test.error),
            _points(test.most),
            _points(test.tolerance),
            chance(test.p),
            Cell(
                {"off": "error", "within": "within tolerance"}.get(test.finding, "open"), style=test.finding
            ),
        )
        for test in (*whole, *each)[:12]
    ]
    heads = ("What was tested", "Error", "Surely below", "Tolerance", "Chance, if calibrated", "Found")
    return Table("Tests", heads, rows)


def _points(value: float) -> str:
    return points(value) if math.isfinite(value) else ""
