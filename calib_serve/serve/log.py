"""What one run of TorchServe logged, and the errors in it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Log"]

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
