"""Messages in protobuf's text format, as in config.pbtxt: written, and split into fields."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

Block = dict[str, Any]
"""A message: fields to numbers, strings, Words, messages, or lists of these."""

_TOKEN = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|[{}\[\]<>:,;]|[^\s{}\[\]<>:,;"'#]+""")


class Word(str):
    """Text that stands without quotes: the name of an enum's value."""


def text(block: Mapping[str, Any], indent: str = "") -> str:
    r"""Write a message in text format, one field a line.

    >>> print(text({"name": "m", "input": [{"dims": [3, -1], "data_type": Word("TYPE_FP32")}]}), end="")
    name: "m"
    input {
      dims: [3, -1]
      data_type: TYPE_FP32
    }
    """
    lines = []
    for field, value in block.items():
        if isinstance(value, list) and not any(isinstance(v, Mapping) for v in value):
            lines.append(f"{indent}{field}: [{', '.join(map(_scalar, value))}]\n")
            continue
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping):
                lines.append(f"{indent}{field} {{\n{text(one, indent + '  ')}{indent}}}\n")
            else:
                lines.append(f"{indent}{field}: {_scalar(one)}\n")
    return "".join(lines)


def fields(written: str) -> dict[str, list[str]]:
    r"""Split a message in text format into its top-level fields, each as tokens without comments.

    Enough to tell whether two messages say the same in the same order.

    >>> fields('name: "m"  # mine\ninput { dims: [3] }\ninput { dims: [4] }')
    {'name': ['"m"'], 'input': ['{', 'dims', '[', '3', ']', '}', '{', 'dims', '[', '4', ']', '}']}
    """
    found: dict[str, list[str]] = {}
    depth, name, ended = 0, "", True
    for token in _TOKEN.findall(written):
        if token[0] == "#" or token in (":", ",", ";"):
            continue
        opens, closes = token in ("{", "[", "<"), token in ("}", "]", ">")
        if ended and depth == 0 and not opens:
            name, ended = token, False
            found.setdefault(name, [])
            continue
        found.setdefault(name, []).append(token)
        depth += opens - closes
        ended = depth == 0
    return found


def _scalar(value: Any) -> str:
    if isinstance(value, Word):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value)  # numbers as they are; quotes and escapes of JSON are protobuf's too
