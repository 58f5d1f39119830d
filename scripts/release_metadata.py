"""Whether an index and a release show the built files whole: valid metadata, and no link that leads nowhere.

python scripts/release_metadata.py dist
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

from packaging.metadata import Metadata

_RELATIVE = re.compile(r'(?:\]\(|\b(?:href|src|srcset)=")(?!https?:|mailto:|#)[^)"\s]+')


def told(archive: Path) -> str:
    """The metadata of a wheel or a source archive, as an index reads it."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            (name,) = (one for one in wheel.namelist() if one.endswith(".dist-info/METADATA"))
            return wheel.read(name).decode()
    with tarfile.open(archive) as source:
        (member,) = (one for one in source.getmembers() if re.fullmatch(r"[^/]+/PKG-INFO", one.name))
        return source.extractfile(member).read().decode()  # type: ignore[union-attr]


def wrong(text: str) -> list[str]:
    """What an index would refuse or show badly."""
    Metadata.from_email(text, validate=True)
    message: Message = Parser().parsestr(text)
    description = str(message.get_payload())
    found = [f"a relative link: {one}" for one in _RELATIVE.findall(description)]
    if message["Description-Content-Type"] != "text/markdown" or len(description) < 1000:
        found.append("no README")
    if not message.get_all("Project-URL"):
        found.append("no addresses")
    return found


def main() -> None:
    """Fails with what is wrong."""
    archives = sorted(one for one in Path(sys.argv[1]).iterdir() if one.name.endswith((".whl", ".tar.gz")))
    if len(archives) != 2:
        sys.exit(
            f"a wheel and a source archive are to be in {sys.argv[1]}, not {[one.name for one in archives]}"
        )
    found = [f"{one.name}: {what}" for one in archives for what in wrong(told(one))]
    notes = Path(sys.argv[1]) / "RELEASE_NOTES.md"
    found += [f"{notes.name}: a relative link: {one}" for one in _RELATIVE.findall(notes.read_text("utf-8"))]
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
