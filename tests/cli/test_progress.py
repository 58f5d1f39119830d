"""Where long work stands: a bar on a terminal, lines elsewhere, and never on stdout."""

from __future__ import annotations

import io
import time

import pytest

from calib_serve.cli.progress import progress, stages


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wait_for(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wait until stderr holds ``text``, and stdout nothing."""
    said, until = "", time.monotonic() + 30
    while text not in said:
        assert time.monotonic() < until, f"{text!r} was never told: {said}"
        found = capsys.readouterr()
        said += found.err
        assert found.out == ""
        time.sleep(0.005)


def test_lines_tell_how_far_the_work_is(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("fitting", seconds=0.01) as tell:
        tell(3, 10)
        wait_for("fitting: 3/10 done", capsys)
        tell(7, 10)
        wait_for("fitting: 7/10 done", capsys)
    with stages(seconds=0.01) as show:
        show("vector", 1, 4)
        wait_for("vector: 1/4 done", capsys)


@pytest.mark.parametrize(
    ("quiet", "seconds", "rank"), [(True, 0.01, "0"), (False, 1e6, "0"), (False, 0.01, "1")]
)
def test_quiet_or_short_work_and_other_ranks_tell_nothing(
    quiet: bool,
    seconds: float,
    rank: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", rank)
    with progress("fitting", quiet=quiet, seconds=seconds) as tell:
        tell(3, 10)
        time.sleep(0.05)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    for name, value in (("TERM", "xterm"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    with progress("fitting") as tell:
        tell(7, 10)
    assert "\x1b[" in terminal.getvalue()
    assert "7/10" in terminal.getvalue()
