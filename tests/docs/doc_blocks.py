"""What the documentation tells a reader to type: its blocks, and the commands in them."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_PROGRAMS = r"calib-serve|torchrun|python|docker|kubectl|prometheus|mkdir|make|\(umask|USER_ID=\S+"
_IN_HEAD = re.compile(rf"^(?:#   |    )((?:{_PROGRAMS}) .*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """``text`` without the indent of a list that it may stand in, and its ``language``."""

    language: str
    text: str


def markdown() -> list[Path]:
    """Every page."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("model_store/*.md"), *DOCS.rglob("*.md")])


def pages() -> list[Path]:
    """Everything that tells a reader commands: pages, and heads of files that are made to be copied."""
    heads = [path for folder in ("deploy", "examples") for path in (ROOT / folder).rglob("*")]
    files = markdown() + sorted(path for path in heads if path.is_file() and path.suffix != ".json")
    return [path for path in files if blocks(path)]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page in order; of any other file the commands in its head, as one block."""
    text = page.read_text("utf-8")
    if page.suffix == ".md":
        return [Block(language, textwrap.dedent(body)) for _, language, body in _FENCE.findall(text)]
    is_program = page.suffix == ".py"
    head = ast.get_docstring(ast.parse(text), clean=False) if is_program else re.split(r"\n(?!#)", text)[0]
    commands = _IN_HEAD.findall(head or "")
    return [Block("bash", "\n".join(commands))] if commands else []


def without_blocks(page: Path) -> str:
    """A page's sentences."""
    return _FENCE.sub("", page.read_text("utf-8"))


def commands(block: Block) -> Iterator[str]:
    """The commands of a shell block, each as many lines as bash needs to read it."""
    lines = block.text.splitlines()
    if block.language == "console":  # what is typed follows a prompt, the rest is what is printed
        lines = [line.removeprefix("$ ") for line in lines if line.startswith(("$ ", "> "))]
    typed: list[str] = []
    for line in lines:
        typed.append(line)
        text = "\n".join(typed)
        if line.endswith("\\") or not _complete(text):
            continue
        if text.strip() and not text.lstrip().startswith("#"):
            yield text
        typed = []
    assert not typed, f"bash cannot read {typed}"


def _complete(text: str) -> bool:
    return subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False).returncode == 0


def inline_commands(page: Path) -> list[list[str]]:
    """Commands of ours and benchmarks that a sentence names, in words."""
    spans = [re.sub(r"\s+", " ", span) for span in _INLINE.findall(without_blocks(page))]
    return [shlex.split(s) for s in spans if s.startswith(("calib-serve ", "python ", "make "))]
