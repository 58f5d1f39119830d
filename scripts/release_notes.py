"""Whether the version, the changelog and the citation tell of the same release; its section of the changelog.

    python scripts/release_notes.py FILE    # writes the section, and prints the version

What must agree: ``calib_serve.__version__``; the first section of CHANGELOG.md, ``## VERSION, YYYY-MM-DD``;
version and date-released of CITATION.cff; and pyproject.toml must say where the project lives.
"""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

import tomllib
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from hatch_build import absolute  # noqa: E402 - of the root

PLACEHOLDER = "example.org"


def stated(root: Path) -> str:
    """``__version__``, without importing anything."""
    (version,) = re.findall(
        r'^__version__ = "(.+)"$', (root / "calib_serve" / "__init__.py").read_text("utf-8"), re.M
    )
    return str(version)


def newest_section(root: Path) -> tuple[str, str]:
    """The heading of the first section of the changelog, and its text."""
    _, heading, text, *_ = re.split(r"^## (.+)$", (root / "CHANGELOG.md").read_text("utf-8"), flags=re.M)
    return heading, text.strip() + "\n"


def repository(root: Path) -> str:
    """The one line that says where the project lives."""
    tool = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]
    return str(tool["hatch"]["metadata"]["hooks"]["custom"]["repository"])


def disagreements(root: Path) -> list[str]:
    """What keeps this from being a release; each says what to do."""
    version, (heading, _) = stated(root), newest_section(root)
    cited = yaml.safe_load((root / "CITATION.cff").read_text("utf-8"))
    found = []
    told = re.fullmatch(r"(\S+), (\d{4}-\d{2}-\d{2})", heading)
    if not told or told[1] != version:
        found.append(f"CHANGELOG.md begins with {heading!r}: make it '## {version}, YYYY-MM-DD'")
    elif (date := datetime.date.fromisoformat(told[2])) != cited.get("date-released"):
        found.append(f"CITATION.cff has date-released {cited.get('date-released')}: make it {date}")
    sections = re.findall(r"^## (\S+),", (root / "CHANGELOG.md").read_text("utf-8"), flags=re.M)
    if twice := sorted({one for one in sections if sections.count(one) > 1}):
        found.append(f"CHANGELOG.md has two sections of {', '.join(twice)}: make them one")
    if cited.get("version") != version:
        found.append(f"CITATION.cff has version {cited.get('version')}: make it {version}")
    if PLACEHOLDER in (where := repository(root)):
        found.append(
            f"pyproject.toml has {where}: write where the project lives, CONTRIBUTING.md says what follows"
        )
    elif cited.get("repository-code") != where:
        found.append(f"CITATION.cff has repository-code {cited.get('repository-code')}: make it {where}")
    return found


def main() -> None:
    """Write the notes and print the version, or say what is missing."""
    if found := disagreements(ROOT):
        sys.exit("no release yet:\n  " + "\n  ".join(found))
    version = stated(ROOT)
    notes = absolute(newest_section(ROOT)[1], repository(ROOT).rstrip("/"), f"v{version}")
    Path(sys.argv[1]).write_text(notes, "utf-8")
    sys.stdout.write(f"{version}\n")


if __name__ == "__main__":
    main()
