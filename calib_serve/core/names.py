"""Meanings of a text: a class, by its name or the digits of its id and never two; or a length of time."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from calib_serve.core.errors import InputError

By = Literal["id", "name"]
"""What a label is, where it says so itself."""

_ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters but tab and line feed, other ends of lines, halves of characters."""
_WHOLE = re.compile(r"([0-9]{1,18})(\.0*)?")  # pandas writes 1.0 for 1 in a column that has gaps

_UNITS: Mapping[str, float] = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}


class Naming:
    """The classes 0 to ``count`` - 1, with their ``names`` (count,), if any.

    >>> classes = Naming(3, ["1", "2", "cat"])
    >>> classes.find("cat"), classes.find("0"), classes.find("2", by="name"), classes.find("2", by="id")
    (2, 0, 1, 2)
    >>> classes.find("2")
    Traceback (most recent call last):
    calib_serve.core.errors.InputError: '2' is the name of class 1 and the id of class 2; say which is meant
    """

    def __init__(self, count: int, names: Sequence[str] = ()) -> None:
        self.count, self._few = count, tuple(names[:5])
        self._ids: dict[str, int | None] = {}
        for k, name in enumerate(names):
            self._ids[name] = None if name in self._ids else k

    def find(self, text: str, by: By | None = None) -> int:
        """Find the class that a text means; InputError for none, and for a text that may mean two.

        A text is a name, else the digits of an id. ``by`` says which of them. "1.0" is 1, where no class is
        called so.
        """
        whole = _WHOLE.fullmatch(text)
        name = whole[1] if whole and text not in self._ids else text
        named = self._ids.get(name) if by != "id" else None
        several = by != "id" and named is None and name in self._ids
        number = int(whole[1]) if by != "name" and whole else None
        number = number if number is not None and number < self.count else None
        if several:
            raise InputError(f"{shown(text)} is the name of several classes; give the id as a number")
        if named is not None and number not in (None, named):
            raise InputError(
                f"{shown(text)} is the name of class {named} and the id of class {number}; say which is meant"
            )
        found = number if named is None else named
        if found is None:
            raise InputError(f"{self.says()}, got {shown(text)}")
        return found

    def says(self) -> str:
        """The valid labels, in words."""
        names = f" or one of [{', '.join(map(shown, self._few))}] ..." if self._few else ""
        return f"a label is a class id from 0 to {self.count - 1}{names}"


def check_names(names: Sequence[object]) -> None:
    r"""Raise InputError for class names that files, pages, terminals and servers cannot show.

    >>> check_names(["cat", "a\0b"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    calib_serve.core.errors.InputError: class 1 is called 'a\x00b'; a name has no control...
    """
    for k, name in enumerate(names):
        if not isinstance(name, str):
            raise InputError(f"class names must be strings, class {k} is {shown(name)}")
        if len(name) > 1000 or not is_plain(name):
            raise InputError(
                f"class {k} is called {shown(name)}; a name has no control or half characters, 1000 at most"
            )


def is_plain(text: str) -> bool:
    r"""Whether files, pages and terminals can show a text: no control characters, no half characters.

    >>> is_plain("Zürich 北"), is_plain("a\0b"), is_plain("\ud800")
    (True, False, False)
    """
    return not _ODD.search(text)


def shown(value: object) -> str:
    """Quote the beginning of a foreign text or number; of anything else name the type.

    >>> shown("x" * 10**6) == repr("x" * 40), shown(10**5000), shown([1])
    (True, 'an int', 'a list')
    """
    if isinstance(value, str):
        return repr(value[:40])
    if value is None or (isinstance(value, (bool, int, float)) and abs(value) < 1e18):
        return repr(str(value))
    return f"a{'n' if type(value).__name__[0] in 'aeiou' else ''} {type(value).__name__}"


def parse_duration(text: str, *, what: str = "a time") -> float:
    """Read "0", "90s", "30m", "6h" or "7d" as seconds; InputError, which names ``what``, for anything else.

    >>> parse_duration("6h"), parse_duration("90")
    (21600.0, 90.0)
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise InputError(f"{what} is a number with s, m, h or d, such as 6h; got {text!r}")
    return seconds


def as_duration(seconds: float) -> str:
    """Write seconds as ``parse_duration`` reads them, in the largest unit that gives a whole number.

    >>> as_duration(2_592_000.0), as_duration(5400.0), as_duration(0.5)
    ('30d', '90m', '0.5s')
    """
    for unit, size in _UNITS.items():
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def named_once(pairs: list[tuple[str, Any]], *, what: str = "a column") -> dict[str, Any]:
    """Make a mapping of an object's pairs; ValueError where a name is there twice.

    JSON allows that and Python keeps the last: a label would be lost in silence.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"it names {what} twice")
    return found
