"""The runbooks of the alerts as a page of the watch, made of the same file as the documentation."""

from __future__ import annotations

import functools
import itertools

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from calib_serve.core.files import shipped
from calib_serve.report import environment


@functools.cache
def render_runbooks() -> str:
    """Render the runbooks: a section for each alert, below an anchor of its name."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(shipped("docs/runbooks.md").read_text("utf-8"))
    for heading, title in itertools.pairwise(tokens):
        if heading.type == "heading_open":
            heading.attrSet("id", title.content.lower())  # as sites of Markdown do
        if title.children:
            title.children = _without_pages(title.children)
    # A file of this package: its HTML is ours.
    text = Markup(reader.renderer.render(tokens, reader.options, {}))  # noqa: S704
    return environment("calib_serve.web").get_template("runbooks.html").render(text=text)


def _without_pages(tokens: list[Token]) -> list[Token]:
    """Leave the text alone of links to other pages of the documentation, which a watch does not have."""
    return [one for one in tokens if one.type not in ("link_open", "link_close")]
