"""Lines of TorchServe's metrics channel, and label values that survive it.

A worker sends a metric by printing one line; the server reads it back with a regular
expression, and silently drops or cuts what does not match. This module holds our mirror
of that expression (TorchServe 0.12, ``org.pytorch.serve.metrics.Metric``), so that every line is
known to arrive before it is sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from calib_serve.errors import InputError
from calib_serve.watch.series import SERIES, WORKERS, Series

__all__ = ["BY_NAME", "LINE", "label_value", "metric_line"]

BY_NAME: dict[str, Series] = {series.name: series for series in (*SERIES, *WORKERS)}

LINE = re.compile(
    r"\[METRICS]\s*([\w\s]+)\.([\w\s]+):([0-9\-,.e]+)\|#([^|]*)(\|#type:([^|,]+))?"
    r"\|#hostname:([^,]+),([^,]+)(,(.*))?",
    re.ASCII,
)
"""What the server accepts; group 3 is the value, group 4 the labels."""

_LONGEST = 200  # characters of a label value; longer names are cut
_UNSAFE = re.compile(r"[^\w .;/@+=()\[\]{}<>~!?*&^$'-]")


def label_value(text: str) -> str:
    """``text`` as a label value that the channel carries whole; others are percent-encoded.

    Letters and digits of any script stay. What separates fields (``: , |``), ends lines in any
    alphabet, or starts an escape (``%``) is encoded, so different texts stay different up to
    200 characters.

    >>> label_value("digits v1")
    'digits v1'
    >>> label_value("a:b,c|d")
    'a%3Ab%2Cc%7Cd'
    """
    encoded = _UNSAFE.sub(_percent, text) if _UNSAFE.search(text) else text
    if encoded != encoded.strip() or not encoded:
        # Only an empty text becomes a bare "%": a "%" in a text is encoded.
        encoded = re.sub(r"^\s|\s$", "%20", encoded) or "%"
    return encoded if len(encoded) <= _LONGEST else encoded[: _LONGEST - 3] + "..."


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match.group().encode("utf-8", "surrogatepass"))


def metric_line(name: str, value: float, labels: Sequence[str], *, host: str, second: int) -> str:
    """One line for one update; ``labels`` in the order of the series, already as ``label_value``.

    Raises InputError where the server would drop the line: a value that is not finite, is
    negative for a counter, or is 1e16 and more (the server reads no ``+``).
    """
    series = BY_NAME[name]
    if len(labels) != len(series.labels):
        raise InputError(f"{name} has the labels {series.labels}, got {len(labels)} values")
    if not math.isfinite(value) or abs(value) >= 1e16 or (series.kind == "counter" and value < 0):
        raise InputError(f"{name} cannot carry the value {value}; the server would drop it")
    pairs = ",".join(f"{key}:{text}" for key, text in zip(series.labels, labels, strict=True))
    kind = series.kind.upper()
    return f"[METRICS]{name}.Count:{float(value)!r}|#{pairs}|#type:{kind}|#hostname:{host},{second}"
