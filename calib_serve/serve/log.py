"""What one run of TorchServe logged, and the errors in it."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Log"]

_LOAD_FAILED = "Backend worker process died."
_ERROR = re.compile(r"(?:MODEL_LOG - |\bERROR\b.*? - )((?:[\w.]+(?:Error|Exception|Dependency)|.*rror)\b.*)")


@dataclass(frozen=True)
class Log:
    """``file`` from byte ``start`` on; ``java``: Java's own output, for failures before logging starts."""

    file: Path
    java: Path
    start: int

    @classmethod
    def beginning_now(cls, folder: Path) -> Log:
        """The log of a server that is about to start in ``folder``."""
        file = folder / "logs" / "torchserve.log"
        return cls(file, folder / "java.out", file.stat().st_size if file.is_file() else 0)

    def text(self) -> str:
        """All of it."""
        with suppress(OSError), self.file.open("rb") as file:
            file.seek(self.start)
            return file.read().decode("utf-8", "replace")
        return self.java.read_text("utf-8", "replace")

    def tells_that_a_load_failed(self) -> bool:
        """Whether a worker died as it loaded its model."""
        return _LOAD_FAILED in self.text()

    def hint(self) -> str:
        """Where the log is, and the last errors in it."""
        errors = _ERROR.findall(self.text())
        return "\n  ".join([f"see {self.file}", *dict.fromkeys(errors[-3:])])
