"""The page on the ledger, "What happens when": tests ask for its rows, and hold them to what they saw."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).parents[2] / "docs" / "ledger.md"


@dataclass(frozen=True)
class Promise:
    """A row of the page: of ``whole``, so much is ``lost``; ``says``: the samples that say so."""

    what: str
    lost: int
    whole: int
    says: tuple[str, ...]

    def is_said_by(self, *texts: str) -> bool:
        """Whether each sample that the row names says so in one of these expositions: a check by 0."""
        return all(any(_says(text, sample) for text in texts) for sample in self.says)


def promises() -> dict[str, Promise]:
    """Return every row by its first cell; the page's other tables have fewer columns."""
    rows = [
        line.strip("| \n").split(" | ") for line in PAGE.read_text("utf-8").splitlines() if line[:2] == "| "
    ]
    found = {}
    for what, lost, says, _ in (row for row in rows if len(row) == 4):
        if number := re.match(r"([\d,]+) of (?:([\d,]+)|what)", lost):
            counts = [int((one or "0").replace(",", "")) for one in number.groups()]
            found[what] = Promise(what, *counts, tuple(re.findall(r"`(calib_[^`]+\})`", says)))
    return found


def promised(what: str) -> Promise:
    """The row that begins with these words."""
    return promises()[what]


def _says(text: str, sample: str) -> bool:
    name, labels = re.fullmatch(r"(\w+)\{(.*)\}", sample).groups()  # type: ignore[union-attr]
    wanted = set(re.findall(r'(\w+)="([^"]*)"', labels))
    found = [
        one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name == name and wanted <= set(one.labels.items())
    ]
    return bool(found) and (sum(found) == 0 if name == "calib_check_ok" else sum(found) > 0)
