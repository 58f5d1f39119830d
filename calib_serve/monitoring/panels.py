"""Panels of a Grafana dashboard, as its JSON has them."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

__all__ = [
    "SOURCE", "WHERE", "Panel", "bars", "curves", "heat", "placed", "query", "row", "shown_as", "table",
    "tile", "timeline",
]  # fmt: skip

Panel = dict[str, Any]

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WHERE = "{{namespace}} {{env}} {{tenant}}"

_WIDTH = 24
_AS_THEY_ARE: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
_LETTERS = string.ascii_uppercase  # names of queries


def query(expression: str, legend: str = WHERE, *, name: str = "A") -> Panel:
    """A query over time, called ``name``."""
    return {"expr": expression, "legendFormat": legend, "refId": name, "range": True, "instant": False}


def _rows(expressions: Mapping[str, str]) -> list[Panel]:
    """Queries of now, for a table with a column for each."""
    instant = {"format": "table", "range": False, "instant": True}
    named = zip(_LETTERS, expressions.items(), strict=False)
    return [query(expression, name, name=letter) | instant for letter, (name, expression) in named]


def _columns(names: Iterable[str]) -> dict[str, str]:
    """What Grafana calls the columns of such a table, and their names."""
    return {f"Value #{letter}": name for letter, name in zip(_LETTERS, names, strict=False)}


def _panel(kind: str, title: str, targets: list[Panel], *, width: int, height: int, **more: Any) -> Panel:
    """``more``: ``says``, unit, least and largest value, words for values, transformations, options."""
    known = ("unit", "min", "max", "noValue", "mappings", "thresholds", "color")
    defaults = {name: more[name] for name in known if name in more}
    panel: Panel = {
        "type": kind,
        "title": title,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height, "x": 0, "y": 0},
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": more.get("overrides", [])},
        "options": more.get("options", {}),
        "transformations": [{"id": step, "options": how} for step, how in more.get("steps", {}).items()],
    }
    return panel | ({"description": more["says"]} if "says" in more else {})


def tile(title: str, expression: str, unit: str = "percentunit", *, without: str = "no labels yet") -> Panel:
    """One number; ``without``: what stands there while it is not known."""
    return _panel("stat", title, [query(expression)], width=4, height=4, unit=unit, noValue=without)


def curves(title: str, says: str, lines: Mapping[str, str], *, unit: str = "percentunit") -> Panel:
    """Lines over time, by their names."""
    named = zip(_LETTERS, lines.items(), strict=False)
    targets = [query(expression, f"{name} {WHERE}", name=letter) for letter, (name, expression) in named]
    return _panel("timeseries", title, targets, width=12, height=8, unit=unit, says=says)


def bars(title: str, says: str, over: str, columns: Mapping[str, str]) -> Panel:
    """Columns side by side for each value of the label ``over``."""
    values = _columns(columns)
    steps = {
        "merge": {},
        "sortBy": {"sort": [{"field": over}]},
        "filterFieldsByName": {"include": {"names": [over, *values]}},
        "organize": {"renameByName": values},
    }
    look = {"unit": "percentunit", "min": 0, "max": 1, "options": {"xField": over}}
    return _panel("barchart", title, _rows(columns), width=12, height=9, says=says, steps=steps, **look)


def heat(title: str, expression: str, legend: str) -> Panel:
    """Shares over time, darker where they are larger."""
    return _panel("heatmap", title, [query(expression, legend)], width=12, height=9)


def shown_as(words: Mapping[float, tuple[str, str]]) -> list[dict[str, Any]]:
    """Mappings of values to words and their colours."""
    options = {
        f"{value:g}": {"text": text, "color": colour, "index": i}
        for i, (value, (text, colour)) in enumerate(words.items())
    }
    return [{"type": "value", "options": options}]


def timeline(
    title: str, says: str, expression: str, legend: str, words: Mapping[float, tuple[str, str]]
) -> Panel:
    """States over time, a line for each series, in words."""
    look = {
        "mappings": shown_as(words),
        "color": {"mode": "thresholds"},
        "options": {"showValue": "auto", "mergeValues": True},
    }
    return _panel(
        "state-timeline",
        title,
        [query(expression, f"{legend} {WHERE}")],
        width=12,
        height=8,
        says=says,
        **look,
    )


def row(title: str) -> Panel:
    """A heading over the panels that follow."""
    return {
        "type": "row",
        "title": title,
        "collapsed": False,
        "panels": [],
        "gridPos": {"w": _WIDTH, "h": 1, "x": 0, "y": 0},
    }


def table(
    title: str,
    says: str,
    columns: Mapping[str, str],
    hidden: Iterable[str],
    first: str,
    *,
    least: bool = False,
    looks: Mapping[str, Mapping[str, Any]] = _AS_THEY_ARE,
) -> Panel:
    """A row for each series, those with the largest value of the column ``first`` on top, or the ``least``.

    ``looks``: properties of columns: units, words for values.
    """
    steps = {
        "merge": {},
        "organize": {
            "excludeByName": dict.fromkeys(hidden, True),
            "renameByName": _columns(columns),
        },
        "sortBy": {"sort": [{"field": first, "desc": not least}]},
    }
    overrides = [
        {
            "matcher": {"id": "byName", "options": column},
            "properties": [{"id": name, "value": value} for name, value in properties.items()],
        }
        for column, properties in looks.items()
    ]
    return _panel(
        "table", title, _rows(columns), width=24, height=8, says=says, steps=steps, overrides=overrides
    )


def placed(panels: Iterable[Panel]) -> list[Panel]:
    """The panels with their places, row after row, and numbers.

    >>> [one["gridPos"]["x"] for one in placed([curves(name, "", {}) for name in "abc"])]
    [0, 12, 0]
    """
    done: list[Panel] = []
    x = y = lowest = 0
    for number, panel in enumerate(panels, start=1):
        place = panel["gridPos"]
        if x + place["w"] > _WIDTH:
            x, y = 0, lowest
        done.append(panel | {"id": number, "gridPos": {**place, "x": x, "y": y}})
        x, lowest = x + place["w"], max(lowest, y + place["h"])
    return done
