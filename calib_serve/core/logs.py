"""Logs of long-running programs: a line each, with its time and level, for people or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from calib_serve.core.errors import InputError


@contextmanager
def logs(form: str = "text") -> Iterator[None]:
    """Send all logs of this process to stderr while inside; of other packages, warnings and worse.

    ``form``: text, or json, whose lines have ``time``, ``level``, ``logger``, ``message`` and, of an
    exception, ``error``.
    """
    if form not in _FORMS:
        raise InputError(f"the format of a log is {' or '.join(_FORMS)}, got {form!r}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORMS[form]())
    root, own = logging.getLogger(), logging.getLogger("calib_serve")
    before = root.handlers[:], root.level, own.level
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    own.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        own.setLevel(before[2])


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {record.name}: {_shown(record.getMessage())}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(text: str) -> str:
    r"""Write a text in one line: a client's text cannot begin another.

    >>> _shown("a\nb")
    'a\\nb'
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


_FORMS: dict[str, type[logging.Formatter]] = {"text": _Text, "json": _Json}
