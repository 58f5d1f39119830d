"""The segment, group and id of a request, believed of those alone whom the operator trusts.

Predictions come without a token: who may ask for one could else take the ids of others, or the places of
segments.
"""

from __future__ import annotations

from calib_serve.core.errors import InputError
from calib_serve.gateway.exporter import LabelledCounts
from calib_serve.gateway.http import TOKEN, Headers, at_most_one, without_headers
from calib_serve.receipts import LONGEST_SEGMENT, Tag, is_segment
from calib_serve.web import Guard

_NAMES = {name: b"x-calib-" + name.encode() for name in Tag._fields}
REASONS = ("no_token", "wrong_token")


class TagReader:
    """Reads the headers ``x-calib-segment``, ``x-calib-group`` and ``x-calib-id``.

    They count where ``all_trusted``, as a proxy in front sets or strips them, or beside a token of ``guard``
    with the scope ``predict``; else they are dropped, which ``dropped`` counts.
    """

    def __init__(self, guard: Guard, dropped: LabelledCounts, *, all_trusted: bool) -> None:
        self._guard, self._dropped, self._all_trusted = guard, dropped, all_trusted

    def read(self, headers: Headers, model: str) -> tuple[Tag, Headers]:
        """Return the tag, and the headers to send on; InputError for an invalid tag of a trusted client."""
        if not any(name.lower() in _NAMES.values() for name, _ in headers):
            return Tag(), headers
        token = at_most_one(headers, TOKEN)
        if not self._all_trusted and not self._guard.allows(token, "predict"):
            self._dropped.add(model, REASONS[bool(token)])
            return Tag(), without_headers(headers, *_NAMES.values())
        found = {name: _text(at_most_one(headers, header), name) for name, header in _NAMES.items()}
        if not is_segment(found["segment"]):
            raise InputError(f"x-calib-segment has at most {LONGEST_SEGMENT} characters")
        return Tag(**found), headers


def _text(latin: str, name: str) -> str:
    """Decode a header's bytes as UTF-8."""
    try:
        text = latin.encode("latin-1").decode()
    except UnicodeError as error:
        raise InputError(f"x-calib-{name} must be UTF-8") from error
    if len(latin) > 200 or not text.isprintable():
        raise InputError(f"x-calib-{name} has at most 200 bytes of printable text")
    return text
