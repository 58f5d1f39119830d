"""``calib-serve export constraints``: the tested versions, written where pip reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import invoke

from calib_serve.errors import InputError


def exported(*words: str) -> str:
    return invoke(["export", "constraints", *words], catch_exceptions=False).output


def test_a_file_that_says_something_else_is_kept_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "constraints.txt"
    path.write_text("mine==1\n")
    with pytest.raises(InputError, match=r"would change constraints\.txt; give another file, or --force"):
        exported()
    assert path.read_text() == "mine==1\n"
    exported("--force")
    assert "numpy==" in path.read_text()
