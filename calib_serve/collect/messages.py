"""The labels in a message, or in a line: a JSON object, or a list of them."""

from __future__ import annotations

from typing import Any

from calib_serve.collect.dead_letters import DeadLetter
from calib_serve.watch.items import read_json
from calib_serve.watch.sender import LABEL_COLUMNS

__all__ = ["read_label", "read_message"]

_LONGEST = 10_000  # characters of a text: a receipt has a tenth of that


def read_message(content: bytes | None, where: str) -> tuple[list[dict[str, Any]], list[DeadLetter]]:
    """The labels in it, of their known fields, and what can be none.

    >>> read_message(b'[{"id": "order-17", "label": 3, "at": "noon"}, 7]', "t/0@9")[0]
    [{'id': 'order-17', 'label': 3}]
    """
    try:
        found = read_json((content or b"").decode())
    except ValueError:
        return [], [DeadLetter("malformed", "it is no JSON", where, content=content or b"")]
    labels, dead = [], []
    for item in found if isinstance(found, list) else [found]:
        kept, letters = read_label(item, where)
        labels += kept
        dead += letters
    return labels, dead


def read_label(item: Any, where: str) -> tuple[list[dict[str, Any]], list[DeadLetter]]:
    """The same of one label; what cannot be one is not sent, as its whole batch would be refused for it."""
    if not isinstance(item, dict):
        told = 'a label is an object, such as {"id": "order-17", "label": 3}'
        return [], [DeadLetter("malformed", told, where, item=item)]
    kept = {name: item[name] for name in LABEL_COLUMNS if item.get(name) not in (None, "")}
    for name, value in kept.items():
        if not isinstance(value, (str, int, float, bool)):
            return [], [DeadLetter("malformed", f"{name} is neither a text nor a number", where, item=item)]
        if isinstance(value, str) and len(value) > _LONGEST:
            told = f"{name} has {len(value)} characters, of which a label has at most {_LONGEST}"
            return [], [DeadLetter("malformed", told, where, item=item)]
    return [kept], []
