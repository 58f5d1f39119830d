"""An extension of griffe, which reads the source for the reference pages: doctests are shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # up to an empty line


class Doctests(griffe.Extension):
    """Without it a ``>>>`` is a quotation of quotations, and ``[i]["key"]`` a link."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the doctests of every docstring."""
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
