"""Where long work stands: a bar on a terminal, lines elsewhere, and never on stdout."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

WORK = """
import sys
from calib_serve.cli.progress import progress, stages
with progress("fitting", seconds=0.01) as tell:
    tell(3, 10)
    sys.stdin.readline()
    tell(7, 10)
    sys.stdin.readline()
with stages(seconds=0.01) as show:
    show("temperature", 0, 4)
    show("vector", 1, 4)
    sys.stdin.readline()
print("done")
"""
WAITING = "import time\n" + WORK.replace("sys.stdin.readline()", "time.sleep(0.05)")


@contextmanager
def running(
    program: str, *, stderr: int = subprocess.PIPE, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """``program`` in a process of its own, with pipes for everything; ended in any case."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **variables},
    )
    try:
        with process:
            yield process
    finally:
        if process.poll() is None:
            process.kill()


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read stderr until a line holds ``text``; fails when the process ends without one."""
    lines = iter(process.stderr.readline, "")  # type: ignore[union-attr]
    assert any(text in line for line in lines), f"{text!r} was never told"
    process.stdin.write("\n")  # type: ignore[union-attr]
    process.stdin.flush()  # type: ignore[union-attr]


def test_a_pipe_gets_lines_while_the_work_goes_on_and_stdout_stays_clean() -> None:
    with running(WORK, RANK="0") as process:
        wait_for(process, "fitting: 3/10 done")
        wait_for(process, "fitting: 7/10 done")
        wait_for(process, "vector: 1/4 done")
        assert process.stdout.read() == "done\n"  # type: ignore[union-attr]
        assert process.wait() == 0


@pytest.mark.parametrize("options", ["quiet=True, seconds=0.01", "seconds=1e6"])
def test_quiet_or_short_work_tells_nothing(options: str) -> None:
    with running(WAITING.replace("seconds=0.01", options)) as process:
        assert process.communicate() == ("done\n", "")


def test_of_many_ranks_the_first_alone_tells() -> None:
    with running(WAITING, RANK="1") as process:
        assert process.communicate() == ("done\n", "")


def test_a_terminal_gets_a_bar() -> None:
    ours, theirs = pty.openpty()
    try:
        with running(WORK, stderr=theirs, TERM="xterm", COLUMNS="80") as process:
            os.close(theirs)
            process.stdin.write("\n" * 3)  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            told = b"".join(iter(lambda: _read(ours), b"")).decode()
            assert process.stdout.read() == "done\n"  # type: ignore[union-attr]
    finally:
        os.close(ours)
    assert "\x1b[" in told
    assert "fitting" in told
    assert "7/10" in told


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other side is closed
        return b""


def test_the_first_line_comes_long_before_the_second() -> None:
    with running(
        WAITING.replace("seconds=0.01", "seconds=60").replace("sleep(0.05)", "sleep(1.5)")
    ) as process:
        out, told = process.communicate()
    assert out == "done\n"
    assert told == "fitting: 7/10 done, 2 s\n"  # 3 s of work; and 1.5 s are too short to tell
