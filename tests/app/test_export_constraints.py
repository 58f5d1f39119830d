"""``calib-serve export constraints``: the tested versions, written where pip reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import calib_serve


def test_a_file_that_says_something_else_is_kept_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "constraints.txt"
    path.write_text("mine==1\n")
    refused = calib_serve("export", "constraints")
    assert "would change constraints.txt" in refused.stderr
    assert refused.exit_code == 2
    assert path.read_text() == "mine==1\n"
    assert calib_serve("export", "constraints", "--force").exit_code == 0
    assert "numpy==" in path.read_text()
