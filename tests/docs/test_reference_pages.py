"""Pages about the program are held against the program: its messages, its commands, its public names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from doc_blocks import DOCS, ROOT
from typer.main import get_command

import calib_serve
from calib_serve.cli import app
from calib_serve.errors import REASONS

sys.path.insert(0, str(ROOT / "scripts"))
import docs_cli

MESSAGES = re.findall(r"^### `([^`]+)`$", (DOCS / "faq.md").read_text("utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def source() -> str:
    """The package's code, in which a string that goes on over lines is one string."""
    text = "\n".join(
        path.read_text("utf-8") for path in sorted(Path(calib_serve.__file__).parent.rglob("*.py"))
    )
    return re.sub(r"\"\s*\n\s*(?:\+ )?f?\"", "", text)


@pytest.mark.parametrize("message", [m for m in MESSAGES if "…" in m or " " in m])
def test_a_message_that_the_page_explains_is_one_that_the_program_says(message: str, source: str) -> None:
    parts = [re.escape(part) for part in message.split("…") if part.strip()]
    assert re.search(r"[^\n]*?".join(parts), source), message


def test_there_are_messages() -> None:
    assert len(MESSAGES) >= 35


def test_every_reason_for_which_a_label_is_refused_is_explained() -> None:
    page = (DOCS / "faq.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(REASONS)


def test_the_command_line_page_has_every_command_and_option() -> None:
    page = docs_cli.page()
    for name, command in get_command(app).commands.items():
        assert f"### calib-serve {name}\n" in page
        for parameter in getattr(command, "params", ()):
            assert all(f"`{option}`" in page for option in parameter.opts if option.startswith("-")), name


def test_every_public_name_stands_in_the_reference() -> None:
    page = (DOCS / "reference" / "public.md").read_text("utf-8")
    shown = re.findall(r"^::: calib_serve\.(\w+)$", page, re.MULTILINE)
    assert sorted(shown) == sorted(set(calib_serve.__all__) - {"__version__"})
