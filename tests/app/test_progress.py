"""Progress of a command: lines on stderr where nobody sits before it, and nothing where it is quiet."""

from __future__ import annotations

import re
import time

import pytest

from calib_serve.app import _progress


@pytest.mark.parametrize(
    ("quiet", "total", "wanted"),
    [(False, 7, r"folds: 3/7 done, \d+ s\n"), (False, None, r"folds: \d+ s\n"), (True, 7, "")],
)
def test_what_takes_long_is_told_by_how_much_is_done(
    quiet: bool,
    total: int | None,
    wanted: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys,
) -> None:
    monkeypatch.setattr(_progress, "_FIRST", 0.05)
    with _progress.stages(quiet=quiet) as show:
        show("folds", 3, total)
        time.sleep(0.5)
    out, told = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(wanted, told)


def test_what_is_over_at_once_is_not_told(capsys) -> None:
    with _progress.stages("fit") as show:
        show("folds", 3, 7)
    assert capsys.readouterr() == ("", "")
