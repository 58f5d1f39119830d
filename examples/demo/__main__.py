"""``python examples/demo [FOLDER]``: the quickstart's project, to a Prometheus query."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from story import CheckFailed, tell

from calib_serve.core.errors import CalibServeError
from calib_serve.core.process import interruptible


def main(words: Sequence[str] = ("demo-out",)) -> int:
    """Tell the story in a new folder; return 0 if every check held."""
    (name,) = words
    if (folder := Path(name).resolve()).exists():
        sys.stderr.write(f"{folder} is there already: remove it, or name another folder\n")
        return 2
    try:
        with interruptible():
            tell(folder)
    except (CalibServeError, CheckFailed) as error:
        sys.stderr.write(f"the demo failed: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped, and with it all that was started\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["demo-out"]))
