"""What a line of alerts.yml or rules.yml may become: one small mistake each."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FILES", "Mutant", "mutants"]

FILES = ("alerts.yml", "rules.yml")

_NUMBER = re.compile(r"(?<![\w.:{\[])(\d+(?:\.\d+)?(?:e-?\d+)?)(?![\w.:\]])")
_TEXT = re.compile(r"'[^']*'|\([a-z_, ]*\) ?\(|\{[^}]*\}|\[[^\]]*\]|\b(?:model_version\w*|calib)[\w:]+")
_RANGE = re.compile(r"\[(\d+)([smhdw])(:\w*)?\]")
_OFFSET = re.compile(r"offset (\d+)([smhdw])")
_MATCHER = re.compile(r"(\w+)(=~|!~|!=|=)'([^']*)'")
_DROPPED = re.compile(r"(without|ignoring) \(([a-z_, ]+)\)")
_OWN = {"bin", "clause", "model", "reason", "sum", "version", "window"}
"""Labels that say what a number is of; all others that are dropped tell replicas apart."""
# Not "sum without (sum)": that is of a single series, whose label goes.
_SWAPS = {
    " > ": (" >= ", " < "),
    " >= ": (" > ", " < "),
    " < ": (" <= ", " > "),
    " <= ": (" < ", " > "),
    " == ": (" != ",),
    " and ": (" or ", " unless "),
    " or ": (" and ",),
    " unless ": (" and ", " or "),
    " + ": (" - ",),
    " - ": (" + ",),
    " * ": (" / ",),
    " / ": (" * ",),
    " ^ ": (" * ",),
    "max without": ("min without",),
    "min without": ("max without",),
    "increase(": ("rate(",),
    "rate(": ("increase(",),
    "sum without (bin": ("max without (bin",),
    "sum without (instance": ("max without (instance",),
    "sum without (ledger": ("max without (ledger",),
    "sum without (model": ("max without (model",),
    "sum without (reason": ("max without (reason",),
    "clamp_min(": ("clamp_max(",),
    "abs(": ("(",),
    "sqrt(": ("(",),
    "ln(": ("(",),
    "last_over_time(": ("min_over_time(",),
    "max_over_time(": ("min_over_time(",),
}


@dataclass(frozen=True)
class Mutant:
    """``line`` of ``file`` written as ``text``: ``what`` was changed in the rule ``where``."""

    file: str
    line: int
    where: str
    what: str
    text: str

    @property
    def name(self) -> str:
        """By which a list of equivalents knows it: nothing of it depends on where the line stands."""
        return f"{self.where}: {self.what}"

    @property
    def series(self) -> str:
        """The alert or recorded series, without the number of one that comes twice."""
        return self.where.split(" ")[0]


def mutants(folder: Path) -> list[Mutant]:
    """Of all rules, in the order of the files; a name that comes twice has a number."""
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for file in FILES:
        where = ""
        for number, line in enumerate((folder / file).read_text("utf-8").splitlines()):
            if began := re.match(r"\s*- (?:alert|record): (\S+)", line):
                seen[began[1]] = seen.get(began[1], 0) + 1
                where = began[1] if seen[began[1]] == 1 else f"{began[1]} ({seen[began[1]]})"
            changes = _of_line(line, where) if where else ()
            found += [Mutant(file, number, where, what, text) for what, text in changes]
    return found


def _of_line(line: str, where: str) -> Iterator[tuple[str, str]]:
    if re.match(r" {10}(summary|description|runbook_url): ", line):
        return iter(())  # texts are looked at
    if line.startswith(" " * 10) or "expr: " in line:
        return _of_expression(line, where)
    return _of_setting(line)


def _of_setting(line: str) -> Iterator[tuple[str, str]]:
    if found := re.match(r"(\s*)(for|keep_firing_for): (\d+)(\w)$", line):
        space, name, count, unit = found.groups()
        yield f"{name} {count}{unit} -> 0", f"{space}{name}: 0{unit}"
        yield f"{name} {count}{unit} -> {2 * int(count)}{unit}", f"{space}{name}: {2 * int(count)}{unit}"
    if "severity: " in line:
        for word, other in (("warning", "info"), ("critical", "info"), ("eq", "ne")):
            if re.search(rf"\b{word}\b", line):
                yield f"severity {word} -> {other}", re.sub(rf"\b{word}\b", other, line)
        yield "severity dropped", re.sub(r"\{severity: .*\}$", "{}", line)


def _of_expression(line: str, where: str) -> Iterator[tuple[str, str]]:
    hidden = [found.span() for found in _TEXT.finditer(line)]
    for found in _NUMBER.finditer(line):
        if any(a <= found.start() < b for a, b in hidden):
            continue
        value = float(found[1])
        for other in (value * 0.9, value * 1.1) if value else (0.01, -0.01):
            new = f"{other:.6g}"
            yield _said(line, found.span(), new), _put(line, found.span(), new)
    yield from _exchanged(line, _SWAPS)
    for pattern, new in (
        (_RANGE, lambda found: f"[{2 * int(found[1])}{found[2]}{found[3] or ''}]"),
        (_OFFSET, lambda found: f"offset {2 * int(found[1])}{found[2]}"),
        (_MATCHER, lambda found: f"{found[1]}!='no such'"),
    ):
        for found in pattern.finditer(line):
            yield _said(line, found.span(), new(found)), _put(line, found.span(), new(found))
    yield from _kept(line, where)


def _kept(line: str, where: str) -> Iterator[tuple[str, str]]:
    """A label that is no longer dropped: each of its own, and one of a list of all replicas' labels.

    Which one depends on the rule and the place, so that all of these labels have their turn.
    """
    for number, found in enumerate(_DROPPED.finditer(line)):
        labels = found[2].split(", ")
        of_replicas = [label for label in labels if label not in _OWN]
        turn = zlib.crc32(f"{where} {number}".encode()) % max(len(of_replicas), 1)
        for label in (*of_replicas[turn : turn + 1], *(one for one in labels if one in _OWN)):
            rest = ", ".join(one for one in labels if one != label)
            yield f"{found[1]} {label} -> kept (list {number + 1})", _put(line, found.span(2), rest)


def _exchanged(line: str, swaps: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    for old, others in swaps.items():
        for found in re.finditer(rf"(?<!\w){re.escape(old)}" if old[0] != " " else re.escape(old), line):
            for new in others:
                yield _said(line, found.span(), new), _put(line, found.span(), new)


def _said(line: str, span: tuple[int, int], new: str) -> str:
    """What was changed, and which of its like in this line."""
    old = line[slice(*span)]
    before = line[: span[0]].count(old)
    return f"{old.strip()} -> {new.strip()}" + (f" (number {before + 1})" if line.count(old) > 1 else "")


def _put(line: str, span: tuple[int, int], new: str) -> str:
    return line[: span[0]] + new + line[span[1] :]
