"""The table of faults names every test here, and no other."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent


def test_the_table_names_every_test() -> None:
    named = re.findall(r"`(test_\w+)`", (FOLDER / "README.md").read_text())
    modules = {path.stem: path.read_text() for path in FOLDER.glob("test_*.py") if path != Path(__file__)}
    there = [name for text in modules.values() for name in re.findall(r"^def (test_\w+)\(", text, re.M)]
    assert sorted(name for name in named if name not in modules) == sorted(there)
    assert set(named) >= set(modules)
