"""One file of constraints for every supported Python, from one for Python 3.11 and one for 3.10.

    python scripts/user_constraints.py FOR_3.11 FOR_3.10 >calib_serve/constraints.txt

What only the first has is pinned for 3.11 and later: on 3.10 no more than the second file is tested.
"""

from __future__ import annotations

import sys
from pathlib import Path

HEAD = """\
# The versions that this release was tested with, for `pip install "calib-serve[...]" -c constraints.txt`.
# Of Python 3.10 those of the base install and `watch`. Made by scripts/refresh_constraints.sh.
"""


def pins(path: Path) -> dict[str, str]:
    """Package: version."""
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def merged(newer: dict[str, str], older: dict[str, str]) -> list[str]:
    """Lines of constraints; ``older`` is for Python 3.10 alone."""
    lines = []
    for name in sorted(newer.keys() | older.keys()):
        if name in newer and newer[name] == older.get(name):
            lines.append(f"{name}=={newer[name]}")
            continue
        if name in newer:
            lines.append(f'{name}=={newer[name]} ; python_version >= "3.11"')
        if name in older:
            lines.append(f'{name}=={older[name]} ; python_version < "3.11"')
    return lines


def main() -> None:
    """Print the merged file."""
    newer, older = (pins(Path(name)) for name in sys.argv[1:])
    sys.stdout.write(HEAD + "".join(f"{line}\n" for line in merged(newer, older)))


if __name__ == "__main__":
    main()
