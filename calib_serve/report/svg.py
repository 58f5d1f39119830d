"""Figures as inline SVG: its colours follow the page, its text is accessible."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from calib_serve.report.plot import PALETTE, STYLE

__all__ = ["drawing", "inline_svg"]

_PROLOGUE = re.compile(r"\A.*?(?=<svg)|<metadata>.*?</metadata>", re.DOTALL)
_SIZE = re.compile(r'(<svg\b[^>]*?) width="[^"]*"| height="[^"]*"')
_ID = re.compile(r'(\bid="|url\(#|href="#)')


@contextmanager
def drawing() -> Iterator[None]:
    """The report's style, without changing the caller's; missing glyphs do not warn.

    Text stays text in the SVG, so the reader's own fonts draw it.
    """
    with mpl.rc_context(dict(STYLE)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def inline_svg(figure: Figure, *, name: str, title: str, text: str) -> Markup:
    """``figure`` as an ``<svg>`` element with a title and ``text`` as its alternative.

    ``name`` prefixes every id in it, so that many such figures share one page. The palette's
    colours become CSS variables (``var(--ink)``), which a dark page sets anew.
    """
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = _PROLOGUE.sub("", file.getvalue())
    head, body = svg.split(">", 1)
    head = _SIZE.sub(r"\1", head)
    for meaning, color in PALETTE.items():
        body = body.replace(color, f"var(--{meaning})")
    body = _ID.sub(rf"\g<1>{name}-", body)
    label = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-text">{escape(text)}</desc>'
    described = f'{head} role="img" aria-labelledby="{name}-title" aria-describedby="{name}-text">'
    return Markup(described + label + body)  # noqa: S704 - matplotlib escapes its text, we ours
