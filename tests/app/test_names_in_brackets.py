"""Names that look like a terminal library's markup are printed as they are, by every command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import invoke

NAMES = ["[/bold]", "[red]dog", "[link=x]"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 3))
    y = np.where(rng.random(300) < 0.7, z.argmax(axis=1), rng.integers(0, 3, 300))
    np.savez(tmp_path / "[z].npz", logits=z, labels=y, class_names=np.array(NAMES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def printed(*arguments: str) -> str:
    result = invoke(list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_every_command_prints_names_as_they_are(folder: Path) -> None:
    assert "[art]" in printed("fit", "--data", "[z].npz", "--method", "temperature", "-o", "[art]")
    assert all(name in printed("inspect", "[art]") for name in NAMES)
    assert "[z].npz" in printed("evaluate", "[z].npz")
    assert "[z].npz" in printed("evaluate", "[z].npz", "--artifact", "[art]")
    assert all(name in printed("refit", "prior", "[art]", "[z].npz") for name in NAMES)
    assert "[r].html" in printed("evaluate", "[z].npz", "--report", "[r].html")
