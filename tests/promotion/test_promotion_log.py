"""The log of promotions, whatever happened to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from calib_serve.errors import InputError
from calib_serve.promotion import PromotionLog, Step

FIRST = Step(1.5, "drift", "digits", "1.0", 'It is "off" by 3 points, “réellement”.', {"incident": 1})
SECOND = Step(2.5, "default", "digits", "2.0", "It is served.", {"gain": 0.25, "at": [1, 2]})


def test_what_is_written_is_read_and_only_of_the_model_asked_for(tmp_path: Path) -> None:
    log = PromotionLog(tmp_path / "folder" / "log.jsonl")
    assert log.steps() == []
    for step in (FIRST, SECOND, Step(3.0, "drift", "cats", "1.0", "")):
        log.add(step)
    assert log.steps("digits") == [FIRST, SECOND]
    assert [one.model for one in log.steps()] == ["digits", "digits", "cats"]
    assert len(log.path.read_text().splitlines()) == 3


def test_a_number_that_json_does_not_have_is_null(tmp_path: Path) -> None:
    log = PromotionLog(tmp_path / "log.jsonl")
    log.add(Step(1.0, "judged", "m", "1", "", {"gain": float("nan"), "more": [float("inf")]}))
    assert log.steps()[0].facts == {"gain": None, "more": [None]}


def test_wherever_a_writer_was_killed_the_next_step_is_whole(tmp_path: Path) -> None:
    whole = PromotionLog(tmp_path / "whole.jsonl")
    whole.add(SECOND)
    line = whole.path.read_bytes()
    for end in range(8, len(line)):
        log = PromotionLog(tmp_path / "log.jsonl")
        log.path.write_bytes(b"")
        log.add(FIRST)
        with log.path.open("ab") as file:
            file.write(line[:end])
        # All but the end of the line is the whole step.
        before = [FIRST, SECOND] if end == len(line) - 1 else [FIRST]
        assert log.steps() == before
        log.add(SECOND)
        assert log.steps() == [*before, SECOND]


@pytest.mark.parametrize(
    "content",
    [
        b"no json\n",
        b"[]\n",
        b"null\n",
        b'{"time": 1}\n',
        b'{"time": NaN, "step": "a", "model": "m", "version": "1", "reason": "", "facts": {}}\n',
        b'{"time": 1, "step": 2, "model": "m", "version": "1", "reason": "", "facts": {}}\n',
        b'{"time": 1, "step": "a", "model": "m", "version": "1", "reason": "", "facts": []}\n',
        b"[" * 100_000 + b"\n",
        b"\xff\xfe\n",
    ],
)
def test_what_is_no_step_is_said_with_its_line(tmp_path: Path, content: bytes) -> None:
    log = PromotionLog(tmp_path / "log.jsonl")
    log.add(FIRST)
    with log.path.open("ab") as file:
        file.write(content)
    with pytest.raises(InputError, match="line 2"):
        log.steps()


def test_a_log_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        PromotionLog(tmp_path / "file" / "log.jsonl").add(FIRST)
    with pytest.raises(InputError, match="cannot be read"):
        PromotionLog(tmp_path).steps()


def test_a_disk_that_is_full_loses_no_step_in_silence(tmp_path: Path) -> None:
    """A file may grow by 40 bytes more: a part of the line is written, and then nothing."""
    program = """
import resource, signal, sys
from calib_serve.errors import InputError
from calib_serve.promotion import PromotionLog, Step
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log, step = PromotionLog(sys.argv[1]), Step(1.0, "default", "digits", "2.0", "It answers.", {})
log.add(step)
resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + 40, resource.RLIM_INFINITY))
try:
    log.add(step)
except InputError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.add(step)
print(len(log.steps()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")], capture_output=True, text=True, check=True
    )
    said, steps = done.stdout.splitlines()
    assert "the log of promotions cannot be written" in said
    assert steps == "2"
