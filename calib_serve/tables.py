"""Small HTML tables for notebooks, and pandas frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from calib_serve.errors import MissingDependency

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["frame", "html_table"]


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names the rows; every text is escaped.

    >>> html_table("<b>", ["metric", "value"], [["ece", "0.1"]]).startswith("<table><caption>&lt;b&gt;<")
    True
    """
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    caption = f"<caption>{escape(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def frame(columns: Mapping[str, Sequence[Any]], index: Sequence[str], *, name: str) -> DataFrame:
    """A pandas DataFrame of equally long columns; its index is called ``name``.

    Raises MissingDependency where pandas is not installed: no extra of this package installs it.
    """
    try:
        import pandas  # noqa: PLC0415 - only frames need it
    except ImportError as error:
        raise MissingDependency("pandas") from error
    return pandas.DataFrame(dict(columns), index=pandas.Index(index, name=name))
