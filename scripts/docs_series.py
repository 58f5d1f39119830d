"""A hook of mkdocs: the tables of published series, made from their declarations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calib_serve.receipts.series import (
    CONTRACTS,
    GATEWAY,
    LEDGER_LABELS,
    SERIES,
    WATCH,
    WORKERS,
    Series,
)

PAGE = "reference/prometheus.md"
TABLES = {
    "<!-- series of all -->": (*SERIES, *WORKERS, *GATEWAY),
    "<!-- series of the watch -->": (*WATCH, *CONTRACTS),
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the tables where the page has their marks."""
    if page.file.src_uri != PAGE:
        return markdown
    for mark, series in TABLES.items():
        before, found, after = markdown.partition(mark)
        assert found, f"{PAGE} has lost {mark}"
        markdown = before + table(series) + after
    return markdown


def table(series: Iterable[Series]) -> str:
    """Give a row to each series; the labels of ledgers are explained once for all of them."""
    rows = ["| series | labels | |", "| --- | --- | --- |"]
    for one in series:
        labels = ", ".join(label for label in one.labels if label not in LEDGER_LABELS)
        rows.append(f"| `{one.name}` | {labels} | {one.help} |")
    return "\n".join(rows)
