"""Which models of a server that starts are ready, which have failed, and what its log says."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from calib_serve.serve.management import Management

__all__ = ["Log", "Startup"]

_ERROR = re.compile(
    r"(?:MODEL_LOG - |\bERROR\b.*? - )((?:[\w.]+(?:Error|Exception|Dependency)|.*rror)\b.*)"
    r"|^([\w.]+(?:Error|Exception): .*)",  # Java's own
    re.MULTILINE,
)


@dataclass(frozen=True)
class Log:
    """``file`` from byte ``start`` on; ``java``: Java's own output, for what is not logged to that file."""

    file: Path
    java: Path
    start: int

    @classmethod
    def beginning_now(cls, folder: Path, logs: Path) -> Log:
        """The log of a server that is about to start in ``folder`` and logs to ``logs``."""
        file = logs / "torchserve.log"
        return cls(file, folder / "java.out", file.stat().st_size if file.is_file() else 0)

    def text(self) -> str:
        """All of it."""
        with suppress(OSError), self.file.open("rb") as file:
            file.seek(self.start)
            return file.read().decode("utf-8", "replace")
        return self.java.read_text("utf-8", "replace")

    def tells_that_a_load_failed(self, worker: str) -> bool:
        """Whether a worker of ``worker``, a name_version, died as it loaded its model, or took too long."""
        name = re.escape(worker)
        died = rf"W-\d+-{name}-stdout\b.*Backend worker process died\.|W-\d+-{name} .*Backend worker error"
        return re.search(died, self.text()) is not None

    def hint(self, model: str = "") -> str:
        """Where the log is, and the last errors in it, or in what the workers of ``model`` said."""
        lines = [line for line in self.text().splitlines() if not model or f"-{model}_" in line]
        errors = [match[1] or match[2] for match in _ERROR.finditer("\n".join(lines))]
        return "\n  ".join(
            [f"see {self.file if self.file.is_file() else self.java}", *dict.fromkeys(errors[-3:])]
        )


_LAST_WORDS = 0.5  # seconds until what a worker printed as it died is in the log
_PROCESS = 240.0  # seconds: TorchServe gives a process two minutes to start, and two more to be connected


class Startup:
    """The models ``names`` of a server that has just been started.

    A model is ready when every version has the workers it was configured with. It has failed when it was not
    registered, when a worker died or took longer than its startupTimeout: the log says so, or another
    process in its place shows it. TorchServe starts failed workers again for ever, at growing intervals.
    """

    def __init__(self, names: Sequence[str], log: Log) -> None:
        self._log, self._waiting = log, list(names)
        self._pids: dict[tuple[str, str, str], int] = {}
        self._begun: dict[tuple[str, str], float] = {}
        self.failures: dict[str, str] = {}
        """Why, for each model that failed."""

    def done(self, management: Management) -> bool:
        """Whether each is ready or has failed; looks once. HTTPError while the server does not answer."""
        for name in tuple(self._waiting):
            try:
                versions = management.versions(name)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.NOT_FOUND:
                    raise
                # It answers once it has tried.
                self._failed(name, "TorchServe did not register it", self._log.hint())
                continue
            if all(_ready(version) for version in versions):
                self._waiting.remove(name)
            elif any(self._dead(version) for version in versions if not _ready(version)):
                time.sleep(_LAST_WORDS)
                self._failed(name, "it does not load", self._log.hint(name))
        return not self._waiting

    def still(self) -> list[str]:
        """Those that are neither ready nor failed."""
        return list(self._waiting)

    def _failed(self, name: str, what: str, hint: str) -> None:
        self._waiting.remove(name)
        self.failures[name] = f"{what}; {hint}"

    def _dead(self, version: dict[str, Any]) -> bool:
        name, number = version["modelName"], version["modelVersion"]
        if self._log.tells_that_a_load_failed(f"{name}_{number}"):
            return True
        begun = self._begun.setdefault((name, number), time.monotonic())
        if time.monotonic() - begun > float(version.get("startupTimeout", 120)) + _PROCESS:
            return True
        for worker in version["workers"]:
            if worker["pid"] > 0 and worker["status"] != "READY":
                first = self._pids.setdefault((name, number, worker["id"]), worker["pid"])
                if first != worker["pid"]:
                    return True
        return False


def _ready(version: dict[str, Any]) -> bool:
    return bool(sum(worker["status"] == "READY" for worker in version["workers"]) >= version["minWorkers"])
