"""Does a docstring name every parameter, and no other?"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from typing import Any

_ENTRY = re.compile(r"(\*{0,2}\w+)(?: \([^)]*\))?:")


def keywords_of(parameter: inspect.Parameter, thing: Any = None) -> tuple[str, ...]:
    """Return the keywords of ``**options: Unpack[FitKeywords]`` of ``thing``, as they are declared."""
    found = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
    if parameter.kind is not parameter.VAR_KEYWORD or not found:
        return ()
    # The annotation is text, and its class is of the module itself, or imported for type checkers alone.
    keywords = getattr(inspect.getmodule(thing), found[1], None) or getattr(
        importlib.import_module("calib_serve.core.options.keywords"), found[1]
    )
    return tuple(keywords.__annotations__)  # inherited ones among them


def args_of(thing: Any) -> dict[str, str]:
    """Return the entries of the ``Args:`` section of a function, method or class, each with its text."""
    entries: dict[str, str] = {}
    section = re.search(
        r"^Args:\n((?: +.*\n|\n)*)", inspect.cleandoc(thing.__doc__ or "") + "\n", re.MULTILINE
    )
    name = ""
    for line in textwrap.dedent(section[1]).splitlines() if section else ():
        entry = _ENTRY.match(line)
        if entry:
            name = entry[1]
            entries[name] = line[entry.end() :].strip()
        elif line.startswith(" ") and name:
            entries[name] += " " + line.strip()
        elif line:
            raise AssertionError(f"{thing.__qualname__}: no entry of Args: {line!r}")
    return entries


def undocumented(thing: Any) -> list[str]:
    """List what ``Args:`` of a function, method or class misses, and what it names that is no parameter.

    A class is asked for the parameters that make one, in the docstring of the class. ``**options`` of a
    TypedDict must name every keyword of it in double backticks.
    """
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = {
        stars.get(one.kind, "") + one.name: one
        for one in inspect.signature(thing).parameters.values()
        if one.name not in ("self", "cls")
    }
    entries = args_of(thing)
    found = [f"{name} is not in Args" for name in parameters if name not in entries]
    found += [f"{name} is in Args, and no parameter" for name in entries if name not in parameters]
    found += [f"{name} is in Args without a word" for name, text in entries.items() if not text]
    for name, one in parameters.items():
        found += [
            f"{name} does not name ``{keyword}``"
            for keyword in keywords_of(one, thing)
            if f"``{keyword}``" not in entries.get(name, "")
        ]
    return found
