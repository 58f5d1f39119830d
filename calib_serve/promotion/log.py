"""What was decided and done about a model's versions: a line of JSON each, on disk before the next one."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from calib_serve.errors import InputError

__all__ = ["PromotionLog", "Step"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """One line: ``time`` in seconds since 1970, ``step`` its name, ``reason`` a sentence for people.

    ``facts``: what a restart needs to go on, and the numbers that decided.
    """

    time: float
    step: str
    model: str
    version: str
    reason: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def says(self) -> str:
        """For people.

        >>> Step(0.0, "default", "digits", "2.0", "It answers from now on.").says()
        '1970-01-01 00:00:00Z  digits 2.0  default: It answers from now on.'
        """
        when = datetime.fromtimestamp(self.time, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
        return f"{when}  {self.model} {self.version}  {self.step}: {self.reason}"


class PromotionLog:
    """The steps in the file ``path``, which only grows.

    A line that its writer did not live to end is not a step: the next one begins a new line.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def add(self, step: Step) -> Step:
        """Write a step; it is on disk when this returns. InputError where it cannot be written."""
        line = json.dumps(_plain(asdict(step)), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                size = os.fstat(file).st_size
                whole = not size or os.pread(file, 1, size - 1) == b"\n"
                _write(file, line if whole else b"\n" + line)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise InputError(f"the log of promotions cannot be written: {error}; nothing is done") from error
        return step

    def steps(self, model: str = "") -> list[Step]:
        """All of them, oldest first, or those of one model; none where there is no file yet.

        InputError where the file cannot be read, or a whole line is no step.
        """
        try:
            lines = self.path.read_bytes().split(b"\n") if self.path.exists() else []
        except OSError as error:
            raise InputError(f"the log of promotions cannot be read: {error}") from error
        found = []
        for number, line in enumerate(lines, start=1):
            try:
                if line:
                    found.append(_step(line))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                # Torn, where its writer was killed: the next line is a step again, or there is none.
                if isinstance(error, json.JSONDecodeError) and line.startswith(b'{"time"'):
                    log.warning(
                        "line %d of %s was not written to its end, and is left out", number, self.path
                    )
                else:
                    raise InputError(
                        f"line {number} of {self.path} is not a step of a promotion; move the file away to"
                        " begin a new log"
                    ) from error
        return [one for one in found if model in ("", one.model)]


def _write(file: int, line: bytes) -> None:
    """All of it: a disk that is full takes a part, and says so at the next try."""
    while line:
        line = line[os.write(file, line) :]


def _step(line: bytes) -> Step:
    told = json.loads(line)
    texts = {name: told[name] for name in ("step", "model", "version", "reason")}
    facts, time = told["facts"], float(told["time"])
    if not (all(isinstance(one, str) for one in texts.values()) and isinstance(facts, dict)):
        raise ValueError("not a step")
    if not math.isfinite(time):
        raise ValueError("no time")
    return Step(time=time, facts=facts, **texts)


def _plain(value: Any) -> Any:
    """JSON without numbers that it does not have."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
