"""What the documentation tells a reader to type: its blocks, and the commands in them."""

from __future__ import annotations

import json
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


@dataclass(frozen=True)
class Block:
    """``text`` without the indent of a list that it may stand in, and its ``language``."""

    language: str
    text: str


def markdown() -> list[Path]:
    """Every page."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("model_store/*.md"), *DOCS.rglob("*.md")])


def pages() -> list[Path]:
    """Return all pages with blocks."""
    return [path for path in markdown() if blocks(path)]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    found = _FENCE.findall(page.read_text("utf-8"))
    return [Block(language, textwrap.dedent(body)) for _, language, body in found]


def without_blocks(page: Path) -> str:
    """A page's sentences."""
    return _FENCE.sub("", page.read_text("utf-8"))


def commands(block: Block) -> Iterator[str]:
    """The commands of a shell block, each as many lines as bash needs to read it."""
    for command, _ in typed(block):
        yield command


def typed(block: Block) -> Iterator[tuple[str, list[str]]]:
    """The commands of a shell block, and under each the lines that the page shows of what it prints."""
    console = block.language == "console"  # what is typed follows a prompt, the rest is what is printed
    command: list[str] = []
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if console and not command and not line.startswith("$ "):
            assert found, f"{line!r} stands before any command"
            found[-1][1].append(line)
            continue
        command.append(line.removeprefix("> " if command else "$ ") if console else line)
        text = "\n".join(command)
        if line.endswith("\\") or not _complete(text):
            continue
        if text.strip() and not text.lstrip().startswith("#"):
            found.append((text, []))
        command = []
    assert not command, f"bash cannot read {command}"
    yield from found


_A_NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?\d[\d,]*(\.\d+)?(e-?\d+)?")
_RANDOM = re.compile(r"\b[\w-]{30,}")  # tokens and hashes
_DRAWN = re.compile(r"[\s\u2500-\u259f|]+")  # boxes, bars and how far words are apart


def unlike(shown: list[str], printed: str) -> str | None:
    """The first line that is ``shown`` and was not printed in its turn; ``...`` stands for any lines.

    Numbers and what is drawn at random need not be the same; boxes, bars and ends of lines are not compared.
    """

    def plain(text: str) -> str:
        return _DRAWN.sub(" ", _A_NUMBER.sub("#", _RANDOM.sub("#", text))).strip()

    rest = plain(printed)
    for passage in "\n".join(["", *shown, ""]).split("\n...\n"):
        wanted = plain(passage)
        at = rest.find(wanted)
        if at < 0:
            lines = [line for line in passage.splitlines() if plain(line) not in rest]
            return lines[0] if lines else passage
        rest = rest[at + len(wanted) :]
    return None


_KEY = re.compile(r'"(\w+)":')
_PAIR = re.compile(r'"(\w+)": ?\[?("[^"]*"|[-\w.]+)')
# Are what they are; other whole numbers may differ from run to run.
_COUNTS = ("accepted", "refused", "wrong")


def unlike_json(shown: str, printed: str) -> str | None:
    """What differs between an answer that a page shows and the one that came: keys, or a key's value.

    Texts, truths and counts are the same, unless the page cuts them short; of other numbers the kind, and
    that shares are between 0 and 1.
    """
    if keys := set(_KEY.findall(shown)) ^ set(_KEY.findall(printed)):
        return f"the keys {sorted(keys)}"
    wanted, came = (_values(text) for text in (shown, printed))
    for key, value in wanted:
        there = [other for name, other in came if name == key]
        if not any(_like(key, value, other) for other in there):
            return f"{key} {value}, and it is {there[:3]}"
    return None


def _values(text: str) -> list[tuple[str, object]]:
    """The keys of JSON, which may be cut short, each with its value or the first of its list."""
    return [(key, json.loads(_whole(value))) for key, value in _PAIR.findall(text)]


def _whole(value: str) -> str:
    return value if value[0] in '"-0123456789' or value in ("true", "false", "null") else '"..."'


def _like(key: str, shown: object, came: object) -> bool:
    if isinstance(shown, str):
        return isinstance(came, str) and ("..." in shown or shown == came)
    if isinstance(shown, bool) or key in _COUNTS:
        return shown == came and type(shown) is type(came)
    if isinstance(shown, float) and 0 <= shown <= 1:
        return isinstance(came, (int, float)) and 0 <= came <= 1
    return isinstance(came, (int, float)) and not isinstance(came, bool)


def _complete(text: str) -> bool:
    return subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False).returncode == 0


def inline_commands(page: Path) -> list[list[str]]:
    """Commands of ours and benchmarks that a sentence names, in words."""
    spans = [re.sub(r"\s+", " ", span) for span in _INLINE.findall(without_blocks(page))]
    return [shlex.split(s) for s in spans if s.startswith(("calib-serve ", "python ", "make "))]
