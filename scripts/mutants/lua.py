"""The mutants of a script in Lua, as Redis runs it: one small mistake in one of its lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["is_lua", "lua_changes"]

_SWAPPED = {
    " == ": (" ~= ",), " ~= ": (" == ",), " <= ": (" < ", " >= "), " < ": (" <= ", " > "),
    " >= ": (" > ", " <= "), " > ": (" >= ", " < "), " + ": (" - ",), " - ": (" + ",), " * ": (" / ",),
    " / ": (" * ",), " and ": (" or ",), " or ": (" and ",), "not ": ("",), "true": ("false",),
    "false": ("true",), "math.max": ("math.min",),
}  # fmt: skip
_TOKEN = re.compile(
    r"'[^']*'"  # texts stay, and so do places: another name or argument fails at once
    r"| [=~<>]=? | [-+*/] | (?:and|or) |\bnot |\b(?:true|false)\b|\bmath\.max\b|(?<![\w.:%'[])\d+(?![\w'])"
)
_ORDER = re.compile(r"^\s*(?:redis\.call\(.*\)|add\(.*\)|\w[\w.\[\]]* = .*)$")


def is_lua(text: str) -> bool:
    """Whether a constant is such a script, or a part of one."""
    return "redis.call(" in text or "local function " in text


def lua_changes(script: str) -> Iterator[tuple[str, str]]:
    """What is told of each change, and the script with it; comments stay."""
    lines = script.split("\n")
    for at, line in enumerate(lines):
        if line.lstrip().startswith("--"):
            continue
        for new in _of_line(line):
            told = f"{' '.join(line.split())} -> {' '.join(new.split()) or 'no line'}"
            yield told, "\n".join([*lines[:at], new, *lines[at + 1 :]])


def _of_line(line: str) -> Iterator[str]:
    if _ORDER.match(line):
        yield ""
    for found in _TOKEN.finditer(line):
        token = found.group()
        if token.startswith("'"):
            continue
        number = str(0 if token == "1" else int(token) + 1) if token.isdigit() else None
        for new in (number,) if number is not None else _SWAPPED.get(token, ()):
            yield line[: found.start()] + new + line[found.end() :]
