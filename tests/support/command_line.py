"""The command line in this process: what it prints, and its exit code."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from calib_serve.app import run


@dataclass(frozen=True)
class Done:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def calib_serve(*arguments: object, typed: str = "") -> Done:
    """Run a command line; ``typed`` is what stands on stdin."""
    return invoke([str(word) for word in arguments], typed=typed)


def invoke(arguments: Sequence[str], *, typed: str = "") -> Done:
    """The same, of a list of words."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "stdin", io.StringIO(typed)),
    ):
        code = run(list(arguments))
    return Done(code, out.getvalue(), err.getvalue())


def by_schema(data: Path, *said: object) -> tuple[str, str]:
    """What is ``said`` of scores, written down beside them: the option that takes it."""
    out = data.with_name(f"{data.stem}-said.yaml")
    done = calib_serve("schema", data, *said, "-o", out, "--force")
    assert done.exit_code == 0, done.output
    return "--schema", str(out)
